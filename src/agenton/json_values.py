"""Values of any origin as JSON data that every parser reads back as it is.

JSON's grammar has no bounds, its readers do: 4,300 digits of an integer (Python) and 200 levels of nesting (pydantic)
are what a session snapshot has to keep to, because a caller sends it back.
"""

import gc
import math
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import from_json, to_json, to_jsonable_python

MAX_DIGITS: Final = 4300
"""Digits of an integer: Python's own limit for reading one, which holds for request bodies too."""
READER_DEPTH: Final = 200
"""Nesting that pydantic's parser reads, and that a request body may have."""

_SHORT_INTEGER_BITS: Final = 14_000
"""Integers of so many bits surely have fewer digits than the limit."""
_ARRAYS: Final = (list, tuple, set, frozenset, deque)


class NotJsonDataError(ValueError):
    """A value that has no JSON form, not even a replaced one. The text says why, without the value."""


def json_data(value: Any, max_depth: int, *, opaque: tuple[type[Any], ...] = ()) -> Any:
    """``value`` itself when its JSON text says all of it, else the JSON data that it becomes.

    NaN and the infinities become None, a lone surrogate U+FFFD, two that form a pair their character, bytes their text
    or, when they are no UTF-8, base64url. Of keys that become equal the last one counts. An object of a type that has
    no JSON form becomes the type's name in angle brackets. Objects of ``opaque`` types are left to their own
    serializers.

    Raises:
        NotJsonDataError: the value is nested more than ``max_depth`` (at most `READER_DEPTH`) levels deep, contains
            itself, or has an integer of more than `MAX_DIGITS` digits.
    """
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, Iterator):
        value = list(value)  # can be read only once
    if is_exact(value, max_depth):
        return value
    try:
        return _Mending(opaque, _replaced).mend(value, max_depth)
    except RecursionError:
        raise _too_deep(max_depth) from None


def plain_data(value: Any, max_depth: int) -> Any:
    """A copy of ``value``, made as in `json_data`, of nothing but JSON's types and bytes.

    Raises:
        NotJsonDataError: as there, or it has a value of another type.
    """
    try:
        return _Mending((), _refused).mend(value, max_depth)
    except RecursionError:
        raise _too_deep(max_depth) from None


def is_exact(value: Any, max_depth: int) -> bool:
    """Whether every parser reads ``value`` back from its JSON text: nothing would be replaced, lost or refused."""
    padding = READER_DEPTH - max_depth
    try:
        text = to_json(value, inf_nan_mode="constants")
        with collector_paused():
            read = from_json(b"[" * padding + text + b"]" * padding, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return False
    # A repeated key is gone from what was read.
    return len(to_json(read)) == len(text) + 2 * padding


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector while data without cycles is made: walking it again and again while it grows takes
    several times as long as making it (measured)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def has_long_integer(text: bytes) -> bool:
    """Whether a valid JSON text has an integer of more than `MAX_DIGITS` digits, outside its strings.

    Looks at every 4,300th byte: a longer run of digits covers one of them.
    """
    suspects = (at for at in range(MAX_DIGITS, len(text), MAX_DIGITS) if text[at : at + 1].isdigit())
    if not any(_digits_around(text, at) > MAX_DIGITS for at in suspects):
        return False
    try:
        from_json(text)
    except ValueError:
        return True
    return False


def readable_text(text: str) -> str:
    """``text`` without lone surrogates."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def bytes_text(value: bytes | bytearray) -> str:
    """The text that ``value`` is in UTF-8, else base64url."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return urlsafe_b64encode(value).decode()


def type_name(value: Any) -> str:
    """What stands for an object without a JSON form."""
    return f"<{type(value).__name__}>"


class _Mending:
    """One walk through a value."""

    def __init__(self, opaque: tuple[type[Any], ...], other: Callable[[Any], Any]) -> None:
        self._opaque = opaque
        self._other = other
        self._limit = 0

    def mend(self, value: Any, max_depth: int) -> Any:
        """The JSON data of ``value``."""
        self._limit = max_depth
        return self._mend(value, 0)

    def _mend(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (bool, *self._opaque)):
            return value
        if isinstance(value, str):
            return readable_text(value)
        if isinstance(value, int):
            return _checked_integer(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, bytes | bytearray):
            return bytes_text(value)
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        is_mapping = isinstance(value, Mapping)
        if not is_mapping and not isinstance(value, _ARRAYS):
            return self._mend(self._other(value), depth)
        if depth >= self._limit:
            raise _too_deep(self._limit)
        if is_mapping:
            return {self._key(key): self._mend(item, depth + 1) for key, item in value.items()}
        return [self._mend(item, depth + 1) for item in value]

    def _key(self, key: Any) -> str:
        if isinstance(key, str | bytes | bytearray):
            return str(self._mend(key, 0))
        if isinstance(key, int):
            _checked_integer(key)
        try:
            return str(next(iter(to_jsonable_python({key: None}))))
        except (ValueError, RecursionError):
            return str(self._other(key))


def is_long_integer(value: int) -> bool:
    """Whether ``value`` has more than `MAX_DIGITS` digits."""
    return value.bit_length() > _SHORT_INTEGER_BITS and abs(value) >= 10**MAX_DIGITS


def _checked_integer(value: int) -> int:
    if is_long_integer(value):
        raise NotJsonDataError(f"it has an integer of more than {MAX_DIGITS} digits")
    return value


def _replaced(value: Any) -> Any:
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants", fallback=type_name)
    except (ValueError, RecursionError) as error:
        if isinstance(value, BaseModel) and isinstance(error, UnicodeError):
            return value.model_dump(mode="python", warnings=False)  # bytes without a text: the walk knows what to do
        raise NotJsonDataError(f"{type_name(value)} cannot be serialized ({readable_text(str(error))})") from error


def _refused(value: Any) -> Any:
    raise NotJsonDataError(f"{type_name(value)} has no JSON form")


def _too_deep(limit: int) -> NotJsonDataError:
    return NotJsonDataError(f"it is nested more than {limit} levels deep, or contains itself")


def _digits_around(text: bytes, position: int) -> int:
    """Length of the run of digits at ``position``, which stops counting once it is too long."""
    before, after = text[max(0, position - MAX_DIGITS) : position], text[position : position + MAX_DIGITS + 1]
    digits = b"0123456789"
    return len(before) - len(before.rstrip(digits)) + len(after) - len(after.lstrip(digits))
