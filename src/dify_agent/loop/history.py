"""How a run starts: what the given history ends in decides what is done first (specification, agent-loop 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import trio
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.tools import DeferredToolResults

from dify_agent.loop import texts
from dify_agent.loop.state import Run

LONG_HISTORY = 300
"""Messages and parts from which history is repaired in a worker thread: up to 5 ms of CPU that would delay every other
run."""
MOST_NEIGHBOURS = 1000
"""Requests in a row, beyond which a history is refused. No run leaves more than a few, and joining them takes time with
the square of their number (measured: 8 s for 10,000)."""


@dataclass(frozen=True, slots=True)
class Send:
    """Next comes a model request."""

    request: ModelRequest
    resumed: bool = False
    """The request is an older run's: it keeps its ids, and gets this run's only when it is really sent."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Results given for the calls of a response."""

    results: dict[str, Any] = field(default_factory=dict)
    """By call id: a Pydantic AI result object, or ``skip`` for a call that the history already answers."""
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handle:
    """Next comes the handling of a response that is already in the history."""

    response: ModelResponse
    answers: Answers | None = None


SKIP: Literal["skip"] = "skip"


async def start(run: Run) -> Send | Handle:
    """Clean the history, bind it to the capture, and decide the first step.

    Raises:
        UserError: prompt, results and history do not go together.
    """
    request = run.request
    messages = run.messages
    if _most_neighbours(request.history) > MOST_NEIGHBOURS:
        raise UserError(texts.too_many_neighbours(MOST_NEIGHBOURS))
    messages[:] = await repaired(request.history, repair_last_response=False)
    if request.deferred_results is not None:
        return _resume(messages, request.deferred_results)
    if _ends_interrupted(messages, with_prompt=request.prompt is not None):
        messages[:] = await repaired(messages)
    if request.prompt is None and messages:
        return _continue(run)
    last = messages[-1] if messages else None
    if isinstance(last, ModelResponse):
        if last.state == "suspended":
            raise UserError(texts.PROMPT_WHILE_SUSPENDED)
        if last.tool_calls:
            raise UserError(texts.PROMPT_WHILE_PENDING)
    parts = [UserPromptPart(request.prompt)] if request.prompt is not None else []
    return Send(ModelRequest(parts=parts))


def _most_neighbours(messages: Sequence[ModelMessage]) -> int:
    most = run = 0
    for message in messages:
        run = run + 1 if isinstance(message, ModelRequest) else 0
        most = max(most, run)
    return most


def is_long(messages: Sequence[ModelMessage]) -> bool:
    """Whether work on all of ``messages`` belongs into a worker thread."""
    left = LONG_HISTORY - len(messages)
    for message in messages if left > 0 else ():
        left -= len(message.parts)
        if left <= 0:
            break
    return left <= 0


async def repaired(messages: Sequence[ModelMessage], *, repair_last_response: bool = True) -> list[ModelMessage]:
    """`repair_messages`, in a worker thread when the history is long."""
    repair = partial(repair_messages, list(messages), repair_last_response=repair_last_response)
    if not is_long(messages):
        return repair()
    return await trio.to_thread.run_sync(repair, abandon_on_cancel=True)


def _ends_interrupted(messages: list[ModelMessage], *, with_prompt: bool) -> bool:
    """Whether calls at the end of the history will never be answered, because their run was interrupted."""
    if not messages or messages[-1].state != "interrupted":
        return False
    last = messages[-1]
    return isinstance(last, ModelRequest) or (with_prompt and bool(last.tool_calls))


def _continue(run: Run) -> Send | Handle:
    """Without a prompt: send the last request again, or act on the last response."""
    messages = run.messages
    last = messages[-1]
    if isinstance(last, ModelRequest):
        messages.pop()
        again = ModelRequest(
            parts=last.parts, run_id=last.run_id, conversation_id=last.conversation_id, metadata=last.metadata
        )
        return Send(again, resumed=True)
    if last.state == "suspended":
        raise UserError(texts.PROMPT_WHILE_SUSPENDED)
    if last.tool_calls or not run.instruction_parts:
        return Handle(last)
    return Send(ModelRequest(parts=[]))


def _resume(messages: list[ModelMessage], given: DeferredToolResults) -> Handle:
    """Match given results with the last response, which need not be the last message."""
    if not messages:
        raise UserError(texts.RESULTS_WITHOUT_HISTORY)
    answered: ModelRequest | None = None
    response: ModelResponse | None = None
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            response = message
            break
        answered = message
    if response is None:
        raise UserError(texts.RESULTS_WITHOUT_RESPONSE)
    if not response.tool_calls:
        raise UserError(texts.RESULTS_WITHOUT_CALLS)
    results: dict[str, Any] = dict(given.to_tool_call_results())
    for call_id in _answered_ids(answered):
        if call_id in results:
            raise UserError(texts.result_overridden(call_id))
        results[call_id] = SKIP
    return Handle(response, Answers(results=results, metadata=given.metadata))


def _answered_ids(request: ModelRequest | None) -> list[str]:
    parts = request.parts if request is not None else ()
    return [
        part.tool_call_id
        for part in parts
        if isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name is not None)
    ]
