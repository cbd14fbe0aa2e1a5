"""Messages as text for a summary, and what they weigh in tokens (roughly).

A history may have tens of megabytes, in a few texts or in a hundred thousand parts. So every walk takes time with its
length only, and a `Pace`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from dify_agent.loop.pace import STRETCH, Pace

_FILE_TOKENS: Final = 1000
"""What a file counts as; providers differ between a hundred and a few thousand."""
_MESSAGE_TOKENS: Final = 4
_ITEMS: Final = 100
"""Of a result, rendered at once."""
_CHARACTERS_PER_TOKEN: Final = 4
"""At most: a text has no fewer tokens than a quarter of its characters."""


class TooManyPiecesError(Exception):
    """The messages do not fit into the pieces they may have."""


async def estimate(messages: Sequence[ModelMessage], pace: Pace) -> int:
    """Tokens of the history, roughly: four ASCII characters each, about one for each character of Asian scripts."""
    tokens = 0
    for message in messages:
        await pace.step()
        tokens += _MESSAGE_TOKENS
        for part in message.parts:
            tokens += await _part_tokens(part, pace)
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest) and last.instructions:
        tokens += await _text_tokens(last.instructions, pace)
    return tokens


async def pieces_of(messages: Sequence[ModelMessage], budget: int, most: int, pace: Pace) -> list[str]:
    """The messages as text, in pieces that leave room for the summary so far: the old part alone may be longer than the
    model's context.

    Raises:
        TooManyPiecesError: it would take more than ``most``; the rest was not looked at.
    """
    pieces = _Pieces(max(budget // 2, 1), most, pace)
    for message in messages:
        for part in message.parts:
            await pace.step()
            for line in _lines(part):
                await pieces.add(line)
    return pieces.all()


class _Pieces:
    """Gathers lines into pieces of at most ``limit`` tokens, and cuts those that are longer than a piece."""

    def __init__(self, limit: int, most: int, pace: Pace) -> None:
        self._limit: Final = limit
        self._most: Final = most
        self._pace: Final = pace
        self._done: list[str] = []
        self._gathered: list[str] = []
        self._tokens = 0

    async def add(self, line: str) -> None:
        await self._pace.step()
        start = 0
        while start < len(line):
            rest = await self._fitting_rest(line, start)
            if rest is not None:
                tokens, text = rest
                if self._tokens + tokens > self._limit:
                    self._close()
                self._gathered.append(text)
                self._tokens += tokens
                return
            self._close()
            piece = self._cut(line, start)
            await self._pace.step(len(piece))
            self._gathered.append(piece)
            self._close()
            start += len(piece)

    def all(self) -> list[str]:
        self._close()
        return self._done

    async def _fitting_rest(self, line: str, start: int) -> tuple[int, str] | None:
        """The line from ``start`` with its tokens; None when that alone is longer than a piece."""
        if len(line) - start > self._limit * _CHARACTERS_PER_TOKEN:
            return None
        text = line[start:]
        tokens = await _text_tokens(text, self._pace)
        return (tokens, text) if tokens <= self._limit else None

    def _cut(self, line: str, start: int) -> str:
        """As much of the line from ``start`` as surely is no more than a piece, give or take a few emoji."""
        piece = line[start : start + self._limit * _CHARACTERS_PER_TOKEN]
        return piece if piece.isascii() else piece[: self._limit]

    def _close(self) -> None:
        if not self._gathered:
            return
        if len(self._done) == self._most:
            raise TooManyPiecesError
        self._done.append("".join(self._gathered))
        self._gathered.clear()
        self._tokens = 0


def _lines(part: Any) -> Iterator[str]:
    """What a part says and who says it, by items of its content."""
    start = f"{_speaker(part)}: "
    for text in _texts(part):
        if text:
            yield f"{start}{text}\n"
            start = ""


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


def _texts(part: Any) -> Iterator[str]:
    """What a part says, as text; files by their kind."""
    match part:
        case ToolCallPart():
            yield f"calls {part.tool_name} with {part.args_as_json_str()}"
        case ToolReturnPart():
            for some in _in_stretches(part):
                yield from map(_item, some.content_items(mode="str"))
        case UserPromptPart() if not isinstance(part.content, str):
            yield from map(_item, part.content)
        case _:
            content = getattr(part, "content", "")
            if isinstance(content, str):
                yield content


def _in_stretches(part: ToolReturnPart) -> Iterator[ToolReturnPart]:
    """A result whose content is a long list, in parts that are rendered at once; what is no success is one text."""
    content = part.content
    if not isinstance(content, list) or len(content) <= _ITEMS or part.outcome != "success":
        yield part
        return
    for start in range(0, len(content), _ITEMS):
        yield ToolReturnPart(part.tool_name, content[start : start + _ITEMS], part.tool_call_id)


def _item(item: Any) -> str:
    if isinstance(item, str):
        return item
    content = getattr(item, "content", None)
    return content if isinstance(content, str) else f"[{getattr(item, 'kind', 'file')}]"


async def _part_tokens(part: Any, pace: Pace) -> int:
    tokens = 0
    for text in _texts(part):
        tokens += await _text_tokens(text, pace)
    content = getattr(part, "content", None)
    for item in content if isinstance(content, list | tuple) else [content]:
        if hasattr(item, "media_type") or hasattr(item, "identifier"):
            tokens += _FILE_TOKENS
        await pace.step()
    return tokens


async def _text_tokens(text: str, pace: Pace) -> int:
    await pace.step()
    tokens = len(text) / _CHARACTERS_PER_TOKEN
    if not text.isascii():
        for start in range(0, len(text), STRETCH):
            stretch = text[start : start + STRETCH]
            tokens += (len(stretch.encode("utf-8", "surrogatepass")) - len(stretch)) * 3 / 8
            await pace.step(len(stretch))
    return math.ceil(tokens)
