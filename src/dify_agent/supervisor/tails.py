"""A reader of one run's log: from memory while it keeps up, from the store while it does not.

The window in memory is shared by all readers of the run on this replica; a tail is a cursor, owns nothing, and can be
dropped at any time. A run of another replica is polled.
"""

from typing import Final

import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import EventId, missing_between
from dify_agent.store.base import EventPage, RunStore, StoredEvent
from dify_agent.supervisor.handle import TailBatch

PAGE: Final = 100
REMOTE_POLL_SECONDS: Final = 0.25
"""How late an event of another replica's run may be seen."""
RETRY_SECONDS: Final = 0.5


class LogTail:
    """`dify_agent.supervisor.handle.Tail` over a store and, for a run executed here, its live log."""

    def __init__(
        self,
        store: RunStore,
        run_id: str,
        after: EventId,
        *,
        live: LiveLog | None,
        first: EventPage | None,
        drain: trio.Event,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._cursor = after
        self._live = live
        self._first = first
        self._drain = drain

    async def next(self) -> TailBatch:
        """The next batch; see the port."""
        while True:
            if self._live is not None and self._live.covers(self._cursor):
                events = self._live.after(self._cursor, PAGE)
                if events:
                    return self._deliver(events)
                if not self._live.closed:
                    await self._live.wait()
                    continue
                self._live = None
            batch = await self._from_store()
            if batch is not None:
                return batch

    def close(self) -> None:
        """See the port. The live log is the run's, so there is only the reference to drop."""
        self._live = None

    async def _from_store(self) -> TailBatch | None:
        """One look into the store; None when there is nothing new, after a pause."""
        try:
            page = self._first or await self._store.read_events(self._run_id, self._cursor, PAGE)
        except RunNotFoundError:
            return TailBatch(end="expired")
        except StoreUnavailableError:
            return await self._pause(RETRY_SECONDS)
        self._first = None
        if page.events:
            return self._deliver(page.events)
        if page.status != "running":
            return TailBatch(end="terminal")
        return await self._pause(REMOTE_POLL_SECONDS)

    async def _pause(self, seconds: float) -> TailBatch | None:
        with trio.move_on_after(seconds):
            await self._drain.wait()
        return TailBatch(end="drain") if self._drain.is_set() else None

    def _deliver(self, events: tuple[StoredEvent, ...]) -> TailBatch:
        trimmed = missing_between(self._cursor, events[0].id)
        self._cursor = events[-1].id
        return TailBatch(events, trimmed, "terminal" if events[-1].is_terminal else None)
