"""Runs whose owner dies, freezes or loses its store: each ends exactly once, and no healthy one gets a verdict."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, calling, run_of, text_run, tool_run
from tests.server.clients import open_api, open_stream, stream_of
from tests.server.harness import Server, StoreServer, launched, serving, until
from tests.server.stores import durable_store

LEASE = 1.5
VERDICT = LEASE + 5
"""The bound that is promised."""
CANCELS = {"reason": "user", "message": "no longer needed"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def survivor(store: StoreServer) -> Iterator[Server]:
    """The replica that outlives the others, and judges."""
    with serving(store.url, owner_lease_seconds=LEASE) as started:
        yield started


@pytest.fixture
def api_of(survivor: Server) -> Any:
    return lambda: open_api(survivor)


def doomed(store: StoreServer, survivor: Server, **settings: object) -> Any:
    return launched(store.url, prefix=survivor.prefix, owner_lease_seconds=LEASE, **settings)


def assert_one_terminal(events: list[dict[str, Any]], status: str) -> dict[str, Any]:
    kinds = [event["type"] for event in events]
    assert kinds.count(f"run_{status}") == 1
    assert [kind for kind in kinds if kind in ("run_succeeded", "run_failed", "run_cancelled")] == [f"run_{status}"]
    assert kinds[-1] == f"run_{status}"
    ordinals = [int(event["id"].split("-")[1]) for event in events]
    assert ordinals == list(range(1, len(events) + 1))
    return dict(events[-1]["data"])


PHASES = {
    "in the model": (run_of(HANG), "run_started"),
    "while streaming": (run_of(STREAM_THEN_HANG), "part_delta"),
    "in a tool": (tool_run(hang=True), "function_tool_call"),
    "behind a tool": (run_of(calling("probe"), HANG, tools=({"name": "probe"},)), "function_tool_result"),
}


async def test_a_killed_owners_runs_end_in_every_phase(store: StoreServer, survivor: Server, api_of) -> None:
    with doomed(store, survivor) as owner:
        owner.wait_listening()
        async with open_api(owner) as api:
            runs = {}
            for name, (body, seen) in PHASES.items():
                runs[name] = await api.create(body)
                await api.events_until(runs[name], seen)
        async with api_of() as api, open_stream(survivor, runs["while streaming"]) as tail:
            assert await tail.frame() is not None
            os.kill(owner.pid, signal.SIGKILL)
            with trio.fail_after(VERDICT):
                frames = await tail.rest()
                for name, run_id in runs.items():
                    events = await api.finished(run_id)
                    data = assert_one_terminal(events, "failed")
                    assert (data["reason"], data["error_type"]) == ("owner_lost", None), name
                    assert data["session_snapshot"] is None
                    status = await api.status(run_id)
                    assert (status["status"], status["error"]) == ("failed", data["error"])
            assert frames[-1].event == "run_failed"


@pytest.mark.full
async def test_a_cancel_outlives_the_owner(store: StoreServer, survivor: Server, api_of) -> None:
    """Accepted while the owner is frozen, so only the verdict can honour it."""
    with doomed(store, survivor) as owner:
        owner.wait_listening()
        async with open_api(owner) as api:
            run_id = await api.create(run_of(HANG))
            await api.events_until(run_id, "run_started")
        os.kill(owner.pid, signal.SIGSTOP)
        async with api_of() as api:
            await api.cancel(run_id, **CANCELS)
            os.kill(owner.pid, signal.SIGKILL)
            with trio.fail_after(VERDICT):
                data = assert_one_terminal(await api.finished(run_id), "cancelled")
    assert (data["reason"], data["message"]) == ("user", "no longer needed")


@pytest.mark.parametrize("body", [run_of(HANG), run_of({"chunks": 100_000, "delay_ms": 20})], ids=["silent", "busy"])
async def test_an_owner_that_was_only_slow_finds_its_run_judged(
    store: StoreServer, survivor: Server, api_of, body: dict[str, Any]
) -> None:
    """It stops the run, says so, writes nothing more, and goes on serving."""
    with doomed(store, survivor) as owner:
        owner.wait_listening()
        async with open_api(owner) as slow, api_of() as api:
            run_id = await slow.create(body)
            await slow.events_until(run_id, "run_started")
            os.kill(owner.pid, signal.SIGSTOP)
            with trio.fail_after(VERDICT):
                events = await api.finished(run_id)
            assert_one_terminal(events, "failed")
            os.kill(owner.pid, signal.SIGCONT)
            await until(lambda: "run given up" in owner.log, "the owner notices the verdict", 10)
            assert await stream_of(owner, run_id) == await stream_of(survivor, run_id)
            assert await api.finished(run_id) == events
            assert (await slow.run(text_run()))[-1]["type"] == "run_succeeded"
        assert owner.stop() == 0


async def test_flushall_stops_the_runs_within_five_seconds() -> None:
    """R21: routes answer 404, local runs stop, the log says record_lost; the replica goes on."""
    with durable_store() as store, serving(store.url, announced=["given up", "record_lost"]) as server:
        async with open_api(server) as api:
            silent, busy = await api.create(run_of(HANG)), await api.create(run_of({"chunks": 9000, "delay_ms": 20}))
            await api.events_until(silent, "run_started")
            await api.events_until(busy, "part_delta")
            with store.witness as witness:
                witness.flushall()
            await until(lambda: server.log.count("record_lost") >= 2, "both runs are given up", 5)
            assert (await api.client.get(f"/runs/{silent}")).status_code == 404
            assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "frozen", "full", "read-only"])
async def test_an_outage_of_twice_the_lease_condemns_no_living_owner(how: str) -> None:
    with durable_store() as store, serving(store.url, owner_lease_seconds=LEASE) as one:
        with serving(store.url, prefix=one.prefix, owner_lease_seconds=LEASE) as two:
            async with open_api(one) as api, open_api(two) as other:
                bodies = [run_of({"chunks": 600, "chunk": "w", "delay_ms": 10}) for _ in range(5)]
                runs = [await each.create(body) for each in (api, other) for body in bodies]
                for run_id in runs:
                    await api.events_until(run_id, "part_delta")
                await trio.sleep(2 * LEASE)  # both reapers have seen a healthy store for a lease: they could judge
                with store.outage(how):
                    await trio.sleep(2 * LEASE)
                for run_id in runs:
                    data = assert_one_terminal(await other.finished(run_id), "succeeded")
                    assert data["output"] == "w" * 600
            for replica in (one, two):
                assert "run judged" not in replica.log


@pytest.mark.full
async def test_a_layer_that_hangs_on_its_way_out_is_judged_as_well(
    store: StoreServer, survivor: Server, api_of
) -> None:
    body = tool_run(hang=True, swallow_cancel_ms=30_000)
    with doomed(store, survivor) as owner:
        owner.wait_listening()
        async with open_api(owner) as api:
            run_id = await api.create(body)
            await api.events_until(run_id, "function_tool_call")
            await api.cancel(run_id, **CANCELS)
        os.kill(owner.pid, signal.SIGKILL)
        async with api_of() as api:
            with trio.fail_after(VERDICT):
                assert_one_terminal(await api.finished(run_id), "cancelled")


async def test_a_record_without_events_is_judged(store: StoreServer, survivor: Server, api_of) -> None:
    """The owner died between the record and the first event; written by hand, since no signal is so quick."""
    run_id, owner = "11111111-2222-4333-8444-555555555555", "dead"
    record = (
        f'{{"run_id":"{run_id}","status":"running","created_at":"2026-11-30T09:00:00Z",'
        '"updated_at":"2026-11-30T09:00:00Z","error":null,"error_type":null}'
    )
    keys = f"{survivor.prefix}:runs:{{{run_id}}}"
    store.witness.set(f"{keys}:record", record, ex=600)
    store.witness.set(f"{keys}:owner", f"1:{owner}", ex=600)
    store.witness.sadd(f"{survivor.prefix}:owners:{{{owner}}}:runs", run_id)
    store.witness.expire(f"{survivor.prefix}:owners:{{{owner}}}:runs", 600)
    store.witness.sadd(f"{survivor.prefix}:owners", owner)
    async with api_of() as api:
        with trio.fail_after(VERDICT):
            assert_one_terminal(await api.finished(run_id), "failed")
    forgotten = lambda: not store.witness.sismember(f"{survivor.prefix}:owners", owner)  # noqa: E731
    await until(forgotten, "the owner is forgotten")
