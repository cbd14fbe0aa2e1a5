"""Values of any origin to strict JSON text: compact, UTF-8, never a crash over a character, a number or a type.

What a tool or a model may hand us and JSON cannot hold:

- NaN and the infinities become ``null``;
- a lone surrogate becomes U+FFFD, and two that form a pair become their character;
- bytes that are no UTF-8 become base64url text;
- an object of a type that has no JSON form becomes the name of its type in angle brackets.

Only nesting beyond the serializer's depth (about 250), or a cycle, is refused, with `PydanticSerializationError`.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaSerializer, to_json, to_jsonable_python


def encode(value: Any, serializer: SchemaSerializer | None = None) -> bytes:
    """The JSON text of ``value``, written by ``serializer`` or, without one, by the value's own type.

    Raises:
        PydanticSerializationError: the value contains itself or is nested too deeply.
    """
    try:
        if serializer is None:
            return to_json(value, inf_nan_mode="null", fallback=_type_name)
        return serializer.to_json(value, warnings=False, fallback=_type_name)
    except (PydanticSerializationError, UnicodeError):
        return to_json(_mended(value, serializer), inf_nan_mode="null", fallback=_type_name)


def _mended(value: Any, serializer: SchemaSerializer | None) -> Any:
    """Plain data with the same content, in which every string can be written as UTF-8."""
    dump: Callable[..., Any]
    if serializer is None:
        dump = partial(to_jsonable_python, value, fallback=_type_name, inf_nan_mode="null")
    else:
        dump = partial(serializer.to_python, value, mode="json", warnings=False, fallback=_type_name)
    try:
        plain = dump()
    except (PydanticSerializationError, UnicodeError):
        # Bytes without a text and surrogates in keys stop the JSON mode; the Python mode leaves both to us.
        plain = value if serializer is None else serializer.to_python(value, mode="python", warnings=False)
    return _clean(plain)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return urlsafe_b64encode(value).decode()
    return value


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"
