"""Admission: the counter by itself, and that every kind of ending gives the capacity back."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from tests.unit.actors.world import World, hooked, model, prompt, text, tools, world
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.errors import SchedulerStoppingError, StoreUnavailableError, TooManyActiveRunsError
from dify_agent.store.base import CancelIntent
from dify_agent.supervisor.admission import ActiveRuns, RunLimits

HANG = {"hang": True}
ONE = RunLimits(total=1)


def tenant(name: str) -> dict[str, Any]:
    config = {"tenant_id": name, "agent_mode": "agent_app", "invoke_from": "service-api"}
    return {"name": "context", "type": "dify.execution_context", "config": config}


# The counter.


def test_no_limits_admit_everything() -> None:
    active = ActiveRuns()
    for number in range(1000):
        active.admit(str(number), "")
    assert len(active) == 1000


def test_the_total_counts_all_tenants() -> None:
    active = ActiveRuns(RunLimits(total=2))
    active.admit("1", "a")
    active.admit("2", "b")
    with pytest.raises(TooManyActiveRunsError) as refused:
        active.admit("3", "c")
    assert refused.value.limit == "process"
    assert len(active) == 2
    active.release("1")
    active.admit("3", "c")


def test_each_tenant_has_a_count_and_those_without_one_share_theirs() -> None:
    active = ActiveRuns(RunLimits(per_tenant=1))
    for number, name in enumerate(("a", "b", "")):
        active.admit(str(number), name)
    for name in ("a", "b", ""):
        assert active.reached(name) == "tenant"
        with pytest.raises(TooManyActiveRunsError) as refused:
            active.admit("more", name)
        assert refused.value.limit == "tenant"
    assert active.reached("c") is None
    active.release("0")
    assert active.reached("a") is None
    assert active.reached("b") == "tenant"


def test_a_release_counts_once() -> None:
    active = ActiveRuns(RunLimits(total=2, per_tenant=2))
    active.admit("1", "a")
    active.admit("2", "a")
    active.release("1")
    active.release("1")
    active.release("never admitted")
    active.admit("3", "a")
    assert active.reached("a") is not None


# Admission in the supervisor.


async def assert_free(w: World) -> None:
    """Capacity for one is there, and for no second one."""
    run_id = await w.create(prompt(), model(HANG))
    with pytest.raises(TooManyActiveRunsError):
        await w.create(prompt(), model(HANG))
    await w.cancel(run_id)
    await w.ended(run_id)


async def refused(w: World) -> None:
    with pytest.raises(TooManyActiveRunsError):
        await w.create(prompt(), model(HANG))


async def test_over_the_limit_nothing_is_stored(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        await w.create(prompt(), model(HANG))
        calls = w.store.calls.copy()
        await refused(w)
        assert w.store.calls == calls
        assert len(w.store.runs) == len(w.store.owned["me"]) == 1
        assert w.supervisor.active_runs == 1


async def test_parallel_creates_never_exceed_the_limit(autojump_clock: MockClock) -> None:
    async with world(limits=RunLimits(total=3)) as w:
        w.store.before = lambda name: trio.sleep(1 if name == "create_run" else 0)
        outcomes: list[str] = []

        async def client() -> None:
            try:
                await w.create(prompt(), model(HANG))
                outcomes.append("created")
            except TooManyActiveRunsError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client)
        assert (outcomes.count("created"), outcomes.count("refused")) == (3, 47)
        assert len(w.store.runs) == 3


async def test_tenants_are_read_off_the_request(autojump_clock: MockClock) -> None:
    async with world(limits=RunLimits(per_tenant=1)) as w:
        for layers in ((tenant("a"),), (tenant("b"),), ()):
            await w.create(prompt(), *layers, model(HANG))
            with pytest.raises(TooManyActiveRunsError):
                await w.create(prompt(), *layers, model(HANG))
        assert len(w.store.runs) == 3


async def test_draining_is_said_before_full(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        await w.create(prompt(), model(HANG))
        w.supervisor.stop_accepting()
        with pytest.raises(SchedulerStoppingError):
            await w.create(prompt(), model(HANG))


# Endings.


async def succeed(w: World) -> None:
    await w.ended(await w.create(prompt(), model(text())))


async def fail(w: World) -> None:
    await w.ended(await w.create(prompt(), model({"error": "boom"})))


async def fail_before_entry(w: World) -> None:
    await w.ended(await w.create(prompt(), {"name": "llm", "type": "no.such.layer"}))


async def cancel(w: World) -> None:
    run_id = await w.create(prompt(), model(HANG))
    await w.cancel(run_id)
    await w.ended(run_id)


async def cancel_before_start(w: World) -> None:
    async def cancelled_at_once(run_id: str) -> None:
        w.store.after_create = None
        await w.cancel(run_id)

    w.store.after_create = cancelled_at_once
    await w.ended(await w.create(prompt(), model(HANG)))


async def deadline(w: World) -> None:
    await w.ended(await w.create(prompt(), model(HANG)))


async def phase_timeout(w: World) -> None:
    w.hooks.enter = trio.sleep_forever
    await w.ended(await w.create(prompt(), hooked(), model(text())))


async def refused_create(w: World) -> None:
    w.store.down = True
    with pytest.raises(StoreUnavailableError):
        await w.create(prompt(), model(text()))
    w.store.down = False
    await wait_all_tasks_blocked()


async def refused_create_that_was_written(w: World) -> None:
    w.store.lose_replies["create_run"] = 2
    with pytest.raises(StoreUnavailableError):
        await w.create(prompt(), model(text()))
    await wait_all_tasks_blocked()


async def bug_in_the_store(w: World) -> None:
    async def broken(name: str) -> None:
        if name == "create_run":
            raise RuntimeError("a bug")

    w.store.before = broken
    with pytest.raises(trio.EndOfChannel):
        await w.create(prompt(), model(text()))
    w.store.before = None
    await wait_all_tasks_blocked()


async def record_lost(w: World) -> None:
    run_id = await w.create(prompt(), model({"chunks": 5, "chunk": "x", "delay_ms": 1000}))
    del w.store.runs[run_id]
    await trio.sleep(30)


async def record_lost_at_the_end(w: World) -> None:
    async def gone(name: str) -> None:
        if name == "finalize":
            w.store.runs.clear()

    w.store.before = gone
    await w.create(prompt(), model(text()))
    await trio.sleep(30)
    w.store.before = None


async def verdict(w: World) -> None:
    run_id = await w.create(prompt(), model({"chunks": 5, "chunk": "x", "delay_ms": 1000}))
    run = w.run(run_id)
    run.record = run.record.model_copy(update={"status": "failed"})
    await trio.sleep(30)


async def left_behind(w: World) -> None:
    call = {"tool_calls": [{"name": "stubborn", "args": {}}]}
    stubborn = {"name": "stubborn", "hang": True, "swallow_cancel_ms": 1_000_000}
    run_id = await w.create(prompt(), tools(stubborn), model(call, text()))
    await trio.sleep(1)
    await w.cancel(run_id)
    await w.ended(run_id)


async def outage_at_the_end(w: World) -> None:
    run_id = await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 1000}))
    w.store.down = True
    await trio.sleep(5)
    await refused(w)
    w.store.down = False
    await w.ended(run_id)


async def client_left(w: World) -> None:
    w.store.before = lambda name: trio.sleep(5 if name == "create_run" else 0)
    with trio.move_on_after(1):
        await w.create(prompt(), model(text()))
    await refused(w)
    w.store.before = None
    await trio.sleep(10)


ENDINGS: tuple[Callable[[World], Awaitable[None]], ...] = (
    succeed,
    fail,
    fail_before_entry,
    cancel,
    cancel_before_start,
    deadline,
    phase_timeout,
    refused_create,
    refused_create_that_was_written,
    bug_in_the_store,
    record_lost,
    record_lost_at_the_end,
    verdict,
    left_behind,
    outage_at_the_end,
    client_left,
)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
async def test_every_ending_gives_the_capacity_back(
    autojump_clock: MockClock, ending: Callable[[World], Awaitable[None]]
) -> None:
    async with world(limits=ONE, run_timeout_seconds=100) as w:
        await ending(w)
        await assert_free(w)


async def test_a_drain_waits_for_capacity_and_frees_it(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        await w.create(prompt(), model(HANG))
        await w.supervisor.drain(1)
        assert len(w.supervisor._active) == 0


async def test_a_run_that_ends_by_itself_after_an_intent_frees_capacity(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        run_id = await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 1000}))
        w.run(run_id).intent = CancelIntent("late", None, w.run(run_id).record.created_at)
        await w.ended(run_id)
        await assert_free(w)
