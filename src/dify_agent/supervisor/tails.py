"""A reader of one run's log: from memory while it keeps up, from the store while it does not.

The window in memory is shared by all readers of the run on this replica, whether the run is executed here or followed
by the tail hub. A tail is a cursor and a place in the hub, and can be dropped at any time.
"""

from typing import Final

import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.tail_hub import TailHub
from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import EventId, missing_between
from dify_agent.store.base import EventPage, RunStore, StoredEvent
from dify_agent.supervisor.handle import TailBatch

PAGE: Final = 100
RETRY_SECONDS: Final = 0.5


class LogTail:
    """`dify_agent.supervisor.handle.Tail` over a store, the live log of a run executed here, and the hub for the
    others."""

    def __init__(
        self,
        store: RunStore,
        hub: TailHub,
        run_id: str,
        after: EventId,
        *,
        live: LiveLog | None,
        first: EventPage | None,
        drain: trio.Event,
    ) -> None:
        self._store = store
        self._hub = hub
        self._run_id = run_id
        self._cursor = after
        self._live = live
        self._following: LiveLog | None = None
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
                self.close()
            batch = await self._from_store()
            if batch is not None:
                return batch

    def close(self) -> None:
        """See the port."""
        self._live = None
        if self._following is not None:
            following, self._following = self._following, None
            self._hub.leave(self._run_id, following)

    async def _from_store(self) -> TailBatch | None:
        """One look into the store. None when there is nothing new: then the hub follows the run, or has been asked
        to."""
        try:
            page = self._first or await self._store.read_events(self._run_id, self._cursor, PAGE)
        except RunNotFoundError:
            return TailBatch(end="expired")
        except StoreUnavailableError:
            return await self._pause()
        self._first = None
        if page.events:
            return self._deliver(page.events)
        if page.status != "running" or self._drain.is_set():
            return TailBatch(end="drain" if page.status == "running" else "terminal")
        if self._live is not None:
            # The window is ahead of a store that holds nothing behind the cursor: a failover has lost it.
            return await self._pause()
        # Now, not earlier: the hub reads from where the store had nothing more.
        self._live = self._following = self._hub.follow(self._run_id, self._cursor)
        return None

    async def _pause(self) -> TailBatch | None:
        with trio.move_on_after(RETRY_SECONDS):
            await self._drain.wait()
        return TailBatch(end="drain") if self._drain.is_set() else None

    def _deliver(self, events: tuple[StoredEvent, ...]) -> TailBatch:
        trimmed = missing_between(self._cursor, events[0].id)
        self._cursor = events[-1].id
        return TailBatch(events, trimmed, "terminal" if events[-1].is_terminal else None)
