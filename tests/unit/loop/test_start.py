"""What a run does first with the history it is given (specification, agent-loop 4.2 and layers 8.5)."""

from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolResults, RunContext, Tool, ToolApproved, ToolDenied
from tests.unit.loop.scripted import DONE, Call, Turn, ask, asked, echo, play, turn

INTERRUPTED = "The tool call was interrupted before a result was produced."


def called(*ids: str, name: str = "echo", state: Any = "complete") -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, {}, call_id) for call_id in ids], state=state)


def pending(*ids: str) -> list[ModelMessage]:
    return [asked(), called(*ids, name="ask")]


async def test_a_request_at_the_end_stays_apart_and_is_merged_on_the_wire() -> None:
    ran = await play(DONE, history=[asked("one")], prompt="two")
    assert [message.kind for message in ran.messages] == ["request", "request", "response"]
    (sent,) = ran.model.sent
    assert [part.content for part in sent.messages[0].parts] == ["one", "two"]


async def test_neighbouring_requests_of_older_runs_are_merged_in_the_history() -> None:
    ran = await play(DONE, history=[asked("one"), asked("two")], prompt="three")
    assert len(ran.messages[0].parts) == 2
    assert len(ran.messages) == 3


async def test_without_a_prompt_the_last_request_is_sent_again() -> None:
    ran = await play(DONE, history=[asked("one", run_id="old")], prompt=None, instructions=["Be brief."])
    assert [message.kind for message in ran.messages] == ["request", "response"]
    request = ran.messages[0]
    assert isinstance(request, ModelRequest)
    assert (request.run_id, request.instructions) == ("old", "Be brief.")


async def test_calls_before_an_interrupted_request_are_closed_inside_it() -> None:
    cut = ModelRequest(parts=[ToolReturnPart("echo", "ok", "c1")], state="interrupted")
    ran = await play(DONE, history=[asked(), called("c1", "c2"), cut])
    closed = ran.messages[2]
    assert closed.state == "interrupted"
    assert [(part.content, part.outcome) for part in ran.parts(2)] == [("ok", "success"), (INTERRUPTED, "interrupted")]
    assert ran.parts(3)[0].content == "hi"


async def test_without_a_prompt_a_repaired_request_is_sent_as_complete() -> None:
    ran = await play(
        DONE, history=[asked(), called("c1"), ModelRequest(parts=[], state="interrupted")], prompt=None, tools=[echo()]
    )
    assert ran.messages[2].state == "complete"
    assert ran.parts(2)[0].outcome == "interrupted"


async def test_calls_of_an_interrupted_response_are_closed_for_a_prompt() -> None:
    ran = await play(DONE, history=[asked(), called("c1", state="interrupted")])
    closing = ran.messages[2]
    assert isinstance(closing, ModelRequest)
    assert (closing.timestamp, closing.run_id) == (None, None)
    assert ran.parts(2)[0].outcome == "interrupted"
    assert ran.result == "done"


@pytest.mark.parametrize("state", ["complete", "interrupted"])
async def test_without_a_prompt_calls_are_executed(state: str) -> None:
    ran = await play(DONE, history=[asked(), called("c1", state=state)], prompt=None, tools=[echo()])
    assert ran.kinds[:2] == ["function_tool_call", "function_tool_result"]
    assert ran.parts(2)[0].content == "x=0"
    assert ran.result == "done"


async def test_a_prompt_on_pending_calls_is_refused() -> None:
    ran = await play(DONE, history=pending("c1"))
    assert isinstance(ran.error, UserError)
    assert str(ran.error).startswith("Cannot provide a new user prompt when the message history contains unprocessed")
    assert len(ran.messages) == 2


async def test_without_a_prompt_text_is_returned_without_a_model_call() -> None:
    history = [asked(), ModelResponse(parts=[TextPart("old")])]
    ran = await play(DONE, history=history, prompt=None)
    assert ran.result == "old"
    assert ran.model.sent == []


async def test_with_instructions_a_request_without_parts_is_sent() -> None:
    history = [asked(), ModelResponse(parts=[TextPart("old")])]
    ran = await play(DONE, history=history, prompt=None, instructions=["Be brief."])
    assert ran.result == "done"
    assert ran.messages[2].parts == []


async def test_only_instructions_are_something_to_send() -> None:
    ran = await play(DONE, prompt=None, instructions=["One.", "Two."])
    assert ran.result == "done"
    assert isinstance(ran.messages[0], ModelRequest)
    assert ran.messages[0].instructions == "One.\n\nTwo."


async def test_instructions_are_on_every_request_of_the_run() -> None:
    ran = await play(turn(Call("echo")), DONE, tools=[echo()], instructions=["Be brief."])
    requests = [message for message in ran.messages if isinstance(message, ModelRequest)]
    assert [request.instructions for request in requests] == ["Be brief.", "Be brief."]


async def test_an_orphaned_result_is_dropped() -> None:
    orphan = ModelRequest(parts=[ToolReturnPart("echo", "ok", "gone")])
    ran = await play(DONE, history=[orphan, ModelResponse(parts=[TextPart("a")])])
    assert [message.kind for message in ran.messages] == ["response", "request", "response"]


async def test_a_conversation_goes_on_under_its_id() -> None:
    ran = await play(DONE, history=[asked(conversation_id="c"), ModelResponse(parts=[TextPart("a")])])
    assert {message.conversation_id for message in ran.messages[2:]} == {"c"}


async def test_the_given_history_is_not_changed() -> None:
    history = [asked(), called("c1"), ModelRequest(parts=[], state="interrupted")]
    await play(DONE, history=history)
    assert len(history) == 3
    assert history[2].parts == []


async def resumed(history: list[ModelMessage], calls: dict[str, Any], *turns: Turn, **more: Any) -> Any:
    results = DeferredToolResults(calls=calls, **more.pop("results", {}))
    return await play(
        *(turns or (DONE,)), history=history, deferred_results=results, **({"prompt": None, "tools": [ask()]} | more)
    )


async def test_results_are_given_in_call_order_and_not_validated() -> None:
    ran = await resumed(pending("c1", "c2"), {"c2": None, "c1": {"kind": "tool-denied", "message": "data"}})
    events = [event for event in ran.events if event.event_kind == "function_tool_call"]
    assert [event.args_valid for event in events] == [None, None]
    assert [part.content for part in ran.parts(2)] == [{"kind": "tool-denied", "message": "data"}, None]
    assert ran.result == "done"
    assert ran.capture.usage.tool_calls == 0


async def test_a_prompt_follows_the_results() -> None:
    ran = await resumed(pending("c1"), {"c1": 1}, prompt="and now?")
    assert [part.part_kind for part in ran.parts(2)] == ["tool-return", "user-prompt"]


async def test_results_of_a_mixed_response_are_not_given_again() -> None:
    mixed = ModelResponse(parts=[ToolCallPart("echo", {}, "c1"), ToolCallPart("ask", {}, "c2")])
    stored = ModelRequest(parts=[ToolReturnPart("echo", "ok", "c1")])
    ran = await resumed([asked(), mixed, stored], {"c2": "yes"})
    assert ran.kinds.count("function_tool_result") == 1
    twice = await resumed([asked(), mixed, stored], {"c1": 1, "c2": "yes"})
    assert str(twice.error) == "Tool call 'c1' was already executed and its result cannot be overridden."
    assert len(twice.messages) == 3


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([], "Tool call results were provided, but the message history is empty."),
        ([asked()], "Tool call results were provided, but the message history does not contain a `ModelResponse`."),
        (
            [asked(), ModelResponse(parts=[TextPart("a")])],
            "Tool call results were provided, but the message history does not contain any unprocessed tool calls.",
        ),
    ],
)
async def test_results_without_calls_are_refused(history: list[ModelMessage], text: str) -> None:
    ran = await resumed(history, {"c1": 1})
    assert str(ran.error) == text
    assert len(ran.messages) == len(history)


async def test_missing_and_extra_results_are_refused_with_sorted_ids() -> None:
    ran = await resumed(pending("b", "a"), {"a": 1, "z": 2})
    assert str(ran.error) == (
        "Tool call results need to be provided for all deferred tool calls. Expected: {'a', 'b'}, got: {'a', 'z'}"
    )


async def test_duplicate_ids_in_the_history_are_refused() -> None:
    ran = await resumed(pending("c1", "c1"), {"c1": 1})
    assert "duplicate tool_call_id values: ['c1']" in str(ran.error)


async def test_results_may_be_outcomes() -> None:
    results = {"c1": ToolFailed("no"), "c2": ModelRetry("again"), "c3": ToolReturn("r", content="look")}
    ran = await resumed(pending("c1", "c2", "c3"), results)
    assert [part.part_kind for part in ran.parts(2)] == ["tool-return"] * 3 + ["user-prompt"]
    assert [part.outcome for part in ran.parts(2)[:3]] == ["failed", "retried", "success"]
    assert ran.parts(2)[1].retry.attempt is None


async def test_approved_calls_are_executed_and_denied_ones_answered() -> None:
    seen: list[tuple[bool, Any]] = []

    async def pay(context: RunContext[Any], amount: int) -> str:
        seen.append((context.tool_call_approved, context.tool_call_metadata))
        return f"paid {amount}"

    tool = Tool(pay, requires_approval=True)
    first = await play(
        turn(Call("pay", {"amount": 1}, "c1"), Call("pay", {"amount": 2}, "c2")), tools=[tool], allow_deferred=True
    )
    assert [call.tool_call_id for call in first.result.approvals] == ["c1", "c2"]  # type: ignore[union-attr]
    results = DeferredToolResults(
        approvals={"c1": ToolApproved(override_args={"amount": 5}), "c2": ToolDenied("too much")},
        metadata={"c1": {"by": "me"}},
    )
    ran = await play(DONE, history=first.messages, deferred_results=results, prompt=None, tools=[tool])
    assert [(part.content, part.outcome) for part in ran.parts(2)] == [("paid 5", "success"), ("too much", "denied")]
    assert seen == [(True, {"by": "me"})]


async def test_thousands_of_requests_in_a_row_are_no_history() -> None:
    """Joining them takes time with the square of their number."""
    ran = await play(DONE, history=[ModelRequest(parts=[UserPromptPart("x")]) for _ in range(1001)])
    assert isinstance(ran.error, UserError)
    assert "more than 1000 requests in a row" in str(ran.error)
    fine = await play(DONE, history=[ModelRequest(parts=[UserPromptPart("x")]) for _ in range(3)])
    assert fine.result == "done"
