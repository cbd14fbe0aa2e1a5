"""Inline thinking: ``<think>…</think>`` inside text, wherever the chunks cut it (integrations 3.7)."""

from collections.abc import Iterator
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"

Piece = tuple[bool, str]
"""Whether it is thinking, and the text; never empty."""


class ThinkingSplitter:
    """Splits a stream of text into thinking and answer. Newlines beside the tags are kept."""

    def __init__(self) -> None:
        self._thinking = False
        self._held = ""

    @property
    def at_rest(self) -> bool:
        """Whether the splitter stands in plain text and holds nothing back."""
        return not (self._thinking or self._held)

    def feed(self, text: str) -> list[Piece]:
        """The pieces that ``text`` completes. A beginning of a tag at its end is held back for the next call."""
        if not self._held and "<" not in text:
            return [(self._thinking, text)] if text else []
        text = self._held + text
        self._held = ""
        pieces: list[Piece] = []
        start = 0
        while (at := text.find(tag := CLOSE if self._thinking else OPEN, start)) >= 0:
            if at > start:
                pieces.append((self._thinking, text[start:at]))
            self._thinking = not self._thinking
            start = at + len(tag)
        end = len(text) - _started(text, tag, start)
        if end > start:
            pieces.append((self._thinking, text[start:end]))
        self._held = text[end:]
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back, which turned out to be no tag."""
        held, self._held = self._held, ""
        return [(self._thinking, held)] if held else []


def whole_spans(text: str) -> Iterator[tuple[str, str | None]]:
    """Text before each complete ``<think>`` span and the thinking in it, trimmed of newlines; at last the rest and
    None."""
    end = 0
    while (start := text.find(OPEN, end)) >= 0 and (close := text.find(CLOSE, start + len(OPEN))) >= 0:
        yield text[end:start], text[start + len(OPEN) : close].strip("\r\n")
        end = close + len(CLOSE)
    yield text[end:], None


def _started(text: str, tag: str, start: int) -> int:
    """Length of the longest proper beginning of ``tag`` that ``text`` ends with, behind ``start``."""
    at = text.rfind("<", max(start, len(text) - len(tag) + 1))
    return len(text) - at if at >= 0 and tag.startswith(text[at:]) else 0
