"""What another program may have written where a value of ours should be."""

import pytest

from dify_agent.store.base import Owner
from dify_agent.store.texts import owner_text, read_owner


@pytest.mark.parametrize("owner", [Owner("replica-1", 7), Owner("a:b\nc", 0), Owner("é", 2**63)])
def test_an_owner_is_read_back(owner: Owner) -> None:
    assert read_owner(owner_text(owner).encode()) == owner


@pytest.mark.parametrize(
    "text", [b"", b":", b"1:", b":x", b"x", b"-1:x", b"1.0:x", b" 1:x", "²:x".encode(), "١:x".encode(), b"1:\xff"]
)
def test_anything_else_is_no_owner(text: bytes) -> None:
    assert read_owner(text) is None


def test_more_digits_than_python_converts_are_no_epoch() -> None:
    assert read_owner(b"9" * 5000 + b":x") is None
