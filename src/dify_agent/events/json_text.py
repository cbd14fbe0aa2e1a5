"""Values of any origin to strict JSON text: compact, UTF-8, never a crash over a character, a number or a type.

What a tool or a model may hand us and JSON cannot hold:

- NaN and the infinities become ``null``;
- a lone surrogate becomes U+FFFD, and two that form a pair become their character;
- bytes that are no UTF-8 become base64url text;
- an object of a type that has no JSON form becomes the name of its type in angle brackets.

Refused, with a `ValueError`: nesting beyond the serializer's depth (about 250), a cycle, and an integer of more than
4,300 digits, which most readers refuse.
"""

from typing import Any

from pydantic_core import SchemaSerializer, to_json

from dify_agent.protocol.json_values import (
    MAX_DIGITS,
    READER_DEPTH,
    NotJsonDataError,
    has_long_integer,
    json_data,
    type_name,
)


def encode(value: Any, serializer: SchemaSerializer | None = None) -> bytes:
    """The JSON text of ``value``, written by ``serializer`` or, without one, by the value's own type.

    Raises:
        ValueError: the value contains itself, is nested too deeply, or has too long an integer.
    """
    try:
        if serializer is None:
            text = to_json(value, inf_nan_mode="null", fallback=type_name)
        else:
            text = serializer.to_json(value, warnings=False, fallback=type_name)
    except (ValueError, RecursionError):
        text = to_json(_mended(value, serializer), inf_nan_mode="null")
    if len(text) > MAX_DIGITS and has_long_integer(text):
        raise NotJsonDataError(f"an integer of more than {MAX_DIGITS} digits cannot be sent")
    return text


def _mended(value: Any, serializer: SchemaSerializer | None) -> Any:
    """Plain data with the same content, in which every string can be written as UTF-8."""
    if serializer is not None:
        try:
            value = serializer.to_python(value, mode="json", warnings=False, fallback=type_name)
        except (ValueError, RecursionError):
            # Bytes without a text and odd keys stop the JSON mode; the Python mode leaves both to us.
            value = serializer.to_python(value, mode="python", warnings=False)
    return json_data(value, READER_DEPTH)
