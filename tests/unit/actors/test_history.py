"""What of a run's messages is kept for the next one."""

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agenton.compositor import CompositorSessionSnapshot, LayerSessionSnapshot
from agenton.layers import LifecycleState
from dify_agent.actors.history import stored_form, without_question

CALL = ToolCallPart("look", {}, "1")
QUESTION = ToolCallPart("ask_human", {}, "2")


def asked(instructions: str | None = "be brief") -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart("hello")], instructions=instructions)


def answered(*parts: TextPart | ToolCallPart, state: str = "complete") -> ModelResponse:
    return ModelResponse(parts=list(parts), state=state)  # type: ignore[arg-type]


@pytest.mark.parametrize("finished", [True, False])
def test_instructions_are_never_stored(finished: bool) -> None:
    messages: list[ModelMessage] = [asked(), answered(TextPart("hi")), asked("other"), answered(TextPart("bye"))]
    stored = stored_form(messages, finished=finished)
    assert [getattr(message, "instructions", None) for message in stored] == [None] * 4
    assert [message.parts for message in stored] == [message.parts for message in messages]


def test_the_loops_own_messages_are_not_changed() -> None:
    messages: list[ModelMessage] = [asked(), answered(CALL)]
    stored_form(messages, finished=False)
    assert messages[0].instructions == "be brief"  # type: ignore[union-attr]
    assert messages[1].state == "complete"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("last", "finished", "state"),
    [
        (answered(CALL), False, "interrupted"),
        (answered(TextPart("a"), CALL), False, "interrupted"),
        (answered(CALL), True, "complete"),
        (answered(TextPart("hi")), False, "complete"),
        (answered(CALL, state="interrupted"), False, "interrupted"),
        (answered(CALL, state="incomplete"), False, "incomplete"),
    ],
)
def test_calls_that_nobody_will_answer_are_marked(last: ModelResponse, finished: bool, state: str) -> None:
    stored = stored_form([asked(), last], finished=finished)[-1]
    assert isinstance(stored, ModelResponse)
    assert stored.state == state


def test_only_the_last_response_is_marked() -> None:
    stored = stored_form([asked(), answered(CALL), asked(None)], finished=False)
    assert stored[1].state == "complete"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("calls", "finished", "state"),
    [
        ([CALL, QUESTION], False, "interrupted"),
        ([CALL, QUESTION], True, "complete"),
        ([CALL], False, "complete"),
    ],
)
def test_results_beside_calls_that_nobody_will_answer_are_marked(calls, finished, state) -> None:
    """A mixed response whose questions cannot be put to anyone: the ordinary results are the tail."""
    results = ModelRequest(parts=[ToolReturnPart("look", "seen", "1")])
    stored = stored_form([asked(), answered(*calls), results], finished=finished)
    assert stored[-1].state == state
    assert stored[1].state == "complete"


def test_an_interrupted_request_behind_results_is_joined_to_them() -> None:
    """Refused answers to a mixed response: the loop leaves an empty request, whose mark the next run would not see."""
    results = ModelRequest(parts=[ToolReturnPart("look", "seen", "1")])
    refused = ModelRequest(parts=[], state="interrupted")
    stored = stored_form([asked(), answered(CALL, QUESTION), results, refused], finished=False)
    assert stored[2:] == [ModelRequest(parts=results.parts, state="interrupted")]
    assert results.state == "complete"


def snapshot(*messages: ModelMessage) -> CompositorSessionSnapshot:
    dumped = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    states = {"other": {"messages": ["not a history"]}, "history": {"messages": dumped}}
    layers = [
        LayerSessionSnapshot(name=name, lifecycle_state=LifecycleState.SUSPENDED, runtime_state=state)
        for name, state in states.items()
    ]
    return CompositorSessionSnapshot(layers=layers)


@pytest.mark.parametrize("results", [(), (ModelRequest(parts=[ToolReturnPart("look", "seen", "1")]),)])
def test_a_question_is_given_up_as_a_loop_that_did_not_finish_is_marked(results: tuple[ModelRequest, ...]) -> None:
    calls = [CALL, QUESTION] if results else [QUESTION]
    messages: list[ModelMessage] = [asked(None), answered(*calls), *results]
    open_, before = snapshot(*messages), snapshot(*messages)
    assert without_question(open_) == snapshot(*stored_form(messages, finished=False))
    assert open_ == before, "the snapshot itself stays: a success may have been proposed with it"


def test_a_history_that_was_cleared_has_no_question() -> None:
    assert without_question(snapshot()) == snapshot()
