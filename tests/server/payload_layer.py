"""The layer type ``test.payloads``, whose tools return what JSON has no form for, and which keeps it as its state.

The file is the module of a package that a test installs for the server, and is imported by the tests for its names.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from pydantic_ai import ModelRetry, ToolReturn

from agenton.layers import LayerConfig, NoLayerDeps, PlainLayer

MEBIBYTE = 1 << 20
CJK = "漢字かな交じり文・한국어・𠮷野家😀é"


class Thing:
    """Has no JSON form."""


class Colour(Enum):
    RED = "red"


class Measured(BaseModel):
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    value: float = math.nan
    note: Any = None


def nested(levels: int, leaf: Any = 1) -> Any:
    """Arrays within one another, as many as ``levels``."""
    for _ in range(levels):
        leaf = [leaf]
    return leaf


def nested_objects(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"a": value}
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def circular_object() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def many_small(count: int) -> list[Any]:
    """Small objects, each about 67 bytes of JSON text."""
    item = {"tags": ["a", "b"], "at": {"x": 0.5, "y": -0.0}, "text": "漢"}
    return [{"id": n, **item} for n in range(count)]


VALUES: dict[str, Callable[[], Any]] = {
    "nul": lambda: {"a\x00b": "c\x00"},
    "nan": lambda: math.nan,
    "infinities": lambda: {"up": math.inf, "down": [-math.inf, 1.5]},
    "negative-zero": lambda: [-0.0, 0.0, -0],
    "beyond-double": lambda: [2**53 + 1, -(2**53) - 1, 2**64, 2**64 + 1, float(2**53)],
    "extreme-doubles": lambda: [1.7976931348623157e308, 5e-324, 0.1, 1e22, 123456789.123456789],
    "digits-4300": lambda: 10**4300 - 1,
    "digits-4301": lambda: 10**4300,
    "digits-5000": lambda: 10**4999,
    "digits-5000-negative": lambda: {"n": [-(10**4999)]},
    "digits-5000-key": lambda: {10**4999: 1},
    "digits-as-text": lambda: "7" * 5000,
    "surrogate": lambda: "x\ud800y",
    "surrogate-key": lambda: {"a\udfff": ["\ud800"]},
    "surrogate-keys-meet": lambda: {f"a{half}": n for n, half in ((1, "\ud800"), (2, "\ufffd"))},
    "surrogate-pair": lambda: ["\ud83d\ude00", {"\ud83d\ude00": 1}],
    "surrogate-in-model": lambda: Measured(value=0.5, note=["\ud800", math.inf]),
    "bytes": lambda: b"\xff\xfe",
    "bytes-within": lambda: {"b": [b"\xff", b"text", bytearray(b"\xfe")]},
    "nested-100": lambda: nested(100),
    "nested-180": lambda: nested(180),
    "nested-181": lambda: nested(181),
    "nested-240": lambda: nested(240),
    "nested-260": lambda: nested(260),
    "nested-5000": lambda: nested(5000),
    "nested-objects-150": lambda: nested_objects(150),
    "nested-objects-5000": lambda: nested_objects(5000),
    "nested-surrogate-5000": lambda: nested(5000, "\ud800"),
    "circular": circular,
    "circular-object": circular_object,
    "set": lambda: {"only"},
    "tuple": lambda: (1, ("a", None)),
    "datetime": lambda: [datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC), date(2026, 1, 2), timedelta(hours=1)],
    "decimal": lambda: [Decimal("1.10"), Decimal("NaN"), UUID(int=7), Colour.RED],
    "model": Measured,
    "object": Thing,
    "object-within": lambda: {"a": [Thing(), "\ud800"]},
    "object-key": lambda: {Thing(): 1},
    "keys": lambda: {2: "two", True: "yes", None: "none", 0.5: "half"},
    "keys-meet": lambda: {1: "a", "1": "b"},
    "iterator": lambda: iter([1, 2]),
    "keys-meet-within": lambda: [{"a": {True: 1, "true": 2, None: 3, "None": 4}}],
    "cjk": lambda: {CJK: [CJK]},
    "line-ends": lambda: {"a\u2028b": "\u2029\x85\r\n"},
    "ten-megabytes": lambda: "漢" * (10 * MEBIBYTE // 3),
    "many-small": lambda: many_small(5_000),
    "four-megabytes-small": lambda: many_small(60_000),
    "text-and-metadata": lambda: ToolReturn("plain", metadata={"a": math.nan, "b": "\ud800"}, content="see \ud800"),
    "metadata-circular": lambda: ToolReturn("plain", metadata=circular()),
}


class PayloadState(BaseModel):
    """``number`` cannot be read back as null, so a state whose ``number`` is not finite must not be stored."""

    model_config = ConfigDict(extra="forbid")

    kept: Any = None
    number: float = 0.0
    seen: list[str] = []


class PayloadConfig(LayerConfig):
    keep: str | None = None
    """Name of the value that the state takes when the layer is entered afresh."""
    number: str = "0"


class PayloadLayer(PlainLayer[NoLayerDeps, PayloadConfig, PayloadState]):
    """Tools by how they hand a value out."""

    type_id: ClassVar[str | None] = "test.payloads"

    @classmethod
    def from_config(cls, config: PayloadConfig) -> Self:
        return cls()

    async def on_context_create(self) -> None:
        if self.config.keep is not None:
            self.runtime_state.kept = VALUES[self.config.keep]()
        self.runtime_state.number = float(self.config.number)

    async def on_context_resume(self) -> None:
        self.runtime_state.seen = [*self.runtime_state.seen, type(self.runtime_state.kept).__name__]

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.give, self.give_from_thread, self.echo, self.fail, self.ask_again]

    async def give(self, name: str) -> Any:
        return VALUES[name]()

    def give_from_thread(self, name: str) -> Any:
        return VALUES[name]()

    async def echo(self, value: Any) -> Any:
        return value

    async def fail(self) -> None:
        raise RuntimeError("odd \ud800 text\x00")

    async def ask_again(self) -> None:
        raise ModelRetry("odd \ud800 text\x00")
