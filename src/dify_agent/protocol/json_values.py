"""What becomes of values that JSON cannot hold: the rules of session snapshots, for all that events carry."""

from agenton.json_values import (
    MAX_DIGITS,
    READER_DEPTH,
    NotJsonDataError,
    bytes_text,
    has_long_integer,
    is_long_integer,
    json_data,
    readable_text,
    type_name,
)

__all__ = [
    "MAX_DIGITS",
    "MAX_VALUE_DEPTH",
    "READER_DEPTH",
    "NotJsonDataError",
    "bytes_text",
    "has_long_integer",
    "is_long_integer",
    "json_data",
    "readable_text",
    "type_name",
]

MAX_VALUE_DEPTH = 180
"""Nesting of a value that comes from outside, a tool's result say. It ends up in the history, ten levels inside a
terminal event, and a reader takes 200."""
