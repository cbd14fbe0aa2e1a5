import re

import pytest

from dify_agent.store.keys import Keys

KEYS = Keys("p")
TAG = re.compile(r"\{([^}]+)\}")


def test_the_keys_of_a_run_share_its_hash_tag():
    assert KEYS.run("r") == (
        "p:runs:{r}:record",
        "p:runs:{r}:events",
        "p:runs:{r}:owner",
        "p:runs:{r}:cancel-intent",
    )


def test_the_keys_of_an_owner_share_its_hash_tag():
    own = [KEYS.alive("o"), KEYS.runs("o"), KEYS.inbox("o"), KEYS.doorbell("o")]
    assert own == [f"p:owners:{{o}}:{name}" for name in ("alive", "runs", "inbox", "doorbell")]
    assert KEYS.owners == "p:owners"
    assert {TAG.search(key)[1] for key in own} == {"o"}


@pytest.mark.parametrize("prefix", ["", "{", "}", "a{b}c", "{a}"])
def test_a_prefix_that_would_displace_the_hash_tag_is_refused(prefix):
    with pytest.raises(ValueError, match="DIFY_AGENT_REDIS_PREFIX"):
        Keys(prefix)
