"""How large a JSON value is, and whether it can leave as strict JSON."""

import math
from dataclasses import dataclass
from typing import Any, Final

from agenton.json_values import collector_paused
from dify_agent.errors import DifyAgentError
from dify_agent.protocol.json_values import MAX_DIGITS, READER_DEPTH, is_long_integer

VALUES_LIMIT: Final = 200_000
"""Values in one: counting them takes a microsecond each (measured)."""
LETTERS_PER_UNIT: Final = 64
DIGITS_PER_UNIT: Final = 50
"""Strings and long integers take as long to look at as several values (measured)."""
_WORD_BITS: Final = 64

_Trail = tuple[Any, Any] | None
"""The way to a value, last step first: a step and the rest. Cheaper than a path for each value."""


class NotJsonError(DifyAgentError):
    """A value that JSON has no form for."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path: Final = path


class TooManyValuesError(DifyAgentError):
    """A value of more than `VALUES_LIMIT` values."""

    def __init__(self) -> None:
        super().__init__(f"it has more than {VALUES_LIMIT} values")


@dataclass(slots=True)
class Level:
    """All values that stand in the same number of containers."""

    values: int = 0
    weight: int = 0
    """The values, long ones counted as several."""
    text: int = 0
    """Characters of strings."""
    names: int = 0
    """Characters of keys of the objects here."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a JSON value is."""

    levels: list[Level]
    """From the outermost; the first has the value itself."""
    long_integers: int
    """Integers of more than 64 bits."""

    @property
    def depth(self) -> int:
        """Number of levels."""
        return len(self.levels)

    @property
    def values(self) -> int:
        """Values in it, itself included."""
        return sum(level.values for level in self.levels)

    @property
    def characters(self) -> int:
        """Characters of keys and strings, each counted once for every container that it stands in."""
        return sum(number * (level.text + level.names) for number, level in enumerate(self.levels, 1))


def measure(value: Any, max_depth: int = READER_DEPTH, *, finite: bool = True) -> Extent:
    """The extent of a JSON value. Does not recurse. Without ``finite`` the infinities and NaN may be in it.

    Raises:
        NotJsonError: it holds a number that is not finite or has too many digits, a lone surrogate, a key that is no
            string, a type unknown to JSON, or is nested too deeply. The same holds of JSON text; this is for
            arguments that come as objects.
        TooManyValuesError: it is too large to be measured.
    """
    measuring = _Measuring(max_depth, finite)
    pending: list[tuple[Any, _Trail]] = [(value, None)]
    with collector_paused():
        while pending:
            pending = measuring.level(pending)
    return Extent(measuring.levels, measuring.long_integers)


class _Measuring:
    def __init__(self, max_depth: int, finite: bool) -> None:
        self.levels: list[Level] = []
        self.long_integers = 0
        self._left = VALUES_LIMIT - 1
        self._max_depth = max_depth
        self._finite = finite

    def level(self, items: list[tuple[Any, _Trail]]) -> list[tuple[Any, _Trail]]:
        """Take in all values of one level; returns those of the next."""
        level = Level(values=len(items), weight=len(items))
        self.levels.append(level)
        inner: list[tuple[Any, _Trail]] = []
        for item, trail in items:
            if isinstance(item, str):
                _check_text(item, trail)
                level.text += len(item)
            elif isinstance(item, dict | list):
                self._enter(item, trail)
                if isinstance(item, list):
                    inner.extend([(child, (index, trail)) for index, child in enumerate(item)])
                    continue
                for key, child in item.items():
                    _check_key(key, trail)
                    level.names += len(key)
                    inner.append((child, (key, trail)))
            else:
                level.weight += self._scalar(item, trail)
        level.weight += level.text // LETTERS_PER_UNIT
        return inner

    def _enter(self, container: Any, trail: _Trail) -> None:
        self._left -= len(container)
        if self._left < 0:
            raise TooManyValuesError
        if len(self.levels) > self._max_depth:
            raise NotJsonError(_path(trail), f"nested more than {self._max_depth} levels deep")

    def _scalar(self, value: Any, trail: _Trail) -> int:
        """What the value weighs beside being one."""
        if value is None or isinstance(value, bool):
            return 0
        if isinstance(value, float):
            if self._finite and not math.isfinite(value):
                raise NotJsonError(_path(trail), f"{value} is not a JSON number")
        elif isinstance(value, int):
            if value.bit_length() >= _WORD_BITS:
                return self._long_integer(value, trail)
        else:
            raise NotJsonError(_path(trail), f"{type(value).__name__} is not a JSON type")
        return 0

    def _long_integer(self, value: int, trail: _Trail) -> int:
        if is_long_integer(value):
            raise NotJsonError(_path(trail), f"an integer of more than {MAX_DIGITS} digits")
        self.long_integers += 1
        return value.bit_length() // 3 // DIGITS_PER_UNIT


def format_path(steps: list[str | int]) -> str:
    """The path in the notation of error texts: ``$``, ``$.a.b``, ``$.items[0]``. Always encodable."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return "$" + text.encode("utf-8", "backslashreplace").decode()


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
