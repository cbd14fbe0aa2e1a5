"""What `Model.prepare_messages` of Pydantic AI must not do for Dify (integrations 3.5). Nothing here waits.

Both functions return the list they were given when there is nothing to change: a caller tells by this that it need not
repair the history again.
"""

from collections.abc import Callable
from dataclasses import replace

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    RetryFeedbackPart,
    SystemPromptPart,
    UserPromptPart,
)

_Change = Callable[[ModelRequestPart], ModelRequestPart | None]


def feedback_as_prompts(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history with each request for a usable answer as a prompt of the user's; left to Pydantic AI, it would be
    part of the system prompt."""
    return _changed(messages, _prompt_for)


def without_notes(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history without what Pydantic AI added to explain it: notes on texts that look like its tags, and the
    announcement of these notes and of its own tags, which Dify's prompts do not have."""
    return _changed(messages, lambda part: None if _is_note(part) else part)


def _prompt_for(part: ModelRequestPart) -> ModelRequestPart:
    if isinstance(part, RetryFeedbackPart):
        return UserPromptPart(part.model_response(), timestamp=part.timestamp)
    return part


def _is_note(part: ModelRequestPart) -> bool:
    """Pydantic AI marks what it adds by a type of its own, which no history that was read from JSON has."""
    return isinstance(part, SystemPromptPart) and type(part) is not SystemPromptPart


def _changed(messages: list[ModelMessage], change: _Change) -> list[ModelMessage]:
    result = [_request(message, change) if isinstance(message, ModelRequest) else message for message in messages]
    same = all(new is old for new, old in zip(result, messages, strict=True))
    return messages if same else result


def _request(request: ModelRequest, change: _Change) -> ModelRequest:
    parts = [new for part in request.parts if (new := change(part)) is not None]
    same = len(parts) == len(request.parts) and all(new is old for new, old in zip(parts, request.parts, strict=True))
    return request if same else replace(request, parts=parts)
