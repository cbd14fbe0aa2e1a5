"""The agent loop: ask the model, answer its calls, ask again, until there is an output."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.exceptions import ContentFilterError, OutputTokenLimitExceeded, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)

from dify_agent.loop import texts
from dify_agent.loop.history import Answers, Handle, Send, start
from dify_agent.loop.limits import refuse_too_many
from dify_agent.loop.port import Capture, EventSink, LoopRequest, LoopResult
from dify_agent.loop.retries import OUTPUT_RETRIES
from dify_agent.loop.round import Final, ToolRound
from dify_agent.loop.state import Run, new_run
from dify_agent.loop.turn import request_model


async def run_agent_loop(request: LoopRequest, *, sink: EventSink, capture: Capture) -> LoopResult:
    """Run one agent until it has an output, calls left for the outside, or an error.

    Events go to ``sink`` in order, from this task. ``capture`` is filled in place and is whole at every ending, as
    the next run needs it (specification, agent-loop 4.1).

    Returns:
        Text, the accepted structured output, or the calls left for the outside.

    Raises:
        UserError: prompt, results, history and tools do not go together.
        UsageLimitExceeded: the run reached its request limit.
        UnexpectedModelBehavior: retries are spent, or the response is not usable; also its subclasses.
        ModelAPIError: the provider failed.
        RunFailedError: the response stream was cut (reason ``incomplete_stream``), a response has too many tool calls
            (``too_many_tool_calls``), or the history is too long to be summarised (``history_too_long``).
        Exception: what a tool, a check of arguments or the sink raised; always itself, never in a group.
        trio.Cancelled: also when a tool swallowed it.
    """
    run = new_run(request, sink=sink, capture=capture)
    step = await start(run)
    while True:
        if isinstance(step, Send):
            step = Handle(await request_model(run, step))
        outcome = await _handle(run, step)
        if isinstance(outcome, Final):
            value: LoopResult = outcome.value
            return value
        step = Send(outcome)


async def _handle(run: Run, step: Handle) -> Final | ModelRequest:
    """What follows from a response: the run's end or the next request."""
    response = step.response
    _refuse_unusable(run, response)
    calls = response.tool_calls
    if calls:
        return await _answer_calls(run, calls, step.answers)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    if text and run.request.output is None:
        return Final(text)
    return await _ask_again(run)


async def _answer_calls(run: Run, calls: Sequence[ToolCallPart], answers: Answers | None) -> Final | ModelRequest:
    parts: list[ModelRequestPart] = []
    try:
        refuse_too_many(len(calls))  # those of a history; a stream is cut before
        final = await ToolRound(run, await run.tools(), calls, answers, parts).process()
    except BaseException:
        # Also when it is empty: it tells the next run that these calls will not be answered. Nothing here waits.
        run.append_results(parts, interrupted=True)
        raise
    if final is None:
        prompt = run.request.prompt
        if answers is not None and prompt is not None:
            parts.append(UserPromptPart(prompt))
        return ModelRequest(parts=parts)
    if parts:
        run.append_results(parts, interrupted=False)
    return final


async def _ask_again(run: Run) -> ModelRequest:
    """Ask for a usable response; its texts are the only ones that models are given in the system's voice."""
    try:
        attempt = run.output_retries.charge_text()
    except UnexpectedModelBehavior:
        run.refuse_cut_call()
        raise
    if run.request.output is not None:
        text = texts.FEEDBACK_OUTPUT
    elif (await run.tools()).entries:
        text = texts.FEEDBACK_TEXT_OR_TOOL
    else:
        text = texts.FEEDBACK_TEXT
    retry: RetryInfo[Any] = RetryInfo(cause="no_output", attempt=attempt, max_retries=OUTPUT_RETRIES)
    return ModelRequest(parts=[RetryFeedbackPart(content=text, retry=retry)])


def _refuse_unusable(run: Run, response: ModelResponse) -> None:
    """Fail at once where asking again would only repeat it.

    Raises:
        OutputTokenLimitExceeded: the token limit left neither text nor a call.
        ContentFilterError: the provider's filter did; the response is in the error's body.
    """
    if any(not _says_nothing(part) for part in response.parts):
        return
    if response.finish_reason == "length":
        raise OutputTokenLimitExceeded(texts.cut_before_output(run.max_tokens))
    if response.finish_reason == "content_filter":
        body = ModelMessagesTypeAdapter.dump_json([response]).decode()
        raise ContentFilterError(texts.content_filtered(response.provider_details), body=body)


def _says_nothing(part: object) -> bool:
    return isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.content)
