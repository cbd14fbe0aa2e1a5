"""Whether a value can leave as strict JSON, and how much of it there is."""

import math
from dataclasses import dataclass
from typing import Any, Final

from dify_agent.errors import DifyAgentError

MAX_DEPTH: Final = 200
"""Nesting, the same as that of JSON text and of a request body."""
MAX_DIGITS: Final = 4300
"""Digits of an integer, the same as in JSON text: Python's own limit for reading one."""
_SHORT_INTEGER_BITS: Final = 14_000
"""Integers of so many bits surely have fewer digits than the limit."""

_Trail = tuple[Any, Any] | None
"""The way to a value, last step first: a step and the rest. Cheaper than a path for each value."""


class NotJsonError(DifyAgentError):
    """A value that JSON has no form for."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path: Final = path


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a JSON value is."""

    values: int
    """Values in it, itself included."""
    characters: int
    """Characters of keys and strings, each counted once for every container that it stands in."""


def measure(value: Any, max_depth: int = MAX_DEPTH) -> Extent:
    """The extent of a JSON value. Does not recurse.

    Raises:
        NotJsonError: it holds a number that is not finite or has too many digits, a lone surrogate, a key that is no
            string, a type unknown to JSON, or is nested too deeply. The same holds of JSON text; this is for
            arguments that come as objects.
    """
    values = characters = 0
    pending: list[tuple[Any, int, _Trail]] = [(value, 1, None)]
    while pending:
        item, depth, trail = pending.pop()
        values += 1
        if isinstance(item, str):
            characters += len(item) * depth
            _check_text(item, trail)
        elif isinstance(item, dict | list):
            if depth > max_depth:
                raise NotJsonError(_path(trail), f"nested more than {max_depth} levels deep")
            if isinstance(item, list):
                pending.extend([(child, depth + 1, (index, trail)) for index, child in enumerate(item)])
                continue
            for key, child in item.items():
                _check_key(key, trail)
                characters += len(key) * depth
                pending.append((child, depth + 1, (key, trail)))
        else:
            _check_scalar(item, trail)
    return Extent(values, characters)


def format_path(steps: list[str | int]) -> str:
    """The path in the notation of error texts: ``$``, ``$.a.b``, ``$.items[0]``. Always encodable."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return "$" + text.encode("utf-8", "backslashreplace").decode()


def _check_scalar(value: Any, trail: _Trail) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJsonError(_path(trail), f"{value} is not a JSON number")
    elif isinstance(value, int):
        if value.bit_length() > _SHORT_INTEGER_BITS and abs(value) >= 10**MAX_DIGITS:
            raise NotJsonError(_path(trail), f"an integer of more than {MAX_DIGITS} digits")
    else:
        raise NotJsonError(_path(trail), f"{type(value).__name__} is not a JSON type")


def _check_text(text: str, trail: _Trail) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJsonError(_path(trail), "the text has half of a surrogate pair") from None


def _check_key(key: Any, trail: _Trail) -> None:
    if not isinstance(key, str):
        raise NotJsonError(_path(trail), f"a key is {type(key).__name__}, not a string")
    _check_text(key, (key, trail))


def _path(trail: _Trail) -> str:
    steps: list[str | int] = []
    while trail is not None:
        step, trail = trail
        steps.append(step)
    return format_path(steps[::-1])
