"""The end of a run: the decision table of protocol 6.3, lost replies, outages, and endings that are no JSON."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import Desk, OpenLog, desk, event, flushed, payload
from tests.unit.actors.world import BOUNDS, COALESCING
from trio.testing import MockClock, wait_all_tasks_blocked

from agenton.compositor import CompositorSessionSnapshot, LayerSessionSnapshot
from agenton.layers import LifecycleState
from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.finalize import Finalizer, proposed_ending
from dify_agent.actors.messages import Failed, Interrupted, Stop, StopKind, Succeeded, WorkDone
from dify_agent.actors.publisher import KEEP_SECONDS
from dify_agent.actors.run_log import BATCH_BYTES, BATCH_EVENTS
from dify_agent.events.flusher import FlushTimer
from dify_agent.protocol.event_id import START
from dify_agent.protocol.schemas import AgentRunUsage, DeferredToolCallPayload, RunFailureType, RunStatus
from dify_agent.store.base import CancelIntent, Owner, StoredEvent

SNAPSHOT = CompositorSessionSnapshot(
    layers=[LayerSessionSnapshot(name="a", lifecycle_state=LifecycleState.SUSPENDED, runtime_state={})]
)
USAGE = AgentRunUsage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
SUCCESS = WorkDone(Succeeded("out"), SNAPSHOT, USAGE)
FAILURE = WorkDone(Failed("broke", RunFailureType.AGENT_RUN_LIMIT_EXCEEDED, "why"), SNAPSHOT)
STOPPED = WorkDone(Interrupted(), SNAPSHOT)
CANCEL, SHUTDOWN = Stop(StopKind.CANCEL), Stop(StopKind.SHUTDOWN)


@dataclass
class Ending:
    """One run about to end."""

    desk: Desk
    log: OpenLog
    finalizer: Finalizer
    kinds: list[str] = field(default_factory=list)

    @property
    def store(self) -> FakeStore:
        return self.desk.store

    @property
    def run(self) -> FakeRun:
        return self.store.runs["run"]

    def intend(self) -> None:
        self.run.intent = CancelIntent("reason", "message", datetime.now(UTC))

    def intend_before(self, operation: str) -> None:
        """The intent arrives just before the first ``operation``."""

        async def before(name: str) -> None:
            if name == operation and not self.kinds:
                self.kinds.append(name)
                self.intend()

        self.store.before = before

    def data(self) -> dict[str, Any]:
        """The terminal event's data; there is exactly one, in the store and in memory."""
        assert [e.is_terminal for e in self.run.events].count(True) == 1
        assert self.run.events[-1].is_terminal
        live: tuple[StoredEvent, ...] = self.log.live.after(self.run.events[-2].id, 10) if self.run.events[1:] else ()
        assert sum(e.is_terminal for e in live) <= 1
        return json.loads(self.run.events[-1].payload)["data"]


@asynccontextmanager
async def ending(*, queue_bytes: int = 1 << 20, serve: bool = True) -> AsyncIterator[Ending]:
    async with desk(queue_bytes=queue_bytes, serve=serve) as d:
        log = d.open("run")
        log.log.offer(payload("run_started"))
        env = RunEnvironment(
            store=d.store,
            owner=Owner("me", 1),
            publisher=d.publisher,
            flush_timer=FlushTimer(),
            providers=(),
            bounds=BOUNDS,
            coalescing=COALESCING,
            tool_concurrency=1,
            tool_threads=trio.CapacityLimiter(1),
            on_finished=lambda _run_id: None,
        )
        d.store.owned["me"] = {"run"}
        yield Ending(d, log, Finalizer(d.store.runs["run"].record, env, log.log, log.live))
        log.log.close()


# The decision table.


async def test_success(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(SUCCESS, None)
        assert e.data()["output"] == "out"
        assert e.data()["usage"]["total_tokens"] == 3
        assert (e.run.record.status, e.run.record.error) == ("succeeded", None)


async def test_deferred_call(autojump_clock: MockClock) -> None:
    call = DeferredToolCallPayload(tool_call_id="1", tool_name="ask", args={})
    async with ending() as e:
        await e.finalizer.end(WorkDone(Succeeded(deferred=call), SNAPSHOT), None)
        assert "output" not in e.data()
        assert e.data()["deferred_tool_call"]["tool_name"] == "ask"


async def test_failure(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(FAILURE, None)
        assert e.data() | {"session_snapshot": 0} == {
            "error": "broke",
            "error_type": "agent_run_limit_exceeded",
            "reason": "why",
            "session_snapshot": 0,
        }
        assert (e.run.record.error, e.run.record.error_type) == ("broke", "agent_run_limit_exceeded")


@pytest.mark.parametrize("setting", [None, "DIFY_AGENT_INNER_API_URL"])
async def test_the_log_names_the_setting_that_could_mend_a_failure(
    autojump_clock: MockClock, setting: str | None
) -> None:
    async with ending() as e:
        with capture_logs() as logs:
            await e.finalizer.end(WorkDone(Failed("broke", reason="why", setting=setting), SNAPSHOT), None)
        assert "setting" not in e.data()
    [line] = logs
    named = {} if setting is None else {"setting": setting}
    assert line == {
        "event": "run failed",
        "log_level": "info" if setting is None else "warning",
        "run_id": e.run.record.run_id,
        "reason": "why",
        "error_type": None,
        **named,
    }


@pytest.mark.parametrize("done", [SUCCESS, FAILURE, STOPPED])
@pytest.mark.parametrize("stop", [None, CANCEL, SHUTDOWN, Stop(StopKind.STORE_UNAVAILABLE), Stop(StopKind.OBSERVER)])
async def test_an_accepted_intent_wins_over_everything(
    autojump_clock: MockClock, done: WorkDone, stop: Stop | None
) -> None:
    async with ending() as e:
        e.intend()
        await e.finalizer.end(done, stop)
        assert e.run.record.status == "cancelled"
        assert e.run.record.error == "message"
        assert (e.data()["reason"], e.data()["message"]) == ("reason", "message")
        assert e.data()["session_snapshot"] is not None
        assert e.run.intent is None


@pytest.mark.parametrize("stop", [None, SHUTDOWN])
async def test_an_intent_that_comes_with_the_write_wins(autojump_clock: MockClock, stop: Stop | None) -> None:
    async with ending() as e:
        e.intend_before("finalize")
        await e.finalizer.end(SUCCESS, stop)
        assert e.run.record.status == "cancelled"


async def test_shutdown_keeps_a_success(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(SUCCESS, SHUTDOWN)
        assert e.run.record.status == "succeeded"


@pytest.mark.parametrize(
    ("stop", "error", "reason"),
    [
        (SHUTDOWN, "run cancelled during server shutdown", "shutdown"),
        (Stop(StopKind.OBSERVER, "boom"), "run cancellation observer failed: boom", "cancellation_observer"),
        (
            Stop(StopKind.STORE_UNAVAILABLE, "for 60 s"),
            "The run store was unavailable for 60 s (DIFY_AGENT_STORE_OUTAGE_SECONDS); the run was stopped.",
            "store_unavailable",
        ),
        (CANCEL, "The run was stopped (cancel).", None),
    ],
)
@pytest.mark.parametrize("done", [STOPPED, FAILURE])
async def test_stopped_without_an_intent(
    autojump_clock: MockClock, done: WorkDone, stop: Stop, error: str, reason: str | None
) -> None:
    async with ending() as e:
        await e.finalizer.end(done, stop)
        assert (e.data()["error"], e.data()["reason"]) == (error, reason)
        assert e.run.record.status == "failed"


GONE = "its record is gone from the store (restart without persistence, FLUSHALL or expired)"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (StopKind.SEALED, "its log belongs to someone else"),
        (StopKind.RECORD_LOST, GONE),
        (StopKind.RECORD_UNREADABLE, "its record cannot be read"),
    ],
)
async def test_a_run_that_cannot_be_ended_is_left_alone(autojump_clock: MockClock, kind: StopKind, why: str) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        with capture_logs() as lines:
            await e.finalizer.end(SUCCESS, Stop(kind))
        assert [(line["event"], line["kind"]) for line in lines] == [(f"run given up, {why}", kind)]
        assert e.run.types == ["run_started"]
        assert e.run.record.status == "running"


async def test_a_record_that_is_gone_ends_quietly(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        del e.store.runs["run"]
        await e.finalizer.end(SUCCESS, None)
        await e.finalizer.end(STOPPED, CANCEL)


async def test_success_without_a_snapshot_is_a_failure() -> None:
    assert proposed_ending(WorkDone(Succeeded("x")), None) == Failed(
        "Agenton run did not produce a session snapshot after exit."
    )
    assert proposed_ending(WorkDone(Interrupted()), None) == Failed("The run's work ended without a result.")


async def test_the_terminal_is_written_behind_the_last_event(autojump_clock: MockClock) -> None:
    async with ending() as e:
        e.store.before = lambda name: trio.sleep(1 if name == "append" else 0)
        e.log.offer("a", "b")
        await e.finalizer.end(SUCCESS, None)
        assert e.run.types == ["run_started", "pydantic_ai_event", "pydantic_ai_event", "run_succeeded"]
        assert [event.id.n for event in e.run.events] == [1, 2, 3, 4]


# The last events.


def fillers(events: Sequence[StoredEvent]) -> list[str]:
    return [json.loads(event.payload)["data"] for event in events if event.type == "pydantic_ai_event"]


def numbers(events: Sequence[StoredEvent]) -> list[int]:
    return [event.id.n for event in events]


def assert_whole(e: Ending, *texts: str) -> None:
    """The log is complete, in the store and in memory, and nothing is counted as waiting any more."""
    e.log.log.close()
    assert fillers(e.run.events) == list(texts)
    assert e.run.events[-1].is_terminal
    assert numbers(e.run.events) == list(range(1, len(texts) + 3))
    live = e.log.live.after(START, 1000)
    assert [event.id for event in live] == [event.id for event in e.run.events]
    assert e.desk.publisher.budget.used == 0


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("lost", [0, 3])
async def test_the_last_events_go_along_with_the_terminal(
    autojump_clock: MockClock, cancelled: bool, lost: int
) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        appends = e.store.calls["append"]
        e.store.lose_replies = {"finalize": lost, "finalize_cancel": lost}
        if cancelled:
            e.intend()
        e.log.offer("a", "b")
        await e.finalizer.end(SUCCESS, None)
        assert e.store.calls["append"] == appends
        assert e.run.record.status == ("cancelled" if cancelled else "succeeded")
        assert_whole(e, "a", "b")


async def test_what_is_being_written_is_waited_for(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        e.store.before = lambda name: trio.sleep(1 if name == "append" else 0)
        e.log.offer("a")
        await wait_all_tasks_blocked()
        appends = e.store.calls["append"]
        e.log.offer("b")
        await e.finalizer.end(SUCCESS, None)
        assert_whole(e, "a", "b")
        assert e.store.calls["append"] == appends


@pytest.mark.parametrize(
    ("count", "size", "appends"),
    [(BATCH_EVENTS, 1, 0), (BATCH_EVENTS + 1, 1, 1), (3 * BATCH_EVENTS, 1, 2), (2, BATCH_BYTES // 2 + 1, 1)],
)
async def test_more_than_one_batch_is_the_publishers(
    autojump_clock: MockClock, count: int, size: int, appends: int
) -> None:
    async with ending(queue_bytes=64 * BATCH_BYTES) as e:
        await flushed(e.log.log)
        appends += e.store.calls["append"]
        texts = [f"{number:x>{size}}" for number in range(count)]
        e.log.offer(*texts)
        await e.finalizer.end(SUCCESS, None)
        e.log.log.close()
        assert fillers(e.run.events) == texts
        assert e.run.events[-1].is_terminal
        assert e.desk.publisher.budget.used == 0
        assert e.store.calls["append"] == appends


@pytest.mark.parametrize("texts", [("b",), ()], ids=["some wait", "none waits"])
async def test_work_that_was_left_behind_cannot_part_the_end_from_the_log(
    autojump_clock: MockClock, texts: tuple[str, ...]
) -> None:
    """It goes on offering events while the run is being ended, which takes a while."""
    async with ending() as e:
        e.log.offer("a")
        await flushed(e.log.log)
        e.log.offer(*texts)

        async def before(name: str) -> None:
            if name == "finalize":
                e.log.offer("too late")
                await trio.sleep(1)

        e.store.before = before
        e.store.lose_replies["finalize"] = 1
        await e.finalizer.end(SUCCESS, None)
        assert_whole(e, "a", *texts)


async def test_the_last_events_wait_for_a_store_that_is_away(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        e.store.down = True
        e.log.offer("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.finalizer.end, SUCCESS, None)
            await trio.sleep(100)
            e.store.down = False
        assert_whole(e, "a")


@pytest.mark.parametrize("texts", [("c",), ()], ids=["some wait", "none waits"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_a_failover_lost_is_written_again_before_the_terminal(
    autojump_clock: MockClock, cancelled: bool, texts: tuple[str, ...]
) -> None:
    """R21, also when the run writes nothing more but its end."""
    async with ending() as e:
        e.log.offer("a", "b")
        await flushed(e.log.log)
        del e.run.events[1:]
        if cancelled:
            e.intend()
        e.log.offer(*texts)
        await e.finalizer.end(SUCCESS, None)
        assert e.run.record.status == ("cancelled" if cancelled else "succeeded")
        assert_whole(e, "a", "b", *texts)


async def test_a_second_failover_cuts_into_what_the_first_had_mended(autojump_clock: MockClock) -> None:
    async with ending() as e:
        for filler in "abcd":
            e.log.offer(filler)
            await flushed(e.log.log)
        del e.run.events[2:]
        e.log.offer("e")
        await flushed(e.log.log)
        assert fillers(e.run.events) == list("abcde")
        del e.run.events[3:]
        await e.finalizer.end(SUCCESS, None)
        assert_whole(e, *"abcde")


async def test_last_events_that_are_refused_end_the_run_as_failed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an event that is refused earlier does: with the store's words, and without what was refused."""
    async with ending() as e:
        await flushed(e.log.log)
        e.log.offer("refused")

        async def before(name: str) -> None:
            if name == "finalize" and e.log.log.waiting:
                raise ValueError("too large")

        e.store.before = before
        monkeypatch.setattr(e.store, "_append", lambda _batch: ValueError("too large"))
        await e.finalizer.end(SUCCESS, None)
        assert e.run.events[-1].is_terminal
        assert fillers(e.run.events) == []
        assert e.desk.publisher.budget.used == 0


async def test_what_a_failover_lost_long_after_is_lost(autojump_clock: MockClock) -> None:
    async with ending() as e:
        e.log.offer("a")
        await flushed(e.log.log)
        e.log.offer("b")
        await flushed(e.log.log)
        await trio.sleep(KEEP_SECONDS * 2)
        other = e.desk.open("other")
        other.offer("x")
        await flushed(other.log)
        del e.run.events[2:]
        await e.finalizer.end(SUCCESS, None)
        assert fillers(e.run.events) == ["a"]
        assert e.data()["output"] == "out"


async def test_ends_a_log_of_which_nothing_is_known_any_more(autojump_clock: MockClock) -> None:
    """A failover, and the writer of events has failed: nobody can mend the log."""
    async with ending() as e:
        await flushed(e.log.log)
        e.log.offer("a")
        await e.log.log.take_last()
        e.desk.publisher.give_up()
        e.run.events.clear()
        await e.finalizer.end(SUCCESS, None)
        assert e.run.types == ["run_succeeded"]
        assert e.desk.publisher.budget.used == 0


@pytest.mark.parametrize("texts", [("late",), ()])
@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_slow_owner_says_that_its_log_was_sealed(
    autojump_clock: MockClock, texts: tuple[str, ...], status: RunStatus
) -> None:
    """Another replica has judged it while this one stood still."""
    async with ending() as e:
        await flushed(e.log.log)
        e.run.record = e.run.record.model_copy(update={"status": status})
        e.log.offer(*texts)
        with capture_logs() as lines:
            await e.finalizer.end(SUCCESS, SHUTDOWN)
        (line,) = lines
        assert line["event"] == "run given up, its log belongs to someone else"
        assert (line["log_level"], line["run_id"]) == ("error", "run")
        assert e.run.types == ["run_started"]
        e.log.log.close()
        assert e.desk.publisher.budget.used == 0


async def test_a_log_of_somebody_else_is_left_alone(autojump_clock: MockClock) -> None:
    """It has events that this owner has not written: no gap that a failover explains."""
    async with ending() as e:
        await flushed(e.log.log)
        e.run.events.append(event(7, ms=1 << 50))
        e.log.offer("mine")
        with capture_logs() as lines:
            await e.finalizer.end(SUCCESS, None)
        assert [line["event"] for line in lines] == ["run given up, its log belongs to someone else"]
        assert e.run.types == ["run_started", "pydantic_ai_event"]
        assert e.desk.publisher.budget.used == 0


async def test_ends_although_the_writer_of_events_has_failed(autojump_clock: MockClock) -> None:
    """What waits is taken along when the publisher had not got hold of it; else only the terminal is written."""
    async with ending(serve=False) as e:
        e.log.offer("a")
        await e.log.log.take_last()
        e.desk.publisher.give_up()
        await e.finalizer.end(SUCCESS, None)
        assert_whole(e, "a")


# Lost replies and outages.


@pytest.mark.parametrize("lost", [1, 4])
@pytest.mark.parametrize(("done", "status"), [(SUCCESS, "succeeded"), (FAILURE, "failed")])
async def test_a_lost_reply_leaves_one_terminal(
    autojump_clock: MockClock, done: WorkDone, status: str, lost: int
) -> None:
    async with ending() as e:
        e.store.lose_replies["finalize"] = lost
        await e.finalizer.end(done, None)
        assert e.run.record.status == status
        assert e.data() is not None
        assert e.log.live.top == e.run.top, "readers in memory see the end too"


@pytest.mark.parametrize("stop", [CANCEL, None], ids=["told", "not told"])
async def test_a_lost_reply_of_a_cancellation_leaves_one_terminal(autojump_clock: MockClock, stop: Stop | None) -> None:
    async with ending() as e:
        e.intend()
        e.store.lose_replies["finalize_cancel"] = 2
        with capture_logs() as lines:
            await e.finalizer.end(STOPPED, stop)
        assert e.run.record.status == "cancelled"
        assert e.data()["reason"] == "reason"
        assert e.log.live.top == e.run.top, "readers in memory see the end too"
        assert [line["event"] for line in lines] == ["run ended"]


async def test_a_write_that_failed_and_then_an_intent(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await flushed(e.log.log)
        e.store.down = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.finalizer.end, SUCCESS, None)
            await trio.sleep(5)
            assert e.store.calls["finalize"] > 1
            e.intend()
            e.store.down = False
        assert e.run.record.status == "cancelled"
        assert e.data()["reason"] == "reason"


async def test_a_lost_reply_and_then_an_intent_stays_a_success(autojump_clock: MockClock) -> None:
    async with ending() as e:

        async def before(name: str) -> None:
            if name == "finalize" and e.store.calls["finalize"] == 2:
                e.intend()

        e.store.lose_replies["finalize"] = 1
        e.store.before = before
        await e.finalizer.end(SUCCESS, None)
        assert e.run.record.status == "succeeded"
        assert e.data()["output"] == "out"


@pytest.mark.parametrize("stop", [None, SHUTDOWN, CANCEL])
async def test_a_store_that_is_away_is_waited_for(autojump_clock: MockClock, stop: Stop | None) -> None:
    async with ending() as e:
        if stop is CANCEL:
            e.intend()
        e.store.down = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.finalizer.end, STOPPED, stop)
            await trio.sleep(3600)
            assert e.run.record.status == "running"
            e.store.down = False
            began = trio.current_time()
        assert trio.current_time() - began < 3
        assert e.data() is not None
        assert e.run.record.status == ("cancelled" if stop is CANCEL else "failed")


async def test_every_repeat_is_the_same_transition(autojump_clock: MockClock) -> None:
    async with ending() as e:
        e.store.lose_replies["finalize"] = 3
        await e.finalizer.end(SUCCESS, None)
        assert e.store.calls["finalize"] == 4
        assert len(e.log.live.after(e.run.events[0].id, 10)) == 1
        assert e.data()["output"] == "out"


async def test_cancelled_it_can_be_called_again_and_proposes_the_same(autojump_clock: MockClock) -> None:
    async with ending() as e:
        e.store.before = lambda name: trio.sleep(5 if name == "finalize" else 0)
        with trio.move_on_after(1) as scope:
            await e.finalizer.end(SUCCESS, None)
        assert scope.cancelled_caught, "the cancellation is not swallowed"
        assert e.run.record.status == "running"
        await e.finalizer.end(SUCCESS, Stop(StopKind.SHUTDOWN))
        assert e.run.record.status == "succeeded"
        assert e.data() is not None


# Endings that are no JSON.


def too_deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(1000):
        value = [value]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNWRITABLE_SNAPSHOT = SNAPSHOT.model_copy(
    update={"layers": [SNAPSHOT.layers[0].model_copy(update={"runtime_state": {"deep": too_deep()}})]}
)


@pytest.mark.parametrize("output", [too_deep(), cyclic()], ids=["deep", "cyclic"])
async def test_an_output_that_is_no_json_fails_the_run(autojump_clock: MockClock, output: Any) -> None:
    async with ending() as e:
        await e.finalizer.end(WorkDone(Succeeded(output), SNAPSHOT), None)
        assert e.run.record.status == "failed"
        assert "is not JSON" in e.data()["error"]
        assert e.data()["session_snapshot"] is None


async def test_a_snapshot_that_is_no_json_fails_a_success(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(WorkDone(Succeeded("out"), UNWRITABLE_SNAPSHOT), None)
        assert e.run.record.status == "failed"
        assert "is not JSON" in e.data()["error"]
        assert e.data()["session_snapshot"] is None


async def test_a_snapshot_that_is_no_json_keeps_a_failures_text(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(WorkDone(Failed("broke"), UNWRITABLE_SNAPSHOT), None)
        assert (e.data()["error"], e.data()["session_snapshot"]) == ("broke", None)


async def test_a_snapshot_that_is_no_json_keeps_a_cancellation(autojump_clock: MockClock) -> None:
    async with ending() as e:
        e.intend()
        await e.finalizer.end(WorkDone(Interrupted(), UNWRITABLE_SNAPSHOT), CANCEL)
        assert e.run.record.status == "cancelled"
        assert (e.data()["reason"], e.data()["session_snapshot"]) == ("reason", None)


async def test_an_error_text_that_is_no_unicode_still_ends_the_run(autojump_clock: MockClock) -> None:
    async with ending() as e:
        await e.finalizer.end(WorkDone(Failed("bad \ud800 text"), SNAPSHOT), None)
        assert e.run.record.status == "failed"
        assert e.data()["error"] == e.run.record.error == "bad \ufffd text"


# Endings that the store refuses.


@pytest.mark.parametrize("stop", [None, CANCEL])
async def test_an_ending_the_store_refuses_is_reduced(autojump_clock: MockClock, stop: Stop | None) -> None:
    async with ending() as e:
        if stop is CANCEL:
            e.run.intent = CancelIntent("why", None, datetime.now(UTC))

        async def too_large(name: str) -> None:
            if name.startswith("finalize") and not e.finalizer._reduced:
                raise RuntimeError("Protocol error: invalid bulk length")

        e.store.before = too_large
        await e.finalizer.end(SUCCESS, stop)
        data = e.data()
        assert data["session_snapshot"] is None
        if stop is None:
            assert "Protocol error: invalid bulk length" in data["error"]
            assert e.run.record.status == "failed"
        else:
            assert data["reason"] == "why"
            assert e.run.record.status == "cancelled"


async def test_a_store_that_refuses_everything_ends_the_actor(autojump_clock: MockClock) -> None:
    async with ending() as e:

        async def refuse(name: str) -> None:
            if name == "finalize":
                raise RuntimeError("no")

        e.store.before = refuse
        with trio.fail_after(10):
            await e.finalizer.end(SUCCESS, None)
        assert e.store.calls["finalize"] == 3, "with the last events, without them, and reduced"
        assert e.run.record.status == "running"
