"""Keep a long history inside the model's context (layers 2.5, integrations 3.9).

Two steps, the second only when the first is not enough: clear the results of old tool calls, then let the model
summarise what is old. The result replaces the history, so that later requests and runs go on from it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from dify_agent.errors import Reason, RunFailedError
from dify_agent.loop.pace import Pace
from dify_agent.loop.texts import too_long_to_summarise
from dify_agent.loop.transcript import TooManyPiecesError, estimate, pieces_of

CLEARED: Final = "[tool result cleared]"
KEPT_RESULTS: Final = 3
KEPT_MESSAGES: Final = 20
MAX_SUMMARIES: Final = 100
"""Requests that one compaction may make, a fifth of what a run has. A piece is half of the budget, so what is old may
be 50 times as long as what the model can read: enough for a session that moves to a model with a short window, and a
window of a few tokens, set by mistake, does not cost 500 requests."""
SUMMARY_PREFIX: Final = "Summary of previous conversation:"

SUMMARY_TASK: Final = (
    "You condense a conversation between a user and an assistant that uses tools, so that the assistant can go on "
    "without it. Keep what later steps may need: the user's goals and constraints, decisions, facts found, names, "
    "numbers, identifiers and file paths, what was tried, and what is still open. Leave out pleasantries. Where an "
    "earlier summary is given, merge it. Answer with the summary only."
)

Summarise = Callable[[list[ModelMessage]], Awaitable[ModelResponse]]
"""Sends one request to the run's model."""


async def compacted(messages: Sequence[ModelMessage], budget: int, summarise: Summarise) -> list[ModelMessage] | None:
    """The history in a form that is estimated to fit ``budget`` tokens, or as near as it can get; None when it already
    does. The given messages are not changed, and the last one is always kept whole.

    Raises:
        RunFailedError: it would take more than `MAX_SUMMARIES` summaries; none was asked for.
        Exception: what ``summarise`` raised.
    """
    pace = Pace()
    if await estimate(messages, pace) <= budget:
        return None
    cleared = await clear_results(messages, pace)
    if await estimate(cleared, pace) <= budget:
        return cleared
    return await _summarised(cleared, budget, summarise, pace) or cleared


async def clear_results(messages: Sequence[ModelMessage], pace: Pace) -> list[ModelMessage]:
    """The history without old tool results. The newest few stay, and those of the last message, which the model has not
    seen yet; calls and their arguments stay all."""
    kept = KEPT_RESULTS
    changed = list(messages)
    for index in range(len(changed) - 1, -1, -1):
        message = changed[index]
        await pace.step()
        if not isinstance(message, ModelRequest):
            continue
        parts = list(message.parts)
        for place in range(len(parts) - 1, -1, -1):
            part = parts[place]
            await pace.step()
            if not isinstance(part, ToolReturnPart):
                continue
            if kept > 0 or index == len(changed) - 1:
                kept -= 1
            elif part.content != CLEARED:
                parts[place] = _cleared(part)
        if parts != message.parts:
            changed[index] = replace(message, parts=parts)
    return changed


def _cleared(part: ToolReturnPart) -> ToolReturnPart:
    """The result without what it said; a plain part, since a typed one wants its type's content."""
    return ToolReturnPart(
        part.tool_name,
        CLEARED,
        part.tool_call_id,
        metadata=part.metadata,
        timestamp=part.timestamp,
        outcome=part.outcome,
    )


async def _summarised(
    messages: list[ModelMessage], budget: int, summarise: Summarise, pace: Pace
) -> list[ModelMessage] | None:
    """First user message, summary, newest messages; None when there is nothing to summarise."""
    start = _tail_start(messages)
    head: list[ModelMessage] = []
    old = list(messages[:start])
    for index, message in enumerate(old):
        prompt = _prompt_of(message)
        if prompt is not None and isinstance(message, ModelRequest):
            # Repairing an earlier run's history may have merged its summary into this request.
            head = [replace(message, parts=[prompt])]
            old[index] = replace(message, parts=[part for part in message.parts if part is not prompt])
            break
    if not any(_is_news(message) for message in old):
        return None
    try:
        pieces = await pieces_of(old, budget, MAX_SUMMARIES, pace)
    except TooManyPiecesError:
        raise RunFailedError(too_long_to_summarise(MAX_SUMMARIES), reason=Reason.HISTORY_TOO_LONG) from None
    summary = ""
    for piece in pieces:
        summary = _text(await summarise(_question(summary, piece)))
        if not summary:
            return None  # a model that has nothing to say must not cost the run its history
    if not summary:
        return None
    content = f"{SUMMARY_PREFIX}\n\n{summary}"
    return [*head, ModelRequest(parts=[SystemPromptPart(content)]), *messages[start:]]


def _tail_start(messages: Sequence[ModelMessage]) -> int:
    """Where the newest messages begin: not between a call and its result."""
    start = max(0, len(messages) - KEPT_MESSAGES)
    while start > 0 and _has_results(messages[start]):
        start -= 1
    return start


def _has_results(message: ModelMessage) -> bool:
    """Whether the message answers calls of the one before. Any part that names a call counts."""
    return isinstance(message, ModelRequest) and any(getattr(part, "tool_call_id", None) for part in message.parts)


def _prompt_of(message: ModelMessage) -> UserPromptPart | None:
    if not isinstance(message, ModelRequest):
        return None
    return next((part for part in message.parts if isinstance(part, UserPromptPart)), None)


def _is_news(message: ModelMessage) -> bool:
    """Whether the message holds more than an earlier summary."""
    return any(not (isinstance(part, SystemPromptPart) and _is_summary(part)) for part in message.parts)


def _is_summary(part: SystemPromptPart) -> bool:
    return part.content.startswith(SUMMARY_PREFIX)


def _question(summary: str, piece: str) -> list[ModelMessage]:
    before = f"{SUMMARY_PREFIX}\n\n{summary}\n\n" if summary else ""
    return [ModelRequest(parts=[SystemPromptPart(SUMMARY_TASK), UserPromptPart(f"{before}{piece}")])]


def _text(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart)).strip()
