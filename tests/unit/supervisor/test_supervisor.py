"""The supervisor as HTTP and the composition root see it."""

from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun
from tests.unit.actors.logs import record
from tests.unit.actors.world import World, history, hooked, model, prompt, text, world
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.messages import StopKind
from dify_agent.actors.work import RunWork
from dify_agent.errors import (
    RunCancellationConflictError,
    RunNotFoundError,
    SchedulerStoppingError,
    StoreUnavailableError,
)
from dify_agent.protocol.event_id import START
from dify_agent.store.base import Owner
from dify_agent.supervisor.specs import RestartBudget, ServiceBudgetSpentError, ServiceSpec

HANG = {"hang": True}


def only_run(w: World) -> FakeRun:
    [run] = w.store.runs.values()
    return run


# Creating.


async def test_a_client_that_leaves_while_creating_does_not_touch_the_run(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.before = slow_create
        with trio.move_on_after(1) as client:
            await w.create(prompt(), model(text("done")))
        assert client.cancelled_caught
        with trio.fail_after(60):
            await w.supervisor.drain(60)
        assert only_run(w).record.status == "succeeded"


async def slow_create(name: str) -> None:
    if name == "create_run":
        await trio.sleep(5)


async def test_store_down_is_said_and_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.down = True
        with pytest.raises(StoreUnavailableError):
            await w.create(prompt(), model(text()))
        assert w.store.calls["create_run"] == 2
        w.store.down = False
        await trio.sleep(5)
        assert w.supervisor.active_runs == 0
        assert w.store.runs == {}


async def test_a_refused_run_is_settled_for_a_bounded_time_and_is_no_active_run(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.down = True
        for _ in range(5):
            with pytest.raises(StoreUnavailableError):
                await w.create(prompt(), model(text()))
        await wait_all_tasks_blocked()
        assert w.supervisor.active_runs == 0, "a drain does not wait for it"
        await trio.sleep(31)
        tried = w.store.calls["judge"]
        await trio.sleep(60)
        assert w.store.calls["judge"] == tried > 0


async def test_a_run_that_was_judged_before_its_create_was_repeated_is_told_by_its_id() -> None:
    """The reply to the first try is lost, and this replica is away until another has taken it for lost."""
    async with world() as w:
        w.store.lose_replies["create_run"] = 1

        async def judge(run_id: str) -> None:
            run = w.store.runs[run_id]
            run.record = run.record.model_copy(update={"status": "failed", "error": "owner lost"})

        w.store.after_create = judge
        run_id = await w.create(prompt(), model(text("never")))
        assert w.store.calls["create_run"] == 2
        assert list(w.store.runs) == [run_id]
        assert only_run(w).record.error == "owner lost"
        await wait_all_tasks_blocked()
        assert w.supervisor.active_runs == 0


async def test_a_refused_create_that_was_written_does_not_stay_running(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.lose_replies["create_run"] = 2
        with pytest.raises(StoreUnavailableError):
            await w.create(prompt(), model(text()))
        await trio.sleep(5)
        (run,) = w.store.runs.values()
    assert run.types == ["run_failed"]
    assert b'"reason":"store_unavailable"' in run.events[-1].payload


async def test_a_run_that_certainly_was_not_written_leaves_at_once(autojump_clock: MockClock) -> None:
    async def unreachable(name: str) -> None:
        if name == "create_run":
            raise StoreUnavailableError("connection refused", sent=False)

    async with world() as w:
        w.store.before = unreachable
        with pytest.raises(StoreUnavailableError):
            await w.create(prompt(), model(text()))
        await wait_all_tasks_blocked()
        assert w.supervisor.active_runs == 0
        assert w.store.calls["judge"] == 0


async def test_one_lost_create_reply_is_repaired(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.lose_replies["create_run"] = 1
        run = await w.ended(await w.create(prompt(), model(text())))
        assert run.record.status == "succeeded"
        assert len(w.store.runs) == 1


async def test_a_record_whose_reply_was_lost_twice_does_not_stay_running(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.lose_replies["create_run"] = 2
        with pytest.raises(StoreUnavailableError):
            await w.create(prompt(), model(text()))
        await trio.sleep(5)
        run = only_run(w)
        assert run.types == ["run_failed"]
        assert run.record.status == "failed"
        assert w.supervisor.active_runs == 0
        await trio.sleep(6)
        assert w.store.owned["me"] == set()


async def test_a_bug_in_the_store_is_no_hang(autojump_clock: MockClock) -> None:
    async def broken(name: str) -> None:
        if name == "create_run":
            raise RuntimeError("a bug")

    async with world() as w:
        w.store.before = broken
        with trio.fail_after(1), pytest.raises(trio.EndOfChannel):
            await w.create(prompt(), model(text()))
        assert w.supervisor.active_runs == 0
        w.store.before = None
        assert (await w.ended(await w.create(prompt(), model(text())))).record.status == "succeeded"


async def test_teardown_while_creating_leaves_no_running_record(autojump_clock: MockClock) -> None:
    async def slow_answer(_run_id: str) -> None:
        await trio.sleep(5)

    async with world() as w, trio.open_nursery() as clients:

        async def client() -> None:
            with pytest.raises(trio.EndOfChannel):
                await w.create(prompt(), model(text()))

        w.store.after_create = slow_answer
        clients.start_soon(client)
        await trio.sleep(1)
        run = only_run(w)
        assert run.record.status == "running"
        w.nursery.cancel_scope.cancel()
    assert run.types == ["run_failed"]
    assert run.record.status == "failed"


# Cancelling.


async def test_cancel_of_an_unknown_run(autojump_clock: MockClock) -> None:
    async with world() as w:
        with pytest.raises(RunNotFoundError):
            await w.cancel("nobody")


async def test_cancel_of_a_finished_run_is_a_conflict(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(text()))
        await w.ended(run_id)
        with pytest.raises(RunCancellationConflictError) as caught:
            await w.cancel(run_id)
        assert str(caught.value) == "run already finished with status 'succeeded'"


async def test_cancel_of_a_cancelled_run_is_accepted(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        await w.cancel(run_id, "first")
        run = await w.ended(run_id)
        await w.cancel(run_id, "second")
        assert run.record.error == "first"
        assert run.types[-1:] == ["run_cancelled"]


async def test_cancel_with_the_store_down_is_refused_and_changes_nothing(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 5000}))
        w.store.down = True
        with pytest.raises(StoreUnavailableError):
            await w.cancel(run_id)
        w.store.down = False
        assert (await w.ended(run_id)).record.status == "succeeded"


async def test_cancel_of_another_replicas_run_rings_its_owner(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.runs["theirs"] = FakeRun(record("theirs"), Owner("other", 7))
        await w.cancel("theirs")
        assert w.store.rung == [("other", "theirs")]
        assert w.run("theirs").intent is not None


async def test_a_bell_that_fails_is_left_to_the_owners_sweep(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.runs["theirs"] = FakeRun(record("theirs"), Owner("other", 7))

        async def no_bell(name: str) -> None:
            if name == "ring":
                raise StoreUnavailableError("no bell")

        w.store.before = no_bell
        await w.cancel("theirs")
        assert w.run("theirs").intent is not None


async def test_own_runs_are_told_without_a_bell(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        await w.cancel(run_id)
        await w.ended(run_id)
        assert w.store.rung == []


async def test_a_burst_of_cancels_costs_the_run_nothing(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.hooks.leave = lambda: trio.sleep(30)
        run_id = await w.create(prompt(), history(), hooked(), model({"chunks": 9, "chunk": "x", "delay_ms": 1000}))
        await trio.sleep(2.5)
        passes = iter(range(1, 401))

        async def answers_over_many_passes(name: str) -> None:
            if name == "request_cancel":
                for _ in range(next(passes) // 10):
                    await trio.lowlevel.checkpoint()

        w.store.before = answers_over_many_passes
        began = trio.current_time()
        async with trio.open_nursery() as clients:
            for _ in range(400):
                clients.start_soon(w.cancel, run_id)
        run = await w.ended(run_id)
        assert trio.current_time() - began == pytest.approx(30, abs=1), "the layers had the time they are given"
    assert run.record.status == "cancelled"
    assert b'"session_snapshot":{' in run.events[-1].payload
    assert w.hooks.log[-1] == "released"


# Reading.


async def test_open_tail_of_a_local_run_reads_memory(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"chunks": 3, "chunk": "x", "delay_ms": 1000}))
        tail = await w.supervisor.open_tail(run_id, START)
        seen: list[str] = []
        while True:
            batch = await tail.next()
            seen.extend(event.type for event in batch.events)
            if batch.end is not None:
                break
        assert batch.end == "terminal"
        assert seen == w.run(run_id).types
        assert w.store.calls["read_events"] == 0


async def test_open_tail_of_an_unknown_run(autojump_clock: MockClock) -> None:
    async with world() as w:
        with pytest.raises(RunNotFoundError):
            await w.supervisor.open_tail("nobody", START)
        w.store.down = True
        with pytest.raises(StoreUnavailableError):
            await w.supervisor.open_tail("nobody", START)


async def test_a_terminal_event_whose_write_was_repeated_is_read_once(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 1000}))
        tail = await w.supervisor.open_tail(run_id, START)
        await tail.next()

        w.store.lose_replies["finalize"] = 3
        run = await w.ended(run_id)
        await trio.sleep(10)
        assert w.store.calls["finalize"] == 4
        late = await w.supervisor.open_tail(run_id, START)
        for reader in (tail, late):
            types: Counter[str] = Counter()
            end = None
            while end is None:
                batch = await reader.next()
                types.update(event.type for event in batch.events)
                end = batch.end
            assert types["run_succeeded"] == 1
        assert run.types.count("run_succeeded") == 1


async def test_end_streams_ends_remote_tails(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.runs["theirs"] = FakeRun(record("theirs"), Owner("other", 7))
        tail = await w.supervisor.open_tail("theirs", START)
        w.supervisor.end_streams()
        assert (await tail.next()).end == "drain"


# Readiness.


async def test_readiness(autojump_clock: MockClock) -> None:
    async with world() as w:
        assert await w.supervisor.readiness() == "ready"
        w.store.down = True
        assert await w.supervisor.readiness() == "store_unavailable"
        w.supervisor.stop_accepting()
        assert await w.supervisor.readiness() == "draining"
        assert w.supervisor.draining


async def test_a_store_that_takes_too_long_is_not_ready(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.before = lambda name: trio.sleep(60 if name == "ping" else 0)
        began = trio.current_time()
        assert await w.supervisor.readiness() == "store_unavailable"
        assert trio.current_time() - began == pytest.approx(2)


# Draining.


async def test_a_create_in_progress_finishes_and_is_ended_by_the_drain(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.before = slow_create
        created: list[str] = []

        async def client() -> None:
            created.append(await w.create(prompt(), model(text())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            await wait_all_tasks_blocked()
            nursery.start_soon(w.supervisor.drain, 0)
            await wait_all_tasks_blocked()
            with pytest.raises(SchedulerStoppingError):
                await w.create(prompt(), model(text()))
        [run_id] = created
        assert w.run(run_id).types == ["run_failed"]
        assert w.supervisor.active_runs == 0
        assert len(w.store.runs) == 1, "a refused create stores nothing"


async def test_drain_without_runs_returns_at_once(autojump_clock: MockClock) -> None:
    async with world() as w:
        began = trio.current_time()
        await w.supervisor.drain(30)
        assert trio.current_time() == began


async def test_drain_returns_when_the_last_run_has_ended(autojump_clock: MockClock) -> None:
    async with world() as w:
        for seconds in (1, 4):
            await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": seconds * 1000}))
        began = trio.current_time()
        await w.supervisor.drain(30)
        assert trio.current_time() - began == pytest.approx(4, abs=0.2)
        assert {run.record.status for run in w.store.runs.values()} == {"succeeded"}


async def test_create_before_the_supervisor_serves_is_refused(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.supervisor.stop_accepting()
        with pytest.raises(SchedulerStoppingError):
            await w.create(prompt(), model(text()))
        assert w.store.calls["create_run"] == 0


async def test_retiring_without_a_store_is_no_failure(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.supervisor.retire()
        w.store.down = True
        await w.supervisor.retire()
        assert w.store.calls["retire"] == 2


# Services.


async def test_a_given_up_service_is_reported(autojump_clock: MockClock) -> None:
    async def broken(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise RuntimeError("a bug")

    spec = ServiceSpec(name="broken", serve=broken, budget=RestartBudget(restarts=1, seconds=60))
    async with world(services=(spec,)) as w:
        with trio.fail_after(10):
            await w.supervisor.failed.wait()
        assert isinstance(w.supervisor.failure, ServiceBudgetSpentError)
        assert w.supervisor.failure.service == "broken"
        assert (await w.ended(await w.create(prompt(), model(text())))).record.status == "succeeded"


async def test_an_outage_past_the_bound_stops_the_run_and_is_written_when_the_store_is_back(
    autojump_clock: MockClock,
) -> None:
    async with world(outage_seconds=60) as w:
        run_id = await w.create(prompt(), model({"chunks": 10_000, "chunk": "x", "delay_ms": 500}))
        await trio.sleep(5)
        w.store.down = True
        await trio.sleep(120)
        assert w.run(run_id).record.status == "running"
        w.store.down = False
        with trio.fail_after(5):
            run = await w.ended(run_id)
        assert run.types.count("run_failed") == 1
        assert f'"reason":"{StopKind.STORE_UNAVAILABLE}"'.encode() in run.events[-1].payload
        assert b"DIFY_AGENT_STORE_OUTAGE_SECONDS" in run.events[-1].payload
        assert [event.id.n for event in run.events] == list(range(1, len(run.events) + 1))
        assert w.supervisor.active_runs == 0


@pytest.mark.parametrize(
    "turn",
    [{"hang": True}, {"hang": True, "after_chunks": 3}, {"chunks": 10_000, "delay_ms": 500}],
    ids=["silent", "fell silent", "streaming"],
)
async def test_an_outage_past_the_bound_stops_every_run_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, turn: dict[str, Any]
) -> None:
    """Also one that has nothing to write, of which the publisher knows nothing."""
    interrupted: list[str] = []
    real = RunWork.interrupt
    monkeypatch.setattr(RunWork, "interrupt", lambda work, reason: (interrupted.append(reason), real(work, reason))[1])
    async with world(outage_seconds=60) as w:
        run_id = await w.create(prompt(), model(turn))
        await trio.sleep(5)
        w.store.down = True
        await trio.sleep(50)
        assert interrupted == []
        await trio.sleep(100)
        assert interrupted == [StopKind.STORE_UNAVAILABLE]
        w.store.down = False
        later = await w.create(prompt(), model(text()))
        run = await w.ended(run_id)
        assert run.types.count("run_failed") == 1
        assert run.events[-1].payload.count(b"The run store was unavailable for 60 s") == 1
        assert (await w.ended(later)).record.status == "succeeded"


async def test_an_outage_within_the_bound_is_not_noticed(autojump_clock: MockClock) -> None:
    async with world(outage_seconds=60) as w:
        run_id = await w.create(prompt(), model({"chunks": 100, "chunk": "x", "delay_ms": 500}))
        await trio.sleep(2)
        w.store.down = True
        await trio.sleep(40)
        w.store.down = False
        run = await w.ended(run_id)
        assert run.record.status == "succeeded"
        assert b'"output":"' + b"x" * 100 in run.events[-1].payload


async def test_runs_that_nobody_can_cancel_any_more_fail(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"hang": True}))

        async def broken(name: str) -> None:
            if name == "look":
                raise RuntimeError("redis read failed")

        w.store.before = broken
        run = await w.ended(run_id)
        assert w.supervisor.failed.is_set()
    assert run.record.status == "failed"
    assert run.record.error == "run cancellation observer failed: redis read failed"
    assert b'"reason":"cancellation_observer"' in run.events[-1].payload


async def test_a_run_does_not_inherit_its_creators_context(autojump_clock: MockClock) -> None:
    request: ContextVar[str] = ContextVar("request")
    seen: list[str | None] = []

    async def look() -> None:
        await trio.lowlevel.checkpoint()
        seen.append(request.get(None))

    async with world() as w:
        w.hooks.create = look
        request.set("headers with a token")
        await w.ended(await w.create(prompt(), hooked(), model(text())))
    assert seen == [None]
