"""Every way a run can end, on a virtual clock: exactly one terminal event, the right one, in bounded time."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
from pydantic_ai.usage import RequestUsage
from tests.unit.actors.fake_store import FakeRun
from tests.unit.actors.world import Hooks, history, hooked, model, prompt, text, tools, world
from trio.testing import MockClock, wait_all_tasks_blocked

from agenton.compositor import LayerProvider
from agenton.layers import EmptyLayerConfig, EmptyRuntimeState, NoLayerDeps, PlainLayer
from dify_agent.errors import SchedulerStoppingError
from dify_agent.model.scripted import ScriptedStream
from dify_agent.protocol.usage import MAX_TOKENS
from dify_agent.store.base import AppendBatch, CancelIntent

HANG = {"hang": True}


def data(run: FakeRun) -> dict[str, Any]:
    """The terminal event's data."""
    terminals = [event for event in run.events if event.is_terminal]
    assert terminals == run.events[-1:], "exactly one terminal event, and it is the last"
    return json.loads(terminals[0].payload)["data"]


def states(run: FakeRun) -> dict[str, str]:
    snapshot = data(run)["session_snapshot"]
    return {layer["name"]: layer["lifecycle_state"] for layer in snapshot["layers"]}


async def test_text_succeeds(autojump_clock: MockClock) -> None:
    async with world() as w:
        run = await w.ended(await w.create(prompt(), model(text("hello"))))
    assert run.types[0] == "run_started"
    assert set(run.types[1:-1]) == {"pydantic_ai_event"}
    assert data(run)["output"] == "hello"
    assert data(run)["usage"]["prompt_tokens"] == 10
    assert run.record.status == "succeeded"
    assert [event.id.n for event in run.events] == list(range(1, len(run.events) + 1))
    assert w.supervisor.active_runs == 0


@pytest.mark.parametrize("tokens", [10**4299, 9 * 10**4299, -(10**4299), 1.5, float("inf"), float("nan")])
async def test_counts_of_any_size_leave_an_ending_that_can_be_stored(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tokens: Any
) -> None:
    usage = RequestUsage(input_tokens=tokens, output_tokens=tokens, details={"reasoning": tokens})
    monkeypatch.setattr(ScriptedStream, "usage", usage)
    calls = {"tool_calls": [{"name": "none", "args": {}}]}
    async with world() as w:
        run = await w.ended(await w.create(prompt(), history(), model(calls, text("hello"))))
    assert data(run)["output"] == "hello"
    counts = [data(run)["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts)


async def test_updated_at_is_the_terminal_events_time(autojump_clock: MockClock) -> None:
    async with world() as w:
        run = await w.ended(await w.create(prompt(), model(text())))
    created_at = json.loads(run.events[-1].payload)["created_at"]
    assert json.loads(run.record.model_dump_json())["updated_at"] == created_at


async def test_tool_round_and_history(autojump_clock: MockClock) -> None:
    call = {"tool_calls": [{"name": "look", "args": {}}]}
    async with world() as w:
        layers = (prompt(), history(), tools({"name": "look", "result": 7}), model(call, text("seven")))
        run = await w.ended(await w.create(*layers))
    messages = data(run)["session_snapshot"]["layers"][1]["runtime_state"]["messages"]
    assert [message["kind"] for message in messages] == ["request", "response", "request", "response"]


@pytest.mark.parametrize("turn", [HANG, {"chunks": 1000, "chunk": "x", "delay_ms": 1000}])
async def test_cancel_while_the_model_works(autojump_clock: MockClock, turn: dict[str, Any]) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), history(), model(turn))
        await trio.sleep(5)
        await w.cancel(run_id, "first")
        await w.cancel(run_id, "second")
        run = await w.ended(run_id)
    assert data(run)["reason"] == "first"
    assert run.record.status == "cancelled"
    assert run.record.error == "first"
    assert states(run) == {"prompt": "suspended", "history": "suspended", "llm": "suspended"}
    tail = data(run)["session_snapshot"]["layers"][1]["runtime_state"]["messages"][-1]
    assert tail["state"] == "interrupted"
    assert run.intent is None


async def test_cancel_before_the_work_leaves_only_the_terminal(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.after_create = w.cancel
        run = await w.ended(await w.create(prompt(), model(text())))
    assert run.types == ["run_cancelled"]
    assert data(run) == {"reason": "because", "message": None, "session_snapshot": None}


async def test_shutdown_before_the_work_leaves_only_the_terminal(autojump_clock: MockClock) -> None:
    async with world() as w:

        async def drain(_run_id: str) -> None:
            nursery.start_soon(w.supervisor.drain, 0)
            await trio.sleep(1)

        w.store.after_create = drain
        async with trio.open_nursery() as nursery:
            run_id = await w.create(prompt(), model(text()))
        assert w.run(run_id).types == ["run_failed"]
        assert data(w.run(run_id))["reason"] == "shutdown"
        with pytest.raises(SchedulerStoppingError):
            await w.create(prompt(), model(text()))


def _intent() -> CancelIntent:
    return CancelIntent("early", None, datetime.now(UTC))


async def test_cancel_that_only_the_sweep_sees(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        w.run(run_id).intent = _intent()  # accepted elsewhere, the bell was lost
        with trio.fail_after(5):
            run = await w.ended(run_id)
    assert data(run)["reason"] == "early"


async def test_cancel_that_comes_through_the_inbox(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        w.run(run_id).intent = _intent()
        await w.store.ring("me", run_id)
        with trio.fail_after(1):
            run = await w.ended(run_id)
    assert run.record.status == "cancelled"


async def test_success_that_loses_against_an_intent_is_cancelled(autojump_clock: MockClock) -> None:
    async with world() as w:

        async def intent_first(name: str) -> None:
            if name == "finalize":
                w.run(run_id).intent = _intent()

        run_id = await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 100}))
        w.store.before = intent_first
        run = await w.ended(run_id)
    assert run.record.status == "cancelled"
    assert w.store.calls["finalize"] == 1


async def test_deadline_keeps_what_was_streamed(autojump_clock: MockClock) -> None:
    async with world(run_timeout_seconds=5.55) as w:
        run = await w.ended(await w.create(prompt(), model({"chunks": 1000, "chunk": "x", "delay_ms": 100})))
    assert data(run)["error"] == "Agent run exceeded the configured limit of 5.55 seconds"
    assert data(run)["error_type"] == "agent_run_limit_exceeded"
    assert data(run)["reason"] is None
    deltas = [json.loads(event.payload).get("agent_message_delta") or "" for event in run.events]
    assert "".join(deltas) == "x" * 55


async def test_deadline_covers_only_the_loop(autojump_clock: MockClock) -> None:
    slow = 50.0
    async with world(run_timeout_seconds=0.001) as w:
        w.hooks.enter = partial(trio.sleep, slow)
        w.hooks.leave = partial(trio.sleep, slow)
        run = await w.ended(await w.create(prompt(), hooked(), model(text())))
    assert run.record.status == "succeeded"


async def test_timeout_error_inside_the_loop_is_no_deadline(autojump_clock: MockClock) -> None:
    async with world() as w:
        run = await w.ended(await w.create(prompt(), model({"error": "timed out"})))
    assert data(run) | {"session_snapshot": None} == {
        "error": "timed out",
        "error_type": None,
        "reason": None,
        "session_snapshot": None,
    }
    assert states(run) == {"prompt": "suspended", "llm": "suspended"}


async def test_failure_before_entry_has_no_snapshot(autojump_clock: MockClock) -> None:
    async with world() as w:
        run = await w.ended(await w.create(prompt(), {"name": "llm", "type": "no.such.layer"}))
    assert run.types == ["run_started", "run_failed"]
    assert data(run)["error"] == "\"Layer type id 'no.such.layer' is not registered.\""
    assert data(run)["session_snapshot"] is None


async def test_failure_while_entering_leaves_the_entered_layers(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise ValueError("no sandbox today")

    async with world() as w:
        w.hooks.create = fail
        run = await w.ended(await w.create(prompt(), hooked(), model(text())))
    assert data(run)["error"] == "no sandbox today"
    assert data(run)["session_snapshot"] is None
    assert w.hooks.log == ["acquired", "released"]


async def test_failure_after_entry_has_the_snapshot(autojump_clock: MockClock) -> None:
    async with world() as w:
        run = await w.ended(await w.create(prompt("  "), hooked(), model(text())))
    assert data(run)["error"] == "run.user_prompts must not be empty"
    assert states(run)["hooks"] == "suspended"


async def test_exit_error_fails_the_run_and_keeps_the_snapshot(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise OSError("disk full")

    async with world() as w:
        w.hooks.suspend = fail
        run = await w.ended(await w.create(prompt(), hooked(), model(text())))
    assert data(run)["error"] == "disk full"
    assert states(run)["hooks"] == "suspended"


async def test_on_exit_governs_every_ending(autojump_clock: MockClock) -> None:
    on_exit = {"default": "suspend", "layers": {"hooks": "delete"}}
    async with world() as w:
        run_id = await w.create(prompt(), hooked(), model(HANG), on_exit=on_exit)
        await wait_all_tasks_blocked()
        await w.cancel(run_id)
        run = await w.ended(run_id)
    assert states(run) == {"prompt": "suspended", "hooks": "closed", "llm": "suspended"}
    assert w.hooks.log == ["acquired", "create", "delete", "released"]


async def test_exit_is_shielded_from_the_cancel_and_survives_a_layers_own_nursery(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.hooks.nursery = True
        w.hooks.leave = partial(trio.sleep, 30)
        run_id = await w.create(prompt(), hooked(), model(HANG))
        await trio.sleep(1)
        began = trio.current_time()
        await w.cancel(run_id)
        run = await w.ended(run_id)
        assert trio.current_time() - began == pytest.approx(30, abs=0.1)
    assert run.record.status == "cancelled"
    assert w.hooks.log[-1] == "released"


async def forever() -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("hook", "setting", "seconds"),
    [("enter", "ENTER_TIMEOUT_SECONDS", 300), ("leave", "EXIT_TIMEOUT_SECONDS", 60)],
)
async def test_a_phase_that_hangs_is_bounded(
    autojump_clock: MockClock, hook: str, setting: str, seconds: float
) -> None:
    async with world() as w:
        setattr(w.hooks, hook, forever)
        began = trio.current_time()
        run = await w.ended(await w.create(prompt(), hooked(), model(text())))
        assert trio.current_time() - began == pytest.approx(seconds, abs=1)
    assert data(run)["reason"] == "phase_timeout"
    assert setting in data(run)["error"]


async def ignore_cancellation() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(500)


async def test_work_that_ignores_the_cancel_is_left_behind(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.hooks.create = ignore_cancellation
        run_id = await w.create(prompt(), hooked(), model(text()))
        await trio.sleep(1)
        began = trio.current_time()
        await w.cancel(run_id)
        run = await w.ended(run_id)
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)
        assert w.supervisor.active_runs == 0
    assert data(run) == {"reason": "because", "message": None, "session_snapshot": None}


async def test_a_tool_that_swallows_the_deadline_still_ends_the_run(autojump_clock: MockClock) -> None:
    call = {"tool_calls": [{"name": "stubborn", "args": {}}]}
    stubborn = {"name": "stubborn", "hang": True, "swallow_cancel_ms": 100_000}
    async with world(run_timeout_seconds=20) as w:
        began = trio.current_time()
        run = await w.ended(await w.create(prompt(), tools(stubborn), model(call, text())))
        assert trio.current_time() - began == pytest.approx(30, abs=0.1)
    assert data(run)["error_type"] == "agent_run_limit_exceeded"


async def test_a_tool_that_swallows_a_cancel_for_a_moment_is_waited_for(autojump_clock: MockClock) -> None:
    call = {"tool_calls": [{"name": "stubborn", "args": {}}]}
    stubborn = {"name": "stubborn", "hang": True, "swallow_cancel_ms": 3_000}
    async with world() as w:
        run_id = await w.create(prompt(), history(), tools(stubborn), model(call, text("too late")))
        await trio.sleep(1)
        await w.cancel(run_id)
        run = await w.ended(run_id)
    assert run.record.status == "cancelled"
    assert states(run)["history"] == "suspended"


async def test_shutdown_lets_runs_finish_within_the_grace(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"chunks": 3, "chunk": "x", "delay_ms": 1000}))
        await w.supervisor.drain(10)
        assert w.run(run_id).record.status == "succeeded"


async def test_shutdown_fails_what_is_left(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), history(), model(HANG))
        await trio.sleep(1)
        await w.supervisor.drain(2)
        run = w.run(run_id)
    assert data(run)["error"] == "run cancelled during server shutdown"
    assert data(run)["reason"] == "shutdown"
    assert data(run)["session_snapshot"] is not None


async def test_cancel_during_the_grace_is_honoured(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.supervisor.drain, 20)
            await trio.sleep(5)
            await w.cancel(run_id)
        assert w.run(run_id).record.status == "cancelled"


async def test_a_cancel_at_the_shutdown_failures_write_wins(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))

        async def intent_first(name: str) -> None:
            if name == "finalize":
                w.run(run_id).intent = _intent()

        w.store.before = intent_first
        await w.supervisor.drain(0)
        assert w.run(run_id).record.status == "cancelled"


async def test_teardown_of_everything_still_ends_the_runs(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.hooks.leave = partial(trio.sleep, 5)
        running = await w.create(prompt(), hooked(), model(HANG))
        await trio.sleep(1)
    run = w.run(running)
    assert data(run)["reason"] == "shutdown"
    assert states(run)["hooks"] == "suspended"


async def test_teardown_while_a_run_is_finalised_still_writes(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.before = lambda name: trio.sleep(5 if name == "finalize" else 0)
        run_id = await w.create(prompt(), model(text()))
        await trio.sleep(1)
    assert w.run(run_id).record.status == "succeeded"
    assert data(w.run(run_id))["output"] == "hi"


async def test_teardown_without_a_store_is_bounded(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model(HANG))
        await trio.sleep(1)
        w.store.down = True
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(100, abs=1), "stop, leave the layers, write: once each"
    assert w.run(run_id).record.status == "running"


def in_a_thread(function: Callable[[], Any]) -> LayerProvider[Any]:
    """A layer type ``test.sync`` with one sync tool ``work``."""

    class SyncTool(PlainLayer[NoLayerDeps, EmptyLayerConfig, EmptyRuntimeState]):
        type_id: ClassVar[str | None] = "test.sync"

        @property
        def tools(self) -> list[Callable[..., Any]]:
            def work() -> Any:
                return function()

            return [work]

    return LayerProvider.from_layer_type(SyncTool)


SYNC = {"name": "sync", "type": "test.sync"}
CALL_WORK = {"tool_calls": [{"name": "work", "args": {}}]}


async def test_a_cancelled_run_with_a_tool_in_a_thread_keeps_its_snapshot() -> None:
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait()

    provider = in_a_thread(block)
    async with world(providers=[provider], cancel_timeout_seconds=2) as w:
        run_id = await w.create(prompt(), history(), SYNC, model(CALL_WORK, text()))
        await trio.to_thread.run_sync(begun.wait)
        await w.cancel(run_id)
        try:
            run = await w.ended(run_id)
        finally:
            release.set()
    assert run.record.status == "cancelled"
    assert states(run)["history"] == "suspended"


async def test_a_cancelled_tool_that_has_no_thread_yet_is_not_waited_for(autojump_clock: MockClock) -> None:
    provider = in_a_thread(lambda: 1)
    async with world(providers=[provider]) as w:
        for _ in range(w.environment.tool_threads.total_tokens):
            w.environment.tool_threads.acquire_on_behalf_of_nowait(object())
        run_id = await w.create(prompt(), history(), SYNC, model(CALL_WORK, text()))
        await trio.sleep(1)
        began = trio.current_time()
        await w.cancel(run_id)
        run = await w.ended(run_id)
        assert trio.current_time() - began < 0.1
    assert states(run)["history"] == "suspended"


async def test_a_tool_that_exits_the_process_fails_its_run_only(autojump_clock: MockClock) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async with world() as w:
        sibling = await w.create(prompt(), model({"chunks": 5, "chunk": "x", "delay_ms": 1000}))
        w.hooks.create = leave
        run = await w.ended(await w.create(prompt(), hooked(), model(text())))
        assert data(run)["error"] == "The run's work was ended by SystemExit: 3"
        assert (await w.ended(sibling)).record.status == "succeeded"


async def test_cleanup_run_drops_entries_without_a_layer(autojump_clock: MockClock) -> None:
    async with world() as w:
        first = await w.ended(await w.create(prompt(), hooked(), model(text())))
        snapshot = data(first)["session_snapshot"]
        w.hooks.log.clear()
        second = await w.ended(
            await w.create(prompt(), hooked(), session_snapshot=snapshot, on_exit={"default": "delete", "layers": {}})
        )
    assert second.types == ["run_started", "run_succeeded"]
    assert data(second)["output"] is None
    assert "usage" not in data(second)
    assert states(second) == {"prompt": "closed", "hooks": "closed"}
    assert w.hooks.log == ["acquired", "delete", "released"]


async def test_one_runs_crash_touches_no_sibling(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        sibling = await w.create(prompt(), model({"chunks": 5, "chunk": "x", "delay_ms": 1000}))

        async def crash() -> None:
            raise ExceptionGroup("several", [ValueError("first"), KeyError("second")])

        w.hooks.create = crash
        crashed = await w.ended(await w.create(prompt(), hooked(), model(text())))
        assert data(crashed)["error"] == "first"
        assert (await w.ended(sibling)).record.status == "succeeded"


def test_hooks_default_to_nothing() -> None:
    assert Hooks().log == []


async def test_teardown_leaves_time_to_finalise_a_run_whose_work_ignores_it(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.hooks.create = ignore_cancellation
        run_id = await w.create(prompt(), hooked(), model(text()))
        await trio.sleep(1)
        began = trio.current_time()
        w.nursery.cancel_scope.cancel()
        with trio.move_on_after(100, shield=True):
            await w.ended(run_id)
        assert trio.current_time() - began == pytest.approx(70, abs=0.1)
    assert data(w.run(run_id))["reason"] == "shutdown"


async def test_a_run_whose_event_the_store_refuses_fails(autojump_clock: MockClock) -> None:
    async with world() as w:
        append = w.store._append

        def refuse_large(batch: AppendBatch) -> Any:
            if any(len(event.payload) > 5000 for event in batch.events):
                return RuntimeError("Protocol error: invalid bulk length")
            return append(batch)

        w.store._append = refuse_large
        run = await w.ended(await w.create(prompt(), model({"chunks": 2, "chunk": "x" * 5000, "delay_ms": 500})))
    assert data(run)["error"].startswith("The store refused an event of this run (Protocol error")
    assert [event.id.n for event in run.events] == list(range(1, len(run.events) + 1))
