"""The recent events of one run in memory, shared by everyone who reads it on this replica.

Readers pull: each holds a cursor and nothing else, so a thousand slow readers cost no queue. A reader that has fallen
behind the window reads from the store until it has caught up.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

import trio

from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import StoredEvent

WINDOW_BYTES: Final = 256 * 1024
"""Enough for a reader that is a few seconds late; the store holds the rest."""


class LiveLog:
    """Window of stored events. Written by the publisher and the run's actor, read by tails."""

    def __init__(self, window_bytes: int = WINDOW_BYTES, *, start: EventId = START) -> None:
        self._events: deque[StoredEvent] = deque()
        self._bytes = 0
        self._limit = window_bytes
        self._dropped_to = start
        self._changed = trio.lowlevel.ParkingLot()
        self.top = start
        """Id of the newest stored event; where the window begins as long as it is empty."""
        self.closed = False
        """No event will come from here any more: the terminal event is in, or the run was given up."""

    def extend(self, events: Iterable[StoredEvent]) -> None:
        """Add events that are now in the store, in order, and wake the readers."""
        for event in events:
            self._events.append(event)
            self._bytes += len(event.payload)
            self.top = event.id
        while self._bytes > self._limit and len(self._events) > 1:
            dropped = self._events.popleft()
            self._bytes -= len(dropped.payload)
            self._dropped_to = dropped.id
        self._changed.unpark_all()

    def rewind(self, start: EventId) -> bool:
        """Let an empty window begin earlier, at ``start``; False when there is nothing to do.

        A reader may come with a cursor behind which there is nothing yet, and the next with an ordinary one.
        """
        if self._events or start >= self.top:
            return False
        self._dropped_to = self.top = start
        return True

    def close(self) -> None:
        """Nothing will be added any more; readers that have seen all of it look into the store."""
        self.closed = True
        self._changed.unpark_all()

    def covers(self, after: EventId) -> bool:
        """Whether every event behind ``after`` that is stored so far is in the window."""
        return after >= self._dropped_to

    def after(self, cursor: EventId, limit: int) -> tuple[StoredEvent, ...]:
        """At most ``limit`` events behind ``cursor``. Call only when ``covers(cursor)``."""
        if cursor >= self.top:
            return ()
        skip = 0
        if self._events and cursor >= self._events[0].id:
            for event in reversed(self._events):
                if event.id <= cursor:
                    break
                skip += 1
            skip = len(self._events) - skip
        return tuple(islice(self._events, skip, skip + limit))

    async def wait(self) -> None:
        """Wait until something changed. Check before waiting: there is no checkpoint in between."""
        await self._changed.park()
