"""What the captured history holds at every ending (specification, agent-loop 4.1)."""

from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import (
    ContentFilterError,
    IncompleteToolCall,
    ModelAPIError,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import ModelResponse, RetryFeedbackPart, TextPart, ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from tests.unit.loop.scripted import (
    CUT_STREAM,
    DONE,
    Call,
    Fail,
    Ran,
    Text,
    Thinking,
    Usage,
    Wait,
    ask,
    asked,
    echo,
    hanging,
    number_output,
    play,
    played_until,
    raising,
    turn,
)

PROMPT = ("request", "complete", ["user-prompt"])
CALLED = ("response", "complete", ["tool-call"])
NOTHING_CAME = ("response", "interrupted", [])


def no_results(*parts: str) -> tuple[str, str, list[str]]:
    return ("request", "interrupted", list(parts))


async def test_text() -> None:
    ran = await play(DONE)
    assert ran.result == "done"
    assert ran.shape() == [PROMPT, ("response", "complete", ["text"])]
    assert (ran.capture.usage.requests, ran.capture.usage.output_tokens) == (1, 2)


async def test_messages_carry_the_ids_of_the_run() -> None:
    ran = await play(DONE)
    request, response = ran.messages
    assert request.run_id == response.run_id is not None
    assert request.conversation_id == response.conversation_id is not None
    assert request.timestamp is not None
    assert isinstance(response, ModelResponse)
    assert response.model_id == "scripted:scripted-1"
    assert response.usage.cost is None


async def test_accepted_output() -> None:
    ran = await play(turn(Call("final_output", {"n": 4})), output=number_output())
    assert ran.result == {"n": 4}
    assert ran.shape() == [PROMPT, CALLED, ("request", "complete", ["tool-return"])]
    assert ran.parts()[0].content == "Final result processed."


async def test_only_external_calls_leave_no_request() -> None:
    ran = await play(turn(Call("ask")), tools=[ask()], allow_deferred=True)
    assert isinstance(ran.result, DeferredToolRequests)
    assert [call.tool_call_id for call in ran.result.calls] == ["c1"]
    assert ran.shape() == [PROMPT, CALLED]


async def test_mixed_calls_leave_the_ordinary_results() -> None:
    ran = await play(turn(Call("ask"), Call("echo", id="c2")), tools=[ask(), echo()], allow_deferred=True)
    assert ran.shape() == [
        PROMPT,
        ("response", "complete", ["tool-call", "tool-call"]),
        ("request", "complete", ["tool-return"]),
    ]
    assert ran.parts()[0].tool_call_id == "c2"


@pytest.mark.parametrize(
    "error",
    [ModelAPIError("m", "down"), ValueError("broken"), TimeoutError("late")],
    ids=lambda error: type(error).__name__,
)
async def test_error_while_opening(error: Exception) -> None:
    ran = await play(turn(opening=Fail(error)))
    assert ran.error is error
    assert ran.shape() == [PROMPT, NOTHING_CAME]
    last = ran.messages[-1]
    assert isinstance(last, ModelResponse)
    assert last.model_name == ""
    assert ran.capture.usage.requests == 0


@pytest.mark.parametrize("hung", [turn(opening=Wait()), turn(Wait())], ids=["opening", "before the first event"])
async def test_cancel_before_the_first_event(hung: Any, autojump_clock: trio.testing.MockClock) -> None:
    ran = await played_until(1, hung)
    assert ran.cancelled
    assert ran.shape() == [PROMPT, NOTHING_CAME]


@pytest.mark.parametrize(
    ("piece", "kind"), [(Text("par"), "text"), (Thinking("hm"), "thinking"), (Call("echo", '{"x": '), "tool-call")]
)
async def test_cancel_in_the_stream_keeps_what_arrived(
    piece: Any, kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    ran = await played_until(1, turn(Usage(7, 3), piece, Wait()), tools=[echo()])
    assert ran.cancelled
    assert ran.shape() == [PROMPT, ("response", "interrupted", [kind])]
    assert (ran.capture.usage.requests, ran.capture.usage.input_tokens) == (1, 7)
    assert "part_end" not in ran.kinds


async def test_error_in_the_stream_keeps_what_arrived() -> None:
    ran = await play(turn(Text("par"), Fail(ModelAPIError("m", "reset"))))
    assert isinstance(ran.error, ModelAPIError)
    assert ran.parts() == [TextPart("par")]
    assert ran.messages[-1].state == "interrupted"


@CUT_STREAM
async def test_error_of_the_sink_in_the_stream() -> None:
    def refuse(event: Any, ran: Ran) -> None:
        if len(ran.events) == 2:
            raise ConnectionError("reader is gone")

    ran = await play(turn(Text("par"), Text("tial")), on_event=refuse)
    assert isinstance(ran.error, ConnectionError)
    assert ran.shape() == [PROMPT, ("response", "interrupted", ["text"])]


@CUT_STREAM
async def test_cancel_by_the_sink_is_noticed_at_once() -> None:
    scope = trio.CancelScope()

    def cancel(event: Any, ran: Ran) -> None:
        if len(ran.events) == 3:
            scope.cancel()

    ran = await play(turn(*[Text("tok ")] * 50), on_event=cancel, scope=scope)
    assert ran.cancelled
    assert len(ran.events) == 3
    assert ran.messages[-1].state == "interrupted"


@pytest.mark.parametrize(
    ("error", "tools", "calls"),
    [
        (KeyError, [raising(KeyError("k"))], [Call("bad")]),
        (UnexpectedModelBehavior, [echo(max_retries=0)], [Call("echo", '{"x": "?"}')]),
        (UnexpectedModelBehavior, [echo()], [Call("echo"), Call("echo")]),
        (UserError, [ask()], [Call("ask")]),
    ],
    ids=["tool raises", "retries exhausted", "duplicate ids", "deferral refused"],
)
async def test_failure_in_the_tools_leaves_an_empty_interrupted_request(
    error: type[Exception], tools: list[Any], calls: list[Any]
) -> None:
    ran = await play(turn(*calls), tools=tools)
    assert type(ran.error) is error
    assert ran.shape()[-1] == no_results()
    assert ran.messages[-2].state == "complete"


async def test_output_retries_exhausted_leave_an_interrupted_request() -> None:
    ran = await play(turn(Call("final_output", "[]")), output=number_output())
    assert isinstance(ran.error, UnexpectedModelBehavior)
    assert str(ran.error) == "Exceeded maximum output retries (1)"
    assert ran.shape()[-1] == no_results()


async def test_cancel_in_tools_keeps_the_finished_results_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = [Call("slow"), Call("echo", '{"x": 2}', "c2"), Call("echo", '{"x": 3}', "c3")]
    ran = await played_until(1, turn(*calls), tools=[hanging(), echo()])
    assert ran.cancelled
    assert ran.shape()[-1] == no_results("tool-return", "tool-return")
    assert [part.tool_call_id for part in ran.parts()] == ["c2", "c3"]


async def test_text_retry_exhausted_leaves_no_request() -> None:
    ran = await play(turn(Thinking("hm")))
    assert str(ran.error) == "Exceeded maximum output retries (1)"
    assert ran.shape() == [
        PROMPT,
        ("response", "complete", ["thinking"]),
        ("request", "complete", ["retry-feedback"]),
        ("response", "complete", ["thinking"]),
    ]
    feedback = ran.messages[2].parts[0]
    assert isinstance(feedback, RetryFeedbackPart)
    assert (feedback.content, feedback.retry.attempt, feedback.retry.max_retries) == ("Please return text.", 1, 1)


async def test_request_limit_keeps_the_request_that_was_not_sent() -> None:
    ran = await play(turn(Call("echo")), tools=[echo()], request_limit=2)
    assert isinstance(ran.error, UsageLimitExceeded)
    assert "request_limit of 2" in str(ran.error)
    results = ("request", "complete", ["tool-return"])
    assert ran.shape() == [PROMPT, CALLED, results, CALLED, results]
    assert len(ran.model.sent) == 2


async def test_nothing_to_send() -> None:
    ran = await play(DONE, prompt=None)
    assert str(ran.error) == "No message history, user prompt, or instructions provided"
    assert ran.shape() == [("request", "complete", [])]


async def test_wrong_result_ids_leave_an_interrupted_request() -> None:
    history = [asked(), ModelResponse(parts=[ToolCallPart("ask", {}, "c1")])]
    ran = await play(DONE, history=history, deferred_results=DeferredToolResults(calls={"x": 1}), tools=[ask()])
    assert str(ran.error).endswith("Expected: {'c1'}, got: {'x'}")
    assert ran.shape()[2:] == [no_results()]
    again = await play(DONE, history=ran.messages, deferred_results=DeferredToolResults(calls={"c1": 1}), prompt=None)
    assert again.result == "done"


async def test_the_token_limit_is_blamed_at_once() -> None:
    ran = await play(turn(Thinking("hm"), finish="length"), model_settings={"max_tokens": 9})
    assert type(ran.error) is OutputTokenLimitExceeded
    assert "(9)" in str(ran.error)
    assert len(ran.model.sent) == 1


async def test_a_cut_call_is_blamed_when_its_retries_are_spent() -> None:
    ran = await play(turn(Call("echo", '{"x": 1'), finish="length"), tools=[echo(max_retries=0)])
    assert type(ran.error) is IncompleteToolCall
    assert "function_tool_call" not in ran.kinds


async def test_the_filter_is_blamed_with_its_reason() -> None:
    ran = await play(turn(finish="content_filter", details={"block_reason": "SAFETY"}))
    assert isinstance(ran.error, ContentFilterError)
    assert ran.error.message == "Content filter triggered. Block reason: 'SAFETY'"
    assert '"kind":"response"' in (ran.error.body or "").replace(" ", "").replace("\n", "")


async def test_cut_text_is_an_answer() -> None:
    assert (await play(turn(Text("most of"), finish="length"))).result == "most of"
