"""Keys, values and TTLs, witnessed by an independent client."""

import json

import pytest
import trio
from tests.contracts.store_support import (
    MS,
    OWNER,
    CheckedStore,
    batch,
    events,
    finish,
    intent,
    run_id,
    running,
    terminal,
    ttls,
)

from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import Owner
from dify_agent.store.redis import open_redis_store


@pytest.fixture
async def run(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    return run


def names(witness, prefix):
    return {key.removeprefix(f"{prefix}:") for key in ttls(witness, prefix)}


async def test_a_runs_keys_and_values(store, run, witness, prefix):
    await store.append([batch(run, START, *events(1, 2))])
    await store.request_cancel(run, intent("user", None))
    tag = f"runs:{{{run}}}"
    of_owner = f"owners:{{{OWNER.id}}}:runs"
    assert names(witness, prefix) == {
        *(f"{tag}:{name}" for name in ("record", "events", "cancel-intent", "owner")),
        of_owner,
    }
    assert witness.get(f"{prefix}:{tag}:record").decode() == (
        f'{{"run_id":"{run}","status":"running","created_at":"2026-11-30T09:00:00.120001Z",'
        '"updated_at":"2026-11-30T09:00:00.120001Z","error":null,"error_type":null}'
    )
    assert witness.get(f"{prefix}:{tag}:owner") == b"7:replica-1"
    assert witness.smembers(f"{prefix}:{of_owner}") == {run.encode()}
    assert witness.xrange(f"{prefix}:{tag}:events") == [
        (f"{MS}-{item.id.n}".encode(), {b"payload": item.payload}) for item in events(1, 2)
    ]
    ((_, fields),) = witness.xrange(f"{prefix}:{tag}:cancel-intent")
    assert json.loads(fields.pop(b"payload")) == {
        "reason": "user",
        "message": None,
        "requested_at": "2026-11-30T09:00:00.120001Z",
    }
    assert fields == {}


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_the_final_record(store, run, witness, prefix, status):
    if status == "cancelled":
        await store.request_cancel(run, intent())
    await finish(store, terminal(run, status, error="é\n"))
    assert json.loads(witness.get(f"{prefix}:runs:{{{run}}}:record")) == {
        "run_id": run,
        "status": status,
        "created_at": "2026-11-30T09:00:00.120001Z",
        "updated_at": "2026-11-30T09:00:01.120001Z",
        "error": "é\n",
        "error_type": None,
    }


def age(witness, prefix, *left_out):
    """Pretend that time has passed: 100 s are left of every TTL."""
    for key in ttls(witness, prefix):
        witness.expire(key, 100)


async def fresh(store, run, witness, prefix, operation):
    """Which keys of the run an operation gives a new TTL."""
    age(witness, prefix)
    await operation
    return {
        key.rpartition(":")[2] for key, ttl in ttls(witness, prefix).items() if f"{{{run}}}" in key and ttl > 100_000
    }


async def test_which_operations_refresh_which_ttls(store, run, witness, prefix):
    """Protocol 5.4, with the owner key beside the record."""

    async def refreshed(operation):
        return await fresh(store, run, witness, prefix, operation)

    all_keys = {"record", "events", "owner", "cancel-intent"}
    assert await refreshed(store.append([batch(run, START, *events(1, 1))])) == all_keys - {"cancel-intent"}
    assert await refreshed(store.append([batch(run, EventId(MS, 8), *events(9, 9))])) == set()
    assert await refreshed(store.read_record(run)) == set()
    assert await refreshed(store.read_events(run, START, 10)) == set()
    assert await refreshed(store.finalize_cancel(terminal(run, "cancelled"))) == set()
    assert await refreshed(store.request_cancel(run, intent())) == all_keys
    assert await refreshed(store.request_cancel(run, intent())) == set()
    assert await refreshed(store.read_intent(run)) == set()
    assert await refreshed(store.finalize(terminal(run, "failed"))) == set()
    assert await refreshed(store.append([batch(run, EventId(MS, 1), *events(2, 2))])) == all_keys
    assert await refreshed(store.touch_runs(OWNER, [run])) == all_keys
    assert await refreshed(store.finalize_cancel(terminal(run, "cancelled"))) == all_keys - {"cancel-intent"}
    assert await refreshed(store.append([batch(run, EventId(MS, 2), *events(3, 3))])) == set()
    assert await refreshed(store.request_cancel(run, intent())) == set()


async def test_an_owners_keys(store, run, witness, prefix):
    owner = f"{prefix}:owners:{{{OWNER.id}}}"
    await store.heartbeat(OWNER, 15)
    assert witness.get(f"{owner}:alive") == b"7"
    assert 14_000 < witness.pttl(f"{owner}:alive") <= 15_000
    assert witness.smembers(f"{prefix}:owners") == {b"replica-1"}
    await store.ring(OWNER.id, run)
    age(witness, prefix)
    await store.heartbeat(OWNER, 15)
    refreshed = {key for key, ttl in ttls(witness, prefix).items() if ttl > 100_000}
    assert refreshed == {f"{prefix}:owners", f"{owner}:runs", f"{owner}:inbox", f"{owner}:seen"}
    await store.release_runs(OWNER.id, [run])
    await store.retire(OWNER)
    left = {key for key in ttls(witness, prefix) if ":owners" in key}
    assert left == {f"{prefix}:owners", f"{owner}:seen"}, "for a minute: the others delist it then"


@pytest.mark.slow
async def test_touching_many_runs_renews_the_owners_set(store, witness, prefix):
    runs = [run_id() for _ in range(1001)]
    await store.touch_runs(OWNER, runs)
    assert witness.scard(f"{prefix}:owners:{{{OWNER.id}}}:runs") == 1001
    await store.touch_runs(OWNER, [])


async def test_the_inbox_keeps_what_came_before_the_read(store, witness, prefix):
    await store.ring(OWNER.id, "a")
    await store.ring(OWNER.id, "b")
    entries = await store.read_inbox(OWNER, "0-0", 1)
    assert [run for _, run in entries] == ["a", "b"]
    assert [run for _, run in await store.read_inbox(OWNER, entries[0][0], 1)] == ["b"]
    assert await store.read_inbox(OWNER, entries[-1][0], 0) == []
    assert await store.read_inbox(Owner("elsewhere", 1), "0-0", 0) == []


async def test_the_inbox_read_wakes_when_a_bell_rings(bare_store):
    found = []

    async def listen():
        found.extend(await bare_store.read_inbox(OWNER, "0-0", 30))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            await bare_store.ring(OWNER.id, "a")
    assert [run for _, run in found] == ["a"]


@pytest.mark.slow
async def test_the_inbox_is_bounded(store, witness, prefix, bare_store):
    for _ in range(1200):
        await bare_store.ring(OWNER.id, "r")
    assert 1000 <= witness.xlen(f"{prefix}:owners:{{{OWNER.id}}}:inbox") <= 1100


async def test_two_prefixes_on_one_server_do_not_see_each_other(store_server, prefix, witness):
    run = run_id()
    async with (
        open_redis_store(store_server.url, prefix=f"{prefix}a") as one,
        open_redis_store(store_server.url, prefix=f"{prefix}b") as two,
    ):
        await one.create_run(running(run), OWNER)
        await one.append([batch(run, START, *events(1, 2))])
        await one.request_cancel(run, intent())
        await one.ring(OWNER.id, run)
        assert await two.read_record(run) is None
        assert await two.read_intent(run) is None
        assert await two.read_inbox(OWNER, "0-0", 0) == []
        await two.create_run(running(run), Owner("other", 1))
        assert (await two.read_events(run, START, 10)).events == ()
        assert (await two.finalize(terminal(run, "failed"))).applied
        await two.retire(OWNER)
        assert (await one.read_record(run)).status == "running"
        assert len((await one.read_events(run, START, 10)).events) == 2


@pytest.mark.slow
async def test_a_run_silent_for_longer_than_the_retention_lives_while_it_is_touched(store_server, prefix, witness):
    run, gone = run_id(), run_id()
    async with open_redis_store(store_server.url, prefix=prefix, retention_seconds=3) as store:
        checked = CheckedStore(store, witness, prefix, retention_seconds=3)
        await checked.create_run(running(gone), OWNER)
        await checked.create_run(running(run), OWNER)
        while witness.exists(f"{prefix}:runs:{{{gone}}}:record"):
            await checked.touch_runs(OWNER, [run])
            await trio.sleep(0.05)  # real time: the server's clock is what is tested
        assert (await checked.read_record(run)).status == "running"
        assert await checked.read_record(gone) is None


@pytest.mark.parametrize("run", ["", "}", "{", "a}b", "a:b", "ü", "\ud800", "\x00", "x" * 10_000])
async def test_an_odd_run_id_is_just_not_found(store, run):
    assert await store.read_record(run) is None
    assert await store.append([batch(run, START, *events(1, 1))]) == ["missing"]
