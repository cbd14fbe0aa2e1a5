"""The tail hub: follows the runs of other replicas for all local readers, through one connection.

Every followed run has a live log here, as a local run has one, and readers use both alike. One blocking read covers
all of them and the replica's own doorbell; ringing that wakes the read when a run joins. A bell rung too early is
still there when the read begins, which CLIENT UNBLOCK would not give.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.outage_log import UnreadableLog
from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import EventId
from dify_agent.store.base import (
    KeyUnreadableError,
    LogsUnreadableError,
    Owner,
    RecordUnreadableError,
    RunStore,
    TailsRead,
)

BLOCK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
PACE_SECONDS: Final = 0.02
"""Pause after a read that brought events: each read names every followed run, so many small ones cost more than their
events."""
SILENT_SECONDS: Final = 30.0
"""A run that said nothing for so long is looked up: its record may have expired, which no blocking read tells."""


@dataclass(slots=True)
class _Followed:
    live: LiveLog
    readers: int
    seen_at: float


class TailHub:
    """Two permanent services, ``serve`` and ``ring``, and what tails ask."""

    def __init__(self, store: RunStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._followed: dict[str, _Followed] = {}
        self._doorbell = "0-0"
        self._reading = False
        self._ring_due = False
        self._unreadable_log = UnreadableLog(owner=owner.id)
        self._arrivals = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, run_id: str, cursor: EventId) -> LiveLog:
        """A live log of another replica's run that will hold what comes behind ``cursor``. Pair with `leave`."""
        followed = self._followed.get(run_id)
        if followed is None:
            followed = _Followed(LiveLog(start=cursor), 0, trio.current_time())
            self._followed[run_id] = followed
            self._wake()
        elif followed.live.rewind(cursor):
            self._wake()
        followed.readers += 1
        return followed.live

    def leave(self, run_id: str, live: LiveLog) -> None:
        """One reader less. The run is dropped with its last reader."""
        followed = self._followed.get(run_id)
        if followed is not None and followed.live is live:
            followed.readers -= 1
            if not followed.readers:
                del self._followed[run_id]

    def close(self) -> None:
        """Follow nothing any more: readers look into the store, and find that the process drains."""
        for run_id in list(self._followed):
            self._drop(run_id)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. Nothing is read while nobody follows."""
        task_status.started()
        while True:
            while not self._followed:
                await self._arrivals.park()
            try:
                await self._read()
                await self._look_up_silent()
            except StoreUnavailableError:
                await trio.sleep(RETRY_SECONDS)
            except KeyUnreadableError as error:
                self._unreadable_log.tell(error, meaning="runs of other replicas are followed by polling")
                await trio.sleep(RETRY_SECONDS)
                self.close()  # readers look into the store, and come back

    async def ring(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake the blocking read whenever a run has joined while it was under way."""
        task_status.started()
        while True:
            while not self._ring_due:
                await self._arrivals.park()
            self._ring_due = False
            try:
                await self._store.ring_doorbell(self._owner)
            except StoreUnavailableError:
                await trio.sleep(RETRY_SECONDS)
                self._ring_due = self._reading
            except KeyUnreadableError:
                await trio.sleep(RETRY_SECONDS)  # the read meets it as well, and tells

    async def _read(self) -> None:
        positions = {run_id: followed.live.top for run_id, followed in self._followed.items()}
        self._reading = True
        try:
            read = await self._store.read_tails(self._owner, positions, self._doorbell, BLOCK_SECONDS)
        except LogsUnreadableError as error:
            for run_id in error.run_ids:
                self._drop(run_id)  # its readers look into the store, and are told there
            return
        finally:
            self._reading = False
        self._take(read, positions)
        if read.events:
            await trio.sleep(PACE_SECONDS)

    def _take(self, read: TailsRead, positions: Mapping[str, EventId]) -> None:
        self._doorbell = read.doorbell
        for run_id, events in read.events.items():
            followed = self._followed.get(run_id)
            if followed is None or positions[run_id] > followed.live.top:
                continue  # nobody reads it any more, or somebody wants what lies before this read: the next one has it
            news = tuple(event for event in events if event.id > followed.live.top)
            if news:
                followed.live.extend(news)
                followed.seen_at = trio.current_time()
                if news[-1].is_terminal:
                    self._drop(run_id)

    async def _look_up_silent(self) -> None:
        now = trio.current_time()
        silent = [run_id for run_id, entry in self._followed.items() if now - entry.seen_at >= SILENT_SECONDS]
        for run_id in silent:
            followed = self._followed.get(run_id)
            if followed is None:
                continue
            try:
                page = await self._store.read_events(run_id, followed.live.top, 1)
            except (RunNotFoundError, RecordUnreadableError):
                self._drop(run_id)
                continue
            followed.seen_at = now
            if page.status != "running" and not page.events:
                self._drop(run_id)

    def _wake(self) -> None:
        self._ring_due = self._reading
        self._arrivals.unpark_all()

    def _drop(self, run_id: str) -> None:
        followed = self._followed.pop(run_id, None)
        if followed is not None:
            followed.live.close()
