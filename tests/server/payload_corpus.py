"""What becomes of each value of the corpus: the rule table of docs/protocol.md, entry by entry."""

from dataclasses import dataclass
from typing import Any

from tests.server.payload_layer import CJK, MEBIBYTE, many_small, nested, nested_objects

FFFD = "\ufffd"


@dataclass(frozen=True)
class Refused:
    """The run fails, with this in its error."""

    text: str


TOO_DEEP = Refused("levels deep, or contains itself")
TOO_LONG = Refused("an integer of more than 4300 digits")
NO_FORM = Refused("cannot be stored as JSON")

RESULTS: dict[str, Any] = {
    "nul": {"a\x00b": "c\x00"},
    "nan": None,
    "infinities": {"up": None, "down": [None, 1.5]},
    "negative-zero": [-0.0, 0.0, 0],
    "beyond-double": [2**53 + 1, -(2**53) - 1, 2**64, 2**64 + 1, float(2**53)],
    "extreme-doubles": [1.7976931348623157e308, 5e-324, 0.1, 1e22, 123456789.123456789],
    "digits-4300": 10**4300 - 1,
    "digits-4301": TOO_LONG,
    "digits-5000": TOO_LONG,
    "digits-5000-negative": TOO_LONG,
    "digits-5000-key": TOO_LONG,
    "digits-as-text": "7" * 5000,
    "surrogate": f"x{FFFD}y",
    "surrogate-key": {f"a{FFFD}": [FFFD]},
    "surrogate-keys-meet": {f"a{FFFD}": 2},
    "surrogate-pair": ["😀", {"😀": 1}],
    "surrogate-in-model": {"at": "2026-01-02T03:04:05Z", "value": 0.5, "note": [FFFD, None]},
    "bytes": "__4=",
    "bytes-within": {"b": ["_w==", "text", "_g=="]},
    "nested-100": nested(100),
    "nested-180": nested(180),
    "nested-181": TOO_DEEP,
    "nested-240": TOO_DEEP,
    "nested-260": TOO_DEEP,
    "nested-5000": TOO_DEEP,
    "nested-objects-150": nested_objects(150),
    "nested-objects-5000": TOO_DEEP,
    "nested-surrogate-5000": TOO_DEEP,
    "circular": TOO_DEEP,
    "circular-object": TOO_DEEP,
    "set": ["only"],
    "tuple": [1, ["a", None]],
    "datetime": ["2026-01-02T03:04:05.000600Z", "2026-01-02", "PT1H"],
    "decimal": ["1.10", "NaN", "00000000-0000-0000-0000-000000000007", "red"],
    "model": {"at": "2026-01-02T03:04:05Z", "value": None, "note": None},
    "object": "<Thing>",
    "object-within": {"a": ["<Thing>", FFFD]},
    "object-key": {"<Thing>": 1},
    "keys": {"2": "two", "true": "yes", "None": "none", "0.5": "half"},
    "keys-meet": {"1": "b"},
    "keys-meet-within": [{"a": {"true": 2, "None": 4}}],
    "iterator": [1, 2],
    "cjk": {CJK: [CJK]},
    "line-ends": {"a\u2028b": "\u2029\x85\r\n"},
    "ten-megabytes": "漢" * (10 * MEBIBYTE // 3),
    "many-small": many_small(5_000),
    "four-megabytes-small": many_small(60_000),
    "text-and-metadata": "plain",
    "metadata-circular": TOO_DEEP,
}
LARGE = ("ten-megabytes", "four-megabytes-small")

# A state is what its own type writes: objects without a form are an error of the layer, since they cannot come back.
STATES: dict[str, Any] = RESULTS | {
    "nested-181": nested(181),
    "object": NO_FORM,
    "object-within": NO_FORM,
    "object-key": NO_FORM,
    "digits-5000-key": NO_FORM,
    "nested-260": NO_FORM,
    "nested-5000": NO_FORM,
    "nested-objects-5000": NO_FORM,
    "nested-surrogate-5000": NO_FORM,
    "circular": NO_FORM,
    "circular-object": NO_FORM,
}
for _name in ("text-and-metadata", "metadata-circular", "iterator", "surrogate-in-model"):
    del STATES[_name]


@dataclass(frozen=True)
class Valid:
    """The text is JSON, and this is the value that comes out."""

    value: Any


INVALID = None
"""The text is no JSON for anybody: the model is asked again."""

ARGUMENTS: dict[str, tuple[str, Valid | Refused | None]] = {
    "nul": (r'{"value": "a\u0000b"}', Valid("a\x00b")),
    "nul-key": (r'{"value": {"\u0000": 1}}', Valid({"\x00": 1})),
    "raw-nul": ('{"value": "a\x00b"}', INVALID),
    "nan": ('{"value": NaN}', Valid(None)),
    "infinities": ('{"value": [Infinity, -Infinity]}', Valid([None, None])),
    "overflow": ('{"value": 1e999}', Valid(None)),
    "negative-zero": ('{"value": [-0.0, 0.0, -0, 0]}', Valid([-0.0, 0.0, 0, 0])),
    "beyond-double": ('{"value": [9007199254740993, 18446744073709551617]}', Valid([2**53 + 1, 2**64 + 1])),
    "digits-4300": (f'{{"value": {"9" * 4300}}}', Valid(10**4300 - 1)),
    "digits-5000": (f'{{"value": {"9" * 5000}}}', INVALID),
    "digits-5000-fraction": (f'{{"value": 0.{"1" * 5000}}}', Valid(0.1111111111111111)),
    "digits-as-text": (f'{{"value": "{"9" * 5000}"}}', Valid("9" * 5000)),
    "surrogate": (r'{"value": "\ud800"}', INVALID),
    "surrogate-key": (r'{"value": {"\udfff": 1}}', INVALID),
    "surrogate-pair": (r'{"value": "\ud83d\ude00"}', Valid("😀")),
    "nested-150": (f'{{"value": {"[" * 150}1{"]" * 150}}}', Valid(nested(150))),
    "nested-179": (f'{{"value": {"[" * 179}1{"]" * 179}}}', Valid(nested(179))),
    "nested-195": (f'{{"value": {"[" * 195}1{"]" * 195}}}', TOO_DEEP),
    "nested-250": (f'{{"value": {"[" * 250}1{"]" * 250}}}', INVALID),
    "nested-1000": (f'{{"value": {"[" * 1000}1{"]" * 1000}}}', INVALID),
    "nested-100000": (f'{{"value": {"[" * 100_000}', INVALID),
    "repeated-key": ('{"value": {"a": 1, "a": 2}}', Valid({"a": 2})),
    "repeated-argument": ('{"value": 1, "value": 2}', Valid(2)),
    "truncated": ('{"value": "a', INVALID),
    "doubled": ('{"value": 1}{"value": 1}', INVALID),
    "cjk": (f'{{"value": "{CJK}"}}', Valid(CJK)),
    "line-ends": ('{"value": "a\u2028b\u2029c\x85d"}', Valid("a\u2028b\u2029c\x85d")),
    "byte-order-mark": ('\ufeff{"value": 1}', INVALID),
    "megabyte": (f'{{"value": "{"漢" * 350_000}"}}', Valid("漢" * 350_000)),
}

OUTPUT_REFUSES = ("nan", "infinities", "overflow", "nested-195")
"""What a tool may get but an output may not be: it would not come out as it went in."""

ANSWERS: dict[str, Any] = {
    "null": None,
    "false": False,
    "nested-181": nested(181),
    "nested-190": nested(190),
    **{name: outcome.value for name, (_, outcome) in ARGUMENTS.items() if isinstance(outcome, Valid)},
}
"""Answers of the outside to a question: JSON by their nature, since they come in a request body."""
