"""Messages as text for a summary, and what they weigh in tokens (roughly)."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

_FILE_TOKENS: Final = 1000
"""What a file counts as; providers differ between a hundred and a few thousand."""
_MESSAGE_TOKENS: Final = 4


def estimate(messages: Sequence[ModelMessage]) -> int:
    """Tokens of the history, roughly: four ASCII characters each, about one for each character of Asian scripts."""
    tokens = sum(_MESSAGE_TOKENS + _tokens(message) for message in messages)
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest) and last.instructions:
        tokens += _text_tokens(last.instructions)
    return tokens


def pieces_of(messages: Sequence[ModelMessage], budget: int) -> Iterator[str]:
    """The messages as text, in pieces that leave room for the summary so far: the old part alone may be longer than the
    model's context."""
    limit = max(budget // 2, 1)
    gathered = ""
    tokens = 0
    for line in _lines(messages):
        rest = line
        while rest:
            cost = _text_tokens(rest)
            if tokens + cost <= limit:
                gathered, tokens, rest = gathered + rest, tokens + cost, ""
            elif gathered:
                yield gathered
                gathered, tokens = "", 0
            else:
                characters = limit * 4 if rest.isascii() else limit
                yield rest[:characters]
                rest = rest[characters:]
    if gathered:
        yield gathered


def _lines(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        for part in message.parts:
            text = _shown(part)
            if text:
                yield f"{_speaker(part)}: {text}\n"


def _speaker(part: Any) -> str:
    match part:
        case UserPromptPart():
            return "user"
        case ToolReturnPart():
            return f"result of {part.tool_name}"
        case TextPart() | ToolCallPart():
            return "assistant"
        case _:
            return "system"


def _shown(part: Any) -> str:
    """What a part says, as text; files by their kind."""
    match part:
        case ToolCallPart():
            return f"calls {part.tool_name} with {part.args_as_json_str()}"
        case ToolReturnPart():
            return "\n".join(map(_item, part.content_items(mode="str")))
        case UserPromptPart() if not isinstance(part.content, str):
            return "\n".join(map(_item, part.content))
        case _:
            content = getattr(part, "content", "")
            return content if isinstance(content, str) else ""


def _item(item: Any) -> str:
    if isinstance(item, str):
        return item
    content = getattr(item, "content", None)
    return content if isinstance(content, str) else f"[{getattr(item, 'kind', 'file')}]"


def _tokens(message: ModelMessage) -> int:
    return sum(_text_tokens(_shown(part)) + _FILE_TOKENS * _files(part) for part in message.parts)


def _files(part: Any) -> int:
    content = getattr(part, "content", None)
    items = content if isinstance(content, list | tuple) else [content]
    return sum(hasattr(item, "media_type") or hasattr(item, "identifier") for item in items)


def _text_tokens(text: str) -> int:
    if text.isascii():
        return math.ceil(len(text) / 4)
    more = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return math.ceil(len(text) / 4 + more * 3 / 8)
