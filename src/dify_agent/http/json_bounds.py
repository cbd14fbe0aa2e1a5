"""What a JSON text and its value may hold beyond what the parser checks, without stopping the event loop for long.

Large texts are judged in a worker thread, which keeps the interpreter's lock for as long as one call into C takes. So
everything here works in slices or in Python's own loops: a text of 64 MiB then costs other threads milliseconds at a
time. The parser itself is one such call, and its time goes with the number of values, hence `MAX_SEPARATORS`.
"""

import re
from typing import Any, Final

from dify_agent.protocol.separators import OPENING, count_marks, slices

MAX_SEPARATORS: Final = 2_000_000
"""Commas and opening brackets outside strings, which are about as many as there are values. Parsing and validating so
many takes one to three seconds, depending on what they are (measured); 64 MiB could hold thirty times as many."""

_DIGITS: Final = 200
"""A number of fewer digits and without an exponent of three is within the range of a double, whose end has 309."""
_OVERLAP: Final = 400
_PLAIN: Final = bytes.maketrans(b"123456789E", b"000000000e")
_SIGNS_OF_HUGE: Final = (b"0" * _DIGITS, b"e000", b"e+000")
_HUGE: Final = re.compile(rb"[0-9][eE]\+?0*[1-9][0-9]{2}|(?<![0-9])[0-9]{200}")


def is_deeper(text: bytes, value: Any, levels: int) -> bool:
    """Whether ``value``, parsed from ``text``, nests containers deeper than ``levels``.

    The parser refuses that by itself, but for an empty innermost container.
    """
    if count_marks(text, OPENING) <= levels:
        return False
    layer = [value]
    for _ in range(levels):
        layer = [child for item in layer if item for child in (item.values() if type(item) is dict else item)]
        layer = [child for child in layer if type(child) is dict or type(child) is list]
        if not layer:
            return False
    return True


def infinity_offset(text: bytes, value: Any) -> int | None:
    """Where ``text`` has a number beyond the range of a double; None when its ``value`` holds no infinity."""
    if not _may_be_huge(text) or not _has_infinity(value):
        return None
    for start, end in slices(text):
        match = _HUGE.search(text, start, end + _OVERLAP)
        if match is not None:
            return match.start()
    return 0


def _may_be_huge(text: bytes) -> bool:
    """Whether there are very many digits in a row, or an exponent of three. Cheaper than walking the value: a tenth."""
    for start, end in slices(text):
        plain = text[start : end + _OVERLAP].translate(_PLAIN)
        if any(sign in plain for sign in _SIGNS_OF_HUGE):
            return True
    return False


def _has_infinity(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if item in (float("inf"), float("-inf")):
                return True
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False


def line_start(text: bytes, line: int) -> int:
    """The offset at which a line begins; the first is 1."""
    missing, start = line - 1, 0
    for begin, end in slices(text):
        breaks = text.count(b"\n", begin, end)
        if breaks >= missing:
            start = begin
            break
        missing -= breaks
    for _ in range(missing):
        start = text.index(b"\n", start) + 1
    return start
