"""A virtual clock for each side, so that a scenario's order does not depend on how busy the machine is.

Time stands still while anything can run and then jumps to the next timer.
"""

import asyncio  # noqa: TID251 - the reference runs on asyncio only
import selectors
from collections.abc import Callable
from typing import Any

import trio
import trio.testing


class _JumpingSelector(selectors.DefaultSelector):
    """Reports a wait as over at once, and moves the clock by its length."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def asyncio_options(*, real_time: bool) -> dict[str, Any]:
    """``backend_options`` for ``anyio.run``."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop if real_time else VirtualLoop
    return {"loop_factory": factory}


def trio_clock(*, real_time: bool) -> trio.testing.MockClock | None:
    """``clock`` for ``trio.run``."""
    return None if real_time else trio.testing.MockClock(autojump_threshold=0)
