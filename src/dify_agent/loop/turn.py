"""One model request: build it, stream the response to the sink, store what came."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import trio
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, PartStartEvent, ToolCallPart, repair_messages
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse

from dify_agent.errors import Reason, RunFailedError
from dify_agent.loop.context import fit_context
from dify_agent.loop.history import Send, is_long
from dify_agent.loop.limits import refuse_too_many
from dify_agent.loop.state import Run, now
from dify_agent.loop.texts import NOTHING_TO_SEND
from dify_agent.loop.timeouts import RequestTimeouts

_REPORTS_ITS_END = frozenset({"anthropic", "google", "google-gla", "google-vertex", "google-cloud"})
_REPORTS_ITS_END_MODULES = ("pydantic_ai.models.anthropic", "pydantic_ai.models.google")


async def request_model(run: Run, send: Send) -> ModelResponse:
    """Send one request and return its response, which is then the last message of the history.

    Whatever ends the stream early, cancellation included, leaves an interrupted response with what arrived.

    Raises:
        UserError: there is nothing to send, or the model cannot take it.
        UsageLimitExceeded: the request limit is reached; the request is in the history, unsent.
        RunFailedError: the stream ended without the provider saying so, or has too many tool calls.
        ModelAPIError: the provider failed, or took longer than the settings allow.
    """
    parameters = await _begin(run, send)
    stream: StreamedResponse | None = None
    try:
        await fit_context(run)
        timeouts = RequestTimeouts.start(run.request.model, run.settings)
        with timeouts.scope:
            outgoing = await _outgoing(run, parameters)
            async with run.request.model.request_stream(outgoing, run.settings, parameters, run.context) as stream:
                await _forward(run, stream, timeouts)
        timeouts.check()
        assert stream is not None
        response = _finished(run.request.model, stream)
    except BaseException:
        # Nothing here waits, so a cancelled run keeps what arrived.
        run.append_response(_interrupted(stream))
        raise
    run.append_response(response)
    return response


async def _begin(run: Run, send: Send) -> ModelRequestParameters:
    """Put the request into the history, then check that it may be sent."""
    request = send.request
    request.timestamp = now()
    if not send.resumed:
        run.stamp(request)
    first = not run.messages
    run.messages.append(request)
    run.step += 1
    run.context.run_step = run.step
    run.tool_retries.next_step()
    run.context.retries = run.tool_retries.counts
    parameters = await run.parameters()
    request.instructions = run.instructions
    if first and not request.parts and not request.instructions:
        raise UserError(NOTHING_TO_SEND)
    run.limits.check_before_request(run.capture.usage)
    run.stamp(request)
    return parameters


async def _outgoing(run: Run, parameters: ModelRequestParameters) -> list[ModelMessage]:
    """The history in a form the provider accepts; the history itself is not changed.

    With a long history this runs in a worker thread, so a model's ``prepare_messages`` must be safe there.
    """
    prepare = partial(_prepare, run.request.model, list(run.messages), parameters)
    if not is_long(run.messages):
        return prepare()
    return await trio.to_thread.run_sync(prepare, abandon_on_cancel=True)


def _prepare(model: Model, messages: list[ModelMessage], parameters: ModelRequestParameters) -> list[ModelMessage]:
    outgoing = repair_messages(messages)
    prepared = model.prepare_messages(outgoing, parameters)
    return outgoing if prepared is outgoing else repair_messages(prepared)


async def _forward(run: Run, stream: StreamedResponse, timeouts: RequestTimeouts) -> None:
    """Hand every event to the sink.

    Raises:
        RunFailedError: the response has too many tool calls; it is not read on.
    """
    events = aiter(stream)
    calls = 0
    async with _closing(events):
        async for event in events:
            timeouts.pause()
            if isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart):
                calls += 1
                refuse_too_many(calls)
            await run.emit(event)
            timeouts.resume()


def _closing(events: AsyncIterator[Any]) -> AbstractAsyncContextManager[Any]:
    """Close a stream's generator when the loop stops in its middle; left to the collector it would warn."""
    return aclosing(events) if hasattr(events, "aclose") else nullcontext()


def _interrupted(stream: StreamedResponse | None) -> ModelResponse:
    """What arrived of a response that was cut. Never raises: the error that cut it is the one to report."""
    if stream is not None:
        try:
            return replace(stream.get(), state="interrupted")
        except Exception:  # noqa: BLE001 - a broken stream must not hide why it broke
            pass
    return ModelResponse(parts=[], model_name="", state="interrupted")


def _finished(model: Model, stream: StreamedResponse) -> ModelResponse:
    """The response of a stream that ended by itself, if it really was the end (decision R15)."""
    response = stream.get()
    cut = response.state != "complete" or (response.finish_reason is None and _reports_its_end(model, stream))
    if cut:
        raise RunFailedError(
            f"The model's response stream ended early (state {response.state!r}, finish reason "
            f"{response.finish_reason!r}), so the run fails. Run it again, and check the connection to the provider.",
            reason=Reason.INCOMPLETE_STREAM,
        )
    return response


def _reports_its_end(model: Model, stream: StreamedResponse) -> bool:
    """Whether the provider always says why a response ended, so that silence means a cut connection."""
    return model.system in _REPORTS_ITS_END or type(stream).__module__.startswith(_REPORTS_ITS_END_MODULES)
