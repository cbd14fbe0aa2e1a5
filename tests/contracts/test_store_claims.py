"""Claims of idempotency keys: what displaces what, names, TTLs, lost replies (decision R5)."""

import hashlib
from dataclasses import replace

import pytest
import trio
from tests.contracts.store_support import ttls

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import Claim, ClaimUnreadableError, IdempotencyKey
from dify_agent.store.keys import Keys
from dify_agent.store.redis import open_redis_store

KEY = IdempotencyKey("t-7", "wf-12:node-4")
FIRST = Claim("11111111-1111-4111-8111-111111111111", "a" * 64, "h1")
RIVAL = Claim("22222222-2222-4222-8222-222222222222", "b" * 64, "h2")
TAKER = replace(FIRST, holder="h3")


def name(prefix, key=KEY):
    return f"{prefix}:idempotency:{{{key.tenant}:{hashlib.sha256(key.text.encode()).hexdigest()}}}"


async def test_the_first_claim_stands(store, witness, prefix):
    assert await store.read_claim(KEY) is None
    assert await store.claim(KEY, FIRST) == FIRST
    assert await store.claim(KEY, RIVAL) == FIRST
    assert await store.read_claim(KEY) == FIRST
    assert list(ttls(witness, prefix)) == [name(prefix)]
    assert witness.get(name(prefix)).decode() == f"{FIRST.run_id}:{FIRST.digest}:h1"


async def test_a_claim_may_be_repeated(store):
    assert await store.claim(KEY, FIRST) == FIRST
    assert await store.claim(KEY, FIRST) == FIRST
    assert await store.claim(KEY, TAKER, over=FIRST) == TAKER
    assert await store.claim(KEY, TAKER, over=FIRST) == TAKER


async def test_only_the_named_claim_is_displaced(store):
    await store.claim(KEY, FIRST)
    assert await store.claim(KEY, TAKER, over=RIVAL) == FIRST
    assert await store.claim(KEY, TAKER, over=FIRST) == TAKER
    assert await store.claim(KEY, replace(TAKER, holder="h4"), over=FIRST) == TAKER, "the second taker is too late"


async def test_a_claim_that_is_gone_needs_no_displacing(store):
    assert await store.claim(KEY, TAKER, over=FIRST) == TAKER


async def test_of_many_takers_one_wins(bare_store):
    await bare_store.claim(KEY, FIRST)
    takers = [replace(FIRST, holder=f"taker {number}") for number in range(20)]
    found = []

    async def take(taker):
        found.append((taker, await bare_store.claim(KEY, taker, over=FIRST)))

    async with trio.open_nursery() as nursery:
        for taker in takers:
            nursery.start_soon(take, taker)
    [winner] = {standing for _, standing in found}
    assert [taker for taker, standing in found if taker == standing] == [winner]


async def test_only_the_own_claim_is_released(store, witness, prefix):
    await store.claim(KEY, FIRST)
    await store.release_claim(KEY, RIVAL)
    await store.release_claim(KEY, TAKER)
    assert await store.read_claim(KEY) == FIRST
    await store.release_claim(KEY, FIRST)
    await store.release_claim(KEY, FIRST)
    assert ttls(witness, prefix) == {}


async def test_ttls(store, witness, prefix):
    """A claim lives for one retention from when it was last written; reading and being refused write nothing."""
    key = name(prefix)
    await store.claim(KEY, FIRST)
    assert 590_000 < witness.pttl(key) <= 600_000
    witness.expire(key, 100)
    await store.read_claim(KEY)
    await store.claim(KEY, RIVAL)
    await store.release_claim(KEY, RIVAL)
    assert witness.pttl(key) <= 100_000
    await store.claim(KEY, TAKER, over=FIRST)
    assert 590_000 < witness.pttl(key) <= 600_000


@pytest.mark.slow
async def test_an_expired_claim_is_none(store_server, prefix, witness):
    async with open_redis_store(store_server.url, prefix=prefix, retention_seconds=1) as store:
        await store.claim(KEY, FIRST)
        with trio.fail_after(10):
            while witness.exists(name(prefix)):  # noqa: ASYNC110  Real time: the server's clock is what is tested.
                await trio.sleep(0.05)
        assert await store.read_claim(KEY) is None
        assert await store.claim(KEY, RIVAL) == RIVAL


async def test_keys_and_tenants_are_told_apart(store, witness, prefix):
    keys = [IdempotencyKey(tenant, text) for tenant in ("", "a", "b", "a:b") for text in ("k", "K", "a:k", " k", "k\0")]
    for number, key in enumerate(keys):
        assert (await store.claim(key, replace(FIRST, holder=str(number)))).holder == str(number)
    assert [int((await store.read_claim(key)).holder) for key in keys] == list(range(len(keys)))
    assert len(ttls(witness, prefix)) == len(keys)


@pytest.mark.parametrize("tenant", ["}", "{", "a}b", "a:b", "ü", "\ud800", "\x00", "a b", "x" * 10_000])
async def test_an_odd_tenant_does_not_shape_the_key(store, witness, prefix, tenant):
    key = IdempotencyKey(tenant, "k")
    await store.claim(key, FIRST)
    assert await store.read_claim(key) == FIRST
    [written] = ttls(witness, prefix)
    tag = written.removeprefix(f"{prefix}:idempotency:")
    assert (tag[0], tag[-1], tag.count("{"), tag.count("}")) == ("{", "}", 1, 1)
    assert len(written) < 250


@pytest.mark.parametrize("tenant", ["", "t-7", "0b8f1c52-6f0e-4a0e-9d53-6a4b0a4f2f11", "a.b_c"])
def test_a_plain_tenant_stands_in_the_key_as_it_is(tenant):
    key = IdempotencyKey(tenant, "é")
    assert Keys("p").idempotency(tenant, "é") == name("p", key)


@pytest.mark.parametrize("text", [b"", b"x", b"a:b", b"a:b:c:d", b"\xff"])
async def test_what_is_no_claim_is_not_touched(store, witness, prefix, text):
    witness.set(name(prefix), text, ex=100)
    with pytest.raises(ClaimUnreadableError):
        await store.read_claim(KEY)
    with pytest.raises(ClaimUnreadableError):
        await store.claim(KEY, FIRST)
    await store.release_claim(KEY, FIRST)
    assert witness.get(name(prefix)) == text


async def test_a_claim_of_a_wrong_type_is_not_touched(bare_store, witness, prefix):
    witness.hset(name(prefix), "a", "b")
    operations = (bare_store.read_claim(KEY), bare_store.claim(KEY, FIRST), bare_store.release_claim(KEY, FIRST))
    for operation in operations:
        with pytest.raises(ClaimUnreadableError) as caught:
            await operation
        assert caught.value.key == name(prefix)
    assert witness.hgetall(name(prefix)) == {b"a": b"b"}


async def test_a_lost_reply_is_an_unknown_outcome_and_repeating_is_safe(store_server, prefix, witness):
    async with (
        store_server.proxy() as proxy,
        open_redis_store(proxy.url, prefix=prefix, retention_seconds=600) as store,
    ):
        await store.ping()
        # On a cluster the next key would be another node's, and the reply that gets lost its handshake's.
        await store.claim(KEY, FIRST)
        await store.release_claim(KEY, FIRST)
        proxy.arm(0)
        with pytest.raises(StoreUnavailableError) as caught:
            await store.claim(KEY, FIRST)
        assert caught.value.sent
        assert witness.exists(name(prefix))
        assert await store.claim(KEY, FIRST) == FIRST


async def test_scripts_that_the_server_forgot_are_sent_again(store, witness):
    witness.script_flush()
    await store.claim(KEY, FIRST)
    witness.script_flush()
    await store.release_claim(KEY, FIRST)
    assert await store.read_claim(KEY) is None
