"""Inline thinking: ``<think>…</think>`` inside text, wherever the chunks cut it (integrations 3.7)."""

import re
from collections.abc import Iterator
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
_SPAN: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)

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
        while True:
            tag = CLOSE if self._thinking else OPEN
            before, found, after = text.partition(tag)
            if not found:
                break
            if before:
                pieces.append((self._thinking, before))
            self._thinking = not self._thinking
            text = after
        keep = len(text) - _started(text, tag)
        if keep:
            pieces.append((self._thinking, text[:keep]))
        self._held = text[keep:]
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back, which turned out to be no tag."""
        held, self._held = self._held, ""
        return [(self._thinking, held)] if held else []


def whole_spans(text: str) -> Iterator[tuple[str, str | None]]:
    """Text before each complete ``<think>`` span and the thinking in it, trimmed of newlines; at last the rest and
    None."""
    end = 0
    for span in _SPAN.finditer(text):
        yield text[end : span.start()], span[1].strip("\r\n")
        end = span.end()
    yield text[end:], None


def _started(text: str, tag: str) -> int:
    """Length of the longest proper beginning of ``tag`` that ``text`` ends with."""
    at = text.rfind("<", max(0, len(text) - len(tag) + 1))
    return len(text) - at if at >= 0 and tag.startswith(text[at:]) else 0
