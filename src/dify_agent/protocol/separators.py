"""How many values a JSON text has, before it is parsed: a parser takes its time by their number, and keeps the
interpreter's lock meanwhile.

Everything here works in slices or in Python's own loops, so that a text of 64 MiB in a worker thread costs other
threads milliseconds at a time.
"""

import re
from collections.abc import Iterator
from typing import Final

SLICE: Final = 1024 * 1024
OPENING: Final = (b"[", b"{")
_SEPARATORS: Final = (b",", *OPENING)
_TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"]{1,65536}', re.DOTALL)
"""A string, or what lies between strings. Possessive, because a string may have 30 million escapes."""


def slices(text: bytes) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive parts of ``text``."""
    return ((start, start + SLICE) for start in range(0, len(text), SLICE))


def count_marks(text: bytes, marks: tuple[bytes, ...]) -> int:
    """How often any of these single bytes occurs."""
    return sum(text.count(mark, *bounds) for bounds in slices(text) for mark in marks)


def has_more_separators(text: bytes, limit: int) -> bool:
    """Whether ``text`` has more than ``limit`` commas and opening brackets outside its strings, which are about as
    many as there are values."""
    if len(text) <= limit or count_marks(text, _SEPARATORS) <= limit:
        return False
    found = 0
    for match in _TOKENS.finditer(text):
        token = match[0]
        if not token.startswith(b'"'):
            found += sum(map(token.count, _SEPARATORS))
            if found > limit:
                return True
    return False
