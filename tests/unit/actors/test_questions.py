"""R19 for a run that asks a human: its question is open after a success only, and the session goes on either way."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun
from tests.unit.actors.world import World, history, hooked, model, prompt, text, tools, world
from trio.testing import MockClock

from dify_agent.store.base import CancelIntent

ASK: Final = {"name": "ask_human", "type": "dify.ask_human"}
CALL: Final = {"name": "ask_human", "args": {"question": "Which?"}, "id": "question"}
LOOK: Final = {"name": "look", "args": {}, "id": "look"}
QUESTIONS: Final = pytest.mark.parametrize("calls", [[CALL], [LOOK, CALL]], ids=["alone", "among others"])
ANSWER: Final = {"deferred_tool_results": {"calls": {"question": "the second"}}}
INTERRUPTED: Final = "The tool call was interrupted before a result was produced."


WITHOUT_MODEL: Final = [prompt(), history(), ASK, tools({"name": "look", "result": 7}), hooked()]


def layers(turn: dict[str, Any]) -> list[dict[str, Any]]:
    """The composition of a session, for one more model turn."""
    return [*WITHOUT_MODEL, model(turn)]


def data(run: FakeRun) -> dict[str, Any]:
    assert [event.is_terminal for event in run.events].count(True) == 1
    ended: dict[str, Any] = json.loads(run.events[-1].payload)["data"]
    return ended


def messages(run: FakeRun) -> list[dict[str, Any]]:
    [state] = [layer for layer in data(run)["session_snapshot"]["layers"] if layer["name"] == "history"]
    return list(state["runtime_state"]["messages"])


async def resumed(run: FakeRun, **members: Any) -> FakeRun:
    """The next run of the session, in another replica."""
    async with world() as w:
        members["session_snapshot"] = data(run)["session_snapshot"]
        return await w.ended(await w.create(*layers(text("onward")), **members))


async def assert_given_up(run: FakeRun) -> None:
    """Nobody was told of the question, so a new prompt goes through, and closes it."""
    assert "deferred_tool_call" not in data(run)
    assert messages(run)[-1]["state"] == "interrupted"
    onward = await resumed(run)
    assert data(onward).get("output") == "onward", data(onward)
    parts = [part for message in messages(onward) for part in message["parts"]]
    [answer] = [part for part in parts if part.get("tool_call_id") == "question" and part["part_kind"] != "tool-call"]
    assert answer["content"] == INTERRUPTED


async def assert_open(run: FakeRun) -> None:
    """The question waits for its answer."""
    assert messages(run)[-1]["state"] == "complete"
    onward = await resumed(run, **ANSWER)
    assert data(onward).get("output") == "onward", data(onward)
    assert "the second" in [part.get("content") for message in messages(onward) for part in message["parts"]]


async def fail() -> None:
    raise OSError("disk full")


async def intend(w: World, run_id: str) -> None:
    """A cancellation that this replica has not heard of."""
    w.run(run_id).intent = CancelIntent("late", None, datetime.now(UTC))


async def shut_down(w: World, _run_id: str) -> None:
    await w.supervisor.drain(0)


async def tear_down(w: World, _run_id: str) -> None:
    w.nursery.cancel_scope.cancel()


async def nothing(_w: World, _run_id: str) -> None:
    pass


Event = Callable[[World, str], Awaitable[None]]
HANG: Final = trio.sleep_forever
SLOW: Final = partial(trio.sleep, 5)


async def asked(calls: list[dict[str, Any]], leave: Callable[[], Awaitable[None]], event: Event) -> FakeRun:
    """A run that asks, and the event while its layers leave."""
    async with world() as w:
        w.hooks.leave = leave
        run_id = await w.create(*layers({"tool_calls": calls}))
        await trio.sleep(1)
        await event(w, run_id)
        await w.ended(run_id)
    return w.run(run_id)


@QUESTIONS
@pytest.mark.parametrize(
    ("leave", "event", "ending"),
    [
        (fail, nothing, ("failed", None)),
        (HANG, nothing, ("failed", "phase_timeout")),
        (SLOW, World.cancel, ("cancelled", "because")),
        (HANG, World.cancel, ("cancelled", "because")),
        (SLOW, intend, ("cancelled", "late")),
        (HANG, shut_down, ("failed", "shutdown")),
        (HANG, tear_down, ("failed", "shutdown")),
    ],
    ids=["hook fails", "exit bound", "cancel", "cancel, exit bound", "intent", "shutdown", "teardown"],
)
async def test_an_ending_while_the_layers_leave_gives_the_question_up(
    autojump_clock: MockClock,
    calls: list[dict[str, Any]],
    leave: Callable[[], Awaitable[None]],
    event: Event,
    ending: tuple[str, str | None],
) -> None:
    run = await asked(calls, leave, event)
    assert (run.record.status, data(run)["reason"]) == ending
    await assert_given_up(run)


@QUESTIONS
@pytest.mark.parametrize("event", [nothing, shut_down, tear_down])
async def test_a_success_that_is_kept_keeps_the_question(
    autojump_clock: MockClock, calls: list[dict[str, Any]], event: Event
) -> None:
    run = await asked(calls, SLOW, event)
    assert data(run)["deferred_tool_call"]["tool_call_id"] == "question"
    await assert_open(run)


@QUESTIONS
@pytest.mark.parametrize("event", [nothing, shut_down])
async def test_an_intent_that_comes_with_the_write_gives_the_question_up(
    autojump_clock: MockClock, calls: list[dict[str, Any]], event: Event
) -> None:
    """A success was proposed, and the store refuses it. Stopped or not."""

    async def event_then_intent(w: World, run_id: str) -> None:
        async def before(name: str) -> None:
            if name == "finalize":
                await intend(w, run_id)

        w.store.before = before
        await event(w, run_id)

    run = await asked(calls, SLOW, event_then_intent)
    assert run.record.status == "cancelled"
    await assert_given_up(run)


async def test_a_lost_reply_leaves_the_question_open(autojump_clock: MockClock) -> None:
    async def lose(w: World, _run_id: str) -> None:
        w.store.lose_replies["finalize"] = 2

    await assert_open(await asked([CALL], SLOW, lose))


async def test_an_ending_that_the_store_refuses_is_reduced_to_one_without_a_snapshot(autojump_clock: MockClock) -> None:
    async def refuse(w: World, _run_id: str) -> None:
        async def before(name: str) -> None:
            if name == "finalize" and w.store.calls["finalize"] == 1:
                raise RuntimeError("Protocol error: invalid bulk length")

        w.store.before = before

    run = await asked([CALL], SLOW, refuse)
    assert (run.record.status, data(run)["session_snapshot"]) == ("failed", None)


async def test_work_that_is_left_behind_while_it_leaves_has_no_snapshot(autojump_clock: MockClock) -> None:
    async def ignore_cancellation() -> None:
        with trio.move_on_after(200, shield=True):
            await trio.sleep_forever()

    run = await asked([CALL], ignore_cancellation, nothing)
    assert (data(run)["reason"], data(run)["session_snapshot"]) == ("phase_timeout", None)


async def test_a_question_that_was_only_restored_stays_open(autojump_clock: MockClock) -> None:
    """Nobody has read the answer of a run that fails before its agent loop: it can be sent again."""
    run = await asked([CALL], SLOW, nothing)
    async with world() as w:
        snapshot = data(run)["session_snapshot"]
        composition = [*WITHOUT_MODEL, {"name": "llm", "type": "plain.prompt"}]
        wrong = await w.ended(await w.create(*composition, session_snapshot=snapshot, **ANSWER))
    assert data(wrong)["error"] == "Layer 'llm' must be a model layer, got PromptLayer."
    await assert_open(wrong)


async def test_a_restored_question_stays_open_in_a_run_without_an_agent_loop(autojump_clock: MockClock) -> None:
    run = await asked([CALL], SLOW, nothing)
    snapshot = data(run)["session_snapshot"]
    async with world() as w:
        w.hooks.suspend = fail
        cleanup = await w.ended(await w.create(*WITHOUT_MODEL, session_snapshot=snapshot))
    assert data(cleanup)["error"] == "disk full"
    assert messages(cleanup) == messages(run)
