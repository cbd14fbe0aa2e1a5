"""Sizes of memory channels, and a byte budget for queues that must be bounded in bytes rather than in items."""

from typing import Final

import trio

RUN_INBOX_SIZE: Final = 16
"""A run actor's inbox. It is sent at most two phase reports, the end of the work, each of seven kinds of stop once by
the registry, and two stops by the run's log (an outage, which both may notice, and a loss): twelve, so never full."""

REPLY_SIZE: Final = 1
"""A question gets one answer; a slot for it means that answering never waits for an asker who has gone."""


class ByteBudget:
    """Counts bytes that are held somewhere, and lets producers wait until the count is below the limit.

    ``take`` never waits and may exceed the limit by one item, so a producer that cannot wait (a timer) is never
    stuck; the next producer pays by waiting.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def has_room(self) -> bool:
        """Whether the count is below the limit."""
        return self.used < self.limit

    def take(self, size: int) -> None:
        """Count ``size`` bytes more."""
        self.used += size

    def release(self, size: int) -> None:
        """Count ``size`` bytes less, and wake everyone who waits once there is room."""
        self.used -= size
        if self.has_room:
            self._waiting.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when the count is below the limit; at once, without a checkpoint, when it already is."""
        while not self.has_room:
            await self._waiting.park()
