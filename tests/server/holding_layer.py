"""The layer type ``test.holding``, whose tools hold the event loop: what a run's code must not do.

The file is the module of a package that a test installs for the server.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import trio

from agenton.layers import LayerConfig, NoLayerDeps, PlainLayer


def turn_in_python() -> None:
    """The interpreter's lock changes hands now and then, and signals are handled; the event loop stands."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        pass


def match_for_ever() -> None:
    """Signals are handled; the interpreter's lock is never given up."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def add_for_ever() -> None:
    """Neither: nothing of Python runs in this process until the sum is there."""
    sum(range(10**11))


HOLDS: dict[str, Callable[[], None]] = {"python": turn_in_python, "re": match_for_ever, "sum": add_for_ever}


class HoldingLayer(PlainLayer[NoLayerDeps, LayerConfig]):
    """Tools by when they hold it."""

    type_id: ClassVar[str | None] = "test.holding"

    @classmethod
    def from_config(cls, config: LayerConfig) -> Self:
        return cls()

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.hold_soon, self.hold_when_cancelled]

    async def hold_soon(self, how: str) -> None:
        await trio.sleep(0.2)  # the call is published meanwhile
        with open(os.environ["HOLDING_MARK"], "w"):  # noqa: ASYNC230  It is not the worst that happens here.
            pass
        HOLDS[how]()

    async def hold_when_cancelled(self, how: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            HOLDS[how]()
