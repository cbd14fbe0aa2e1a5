"""A run's end of the publisher: a queue of events that wait to be stored, and what has become of them."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import StopKind
from dify_agent.concurrency.channels import ByteBudget
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import AppendBatch, AppendOutcome, RecordUnreadableError, StoredEvent

BATCH_EVENTS: Final = 256
BATCH_BYTES: Final = 1 << 20
"""Bounds of one run's batch: one script call stays well under a millisecond per hundred events."""
RUN_SHARE: Final = 16
"""One run may hold a sixteenth of the process's queue, so a run that floods waits alone."""

_log = structlog.get_logger()
_LOST: Final[dict[AppendOutcome, StopKind]] = {
    "sealed": StopKind.SEALED,
    "gap": StopKind.SEALED,  # with events that are none of ours, or it would have been mended
    "missing": StopKind.RECORD_LOST,
}


ENDABLE: Final = (StopKind.STORE_UNAVAILABLE, StopKind.REFUSED)
"""Losses after which the terminal transition may still be tried."""


class LogWriter(Protocol):
    """The publisher, as a run's log needs it."""

    budget: ByteBudget
    """Bytes that wait in all logs."""

    def mark_ready(self, log: "RunLog") -> None:
        """``log`` has something to write."""

    def forget(self, log: "RunLog") -> None:
        """``log`` is closed."""

    def keep(self, batch: AppendBatch) -> None:
        """Remember an acknowledged batch for a while."""

    def kept(self, run_id: str) -> Sequence[AppendBatch]:
        """The batches of a run that were acknowledged not long ago, oldest first."""


class LogLostError(Exception):
    """The run's log takes no more events; the run's actor has been told why."""

    def __init__(self, kind: StopKind, detail: str = "") -> None:
        super().__init__(detail or str(kind))
        self.kind = kind
        self.detail = detail


class RunLog:
    """A run's end of the publisher: offer events, wait for room, take the last ones along to the end."""

    def __init__(
        self, run_id: str, live: LiveLog, publisher: LogWriter, on_lost: Callable[[StopKind, str], None]
    ) -> None:
        self.run_id = run_id
        self.live = live
        self.lost: StopKind | None = None
        self._lost_detail = ""
        self._publisher = publisher
        self._on_lost = on_lost
        self._pending: deque[StoredEvent] = deque()
        self._in_flight: AppendBatch | None = None
        self._last: AppendBatch | None = None
        """What the terminal transition writes."""
        self._offered = START
        self._stored = START
        self._budget = ByteBudget(max(1, publisher.budget.limit // RUN_SHARE))
        self._settled = trio.lowlevel.ParkingLot()
        self._outage_told = False

    def offer(self, payload: bytes) -> None:
        """Queue one event. Never waits; what cannot be stored any more is dropped.

        So is what comes while the run is being ended, from work that was left behind: written in front of the last
        events it would part them from the log.
        """
        if self.lost is not None or self._last is not None:
            return
        ms = max(self._offered.ms, time.time_ns() // 1_000_000)
        self._offered = EventId(ms, self._offered.n + 1)
        self._pending.append(StoredEvent(self._offered, payload))
        self._take(len(payload))
        self._publisher.mark_ready(self)

    @property
    def has_room(self) -> bool:
        """Whether the producer may go on without waiting."""
        return self._budget.has_room and self._publisher.budget.has_room

    async def wait_for_room(self) -> None:
        """Backpressure: return when both the run's and the process's queue have room, or the log is lost."""
        while self.lost is None and not self.has_room:
            await self._budget.wait_for_room()
            await self._publisher.budget.wait_for_room()

    @property
    def waiting(self) -> int:
        """Events that are not written yet."""
        held = (batch for batch in (self._in_flight, self._last) if batch is not None)
        return len(self._pending) + sum(len(batch.events) for batch in held)

    async def settled(self) -> None:
        """Wait until a batch of this log has been answered, or the log is lost."""
        await self._settled.park()

    async def take_last(self) -> AppendBatch | None:
        """What is not stored yet, to be written in one step with the terminal event: the publisher leaves it alone.

        The same at each call until it is put back. None: how the log ends is unknown, since the publisher has dropped
        it, and the run can still be ended.

        Raises:
            LogLostError: the log belongs to someone else or is gone: nothing must be written to the run any more.
        """
        while self._last is None and self.lost is None:
            if self._in_flight is None and self._fits_one_batch():
                self._last = AppendBatch(self.run_id, self._stored, tuple(self._pending))
                self._pending.clear()
            else:
                await self.settled()
        if self.lost is not None and self.lost not in ENDABLE:
            raise LogLostError(self.lost, self._lost_detail)
        return self._last

    def put_back(self) -> None:
        """The last events were not written: the publisher writes them, and before them what the store may have lost.

        Once taken again there is nothing left of them, or the log is lost.
        """
        last, self._last = self._last, None
        if last is None:
            return
        if self.lost is not None:
            self._release(batch_bytes(last))
        else:
            self._in_flight = last
            self._publisher.mark_ready(self)

    def close(self) -> None:
        """The run has ended; the publisher need not wait for this log any more. May be called again."""
        if self._last is not None:
            self._release(batch_bytes(self._last))
            self._last = None
        self._publisher.forget(self)

    # The rest is the publisher's side.

    def next_batch(self) -> AppendBatch | None:
        """The batch to send now: the one in flight again, or a new one."""
        if self._in_flight is None and self._pending:
            events: list[StoredEvent] = []
            size = 0
            while self._pending and len(events) < BATCH_EVENTS and size < BATCH_BYTES:
                events.append(self._pending.popleft())
                size += len(events[-1].payload)
            self._in_flight = AppendBatch(self.run_id, self._stored, tuple(events))
        return self._in_flight

    def settle(self, outcome: AppendOutcome) -> None:
        """Take the answer for the batch in flight."""
        batch = self._land()
        if outcome == "appended":
            self._stored = batch.events[-1].id if batch.events else batch.expected_top
            self.live.extend(event for event in batch.events if event.id > self.live.top)
            self._publisher.keep(batch)
        else:
            self.lose(_LOST[outcome], f"append answered {outcome}")

    def step_back(self, top: EventId) -> AppendBatch | None:
        """The batch in flight, with what the store has lost of acknowledged events in front of it.

        ``top`` is the newest event that the store still has. None when it is not older than what was acknowledged:
        nothing was lost then, and somebody else writes this log.
        """
        if self._in_flight is None or top >= self._in_flight.expected_top:
            return None
        before = self._in_flight.expected_top  # a second failover may have cut into what was put in front before
        kept = self._publisher.kept(self.run_id)
        # By id: what an earlier mend wrote again is kept twice.
        found = {event.id: event for batch in kept for event in batch.events if top < event.id <= before}
        lost = tuple(found[event_id] for event_id in sorted(found))
        _log.warning(
            "acknowledged events were lost by the store, they are written again",
            run_id=self.run_id,
            lost=before.n - top.n,
            written=len(lost),
        )
        self._take(sum(len(event.payload) for event in lost))
        self._in_flight = AppendBatch(self.run_id, top, (*lost, *self._in_flight.events))
        return self._in_flight

    def refuse(self, error: Exception) -> None:
        """Take a refusal that no repeat would change for the batch in flight."""
        self._land()
        unreadable = isinstance(error, RecordUnreadableError)
        self.lose(StopKind.RECORD_UNREADABLE if unreadable else StopKind.REFUSED, str(error))

    def lose(self, kind: StopKind, detail: str) -> None:
        """Give the log up: drop what waits, tell the actor."""
        self._lost_detail = detail
        self._drop(kind)
        self._on_lost(kind, detail)

    def tell_outage(self, seconds: float) -> None:
        """The store has been away for longer than the bound. Events stay queued: they are written when it is back."""
        if not self._outage_told:
            self._outage_told = True
            self._on_lost(StopKind.STORE_UNAVAILABLE, f"for {seconds:g} s")

    def give_up(self) -> None:
        """Nobody will write these events. The run's terminal transition may still be tried: ``take_last`` returns."""
        if self.lost is not None:
            return
        if self._in_flight is not None:
            self._land()
        self._drop(StopKind.STORE_UNAVAILABLE)
        if not self._outage_told:
            self._on_lost(StopKind.STORE_UNAVAILABLE, "to this replica, whose writer of events has failed")

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._pending and self._in_flight is None

    def _land(self) -> AppendBatch:
        """The batch in flight, which is not in flight any more."""
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        self._release(batch_bytes(batch))
        self._settled.unpark_all()
        return batch

    def _fits_one_batch(self) -> bool:
        return len(self._pending) <= BATCH_EVENTS and sum(len(event.payload) for event in self._pending) <= BATCH_BYTES

    def _drop(self, kind: StopKind) -> None:
        self.lost = kind
        self._release(sum(len(event.payload) for event in self._pending))
        self._pending.clear()
        self._settled.unpark_all()

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._publisher.budget.take(size)

    def _release(self, size: int) -> None:
        self._budget.release(size)
        self._publisher.budget.release(size)


def batch_bytes(batch: AppendBatch) -> int:
    """Size of a batch's payloads."""
    return sum(len(event.payload) for event in batch.events)
