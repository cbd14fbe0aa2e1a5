"""The publisher: takes events from all run actors, keeps each run's order, writes them in batches.

One pipeline is in flight at a time; while it is, events pile up into the next one, so a busy process writes large
batches and an idle one writes at once. A run has at most one batch in flight, which is what makes a retry after a
lost reply safe (docs/architecture.md, "Appending is exactly-once"). State lives in the object, not in the task: a
restarted publisher sends what was in flight again.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import structlog
import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import StopKind
from dify_agent.concurrency.channels import ByteBudget
from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import AppendBatch, AppendOutcome, RunStore, StoredEvent

BATCH_EVENTS: Final = 256
BATCH_BYTES: Final = 1 << 20
"""Bounds of one run's batch: one script call stays well under a millisecond per hundred events."""
PIPELINE_RUNS: Final = 64
"""Runs that share one round trip."""
RUN_SHARE: Final = 16
"""One run may hold a sixteenth of the process's queue, so a run that floods waits alone."""
RETRY_FIRST_SECONDS: Final = 0.05
RETRY_MOST_SECONDS: Final = 1.0

_log = structlog.get_logger()
_LOST: Final[dict[AppendOutcome, StopKind]] = {
    "sealed": StopKind.SEALED,
    "gap": StopKind.RECORD_LOST,
    "missing": StopKind.RECORD_LOST,
}


class LogLostError(Exception):
    """The run's log takes no more events; the run's actor has been told why."""


class RunLog:
    """A run's end of the publisher: offer events, wait for room, wait until all is stored."""

    def __init__(
        self, run_id: str, live: LiveLog, publisher: "Publisher", on_lost: Callable[[StopKind, str], None]
    ) -> None:
        self.run_id = run_id
        self.live = live
        self.lost: StopKind | None = None
        self._publisher = publisher
        self._on_lost = on_lost
        self._pending: deque[StoredEvent] = deque()
        self._in_flight: AppendBatch | None = None
        self._offered = START
        self._stored = START
        self._budget = ByteBudget(max(1, publisher.budget.limit // RUN_SHARE))
        self._settled = trio.lowlevel.ParkingLot()
        self._outage_told = False

    def offer(self, payload: bytes) -> None:
        """Queue one event. Never waits; what cannot be stored any more is dropped."""
        if self.lost is not None:
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

    async def flushed(self) -> None:
        """Return when every offered event is stored.

        Raises:
            LogLostError: the log takes no more events.
        """
        while self.lost is None and (self._pending or self._in_flight):
            await self._settled.park()
        if self.lost is not None:
            raise LogLostError(self.lost)

    def close(self) -> None:
        """The run has ended; the publisher need not wait for this log any more. May be called again."""
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
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        self._release(sum(len(event.payload) for event in batch.events))
        if outcome == "appended":
            self._stored = batch.events[-1].id
            self.live.extend(batch.events)
        else:
            self.lose(_LOST[outcome], f"append answered {outcome}")
        if not self._pending:
            self._settled.unpark_all()

    def refuse(self, error: Exception) -> None:
        """Take a refusal that no repeat would change for the batch in flight."""
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        self._release(sum(len(event.payload) for event in batch.events))
        self.lose(StopKind.RECORD_LOST, str(error))

    def lose(self, kind: StopKind, detail: str) -> None:
        """Give the log up: drop what waits, tell the actor."""
        self.lost = kind
        self._release(sum(len(event.payload) for event in self._pending))
        self._pending.clear()
        self._settled.unpark_all()
        self._on_lost(kind, detail)

    def tell_outage(self, seconds: float) -> None:
        """The store has been away for longer than the bound. Events stay queued: they are written when it is back."""
        if not self._outage_told:
            self._outage_told = True
            self._on_lost(StopKind.STORE_UNAVAILABLE, f"for {seconds:g} s")

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._pending and self._in_flight is None

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._publisher.budget.take(size)

    def _release(self, size: int) -> None:
        self._budget.release(size)
        self._publisher.budget.release(size)


class Publisher:
    """The process's writer of events. ``serve`` is a permanent service."""

    def __init__(self, store: RunStore, *, queue_bytes: int, outage_seconds: float, linger_seconds: float) -> None:
        self.budget = ByteBudget(queue_bytes)
        self._store = store
        self._linger_seconds = linger_seconds
        self._outage_seconds = outage_seconds
        self._open: set[RunLog] = set()
        self._ready: dict[RunLog, None] = {}  # an ordered set
        self._bell = trio.Event()
        self._down_since: float | None = None

    def open_log(self, run_id: str, live: LiveLog, on_lost: Callable[[StopKind, str], None]) -> RunLog:
        """A new, empty log for a run that was just created. ``on_lost`` never waits; it is called once per kind."""
        log = RunLog(run_id, live, self, on_lost)
        self._open.add(log)
        return log

    def forget(self, log: RunLog) -> None:
        """``log`` is closed: nothing will be offered to it any more."""
        self._open.discard(log)
        if not self._open:
            self._bell.set()

    def mark_ready(self, log: RunLog) -> None:
        """``log`` has something to write."""
        self._ready[log] = None
        self._bell.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled, and then for as long as runs are ending, within ``linger_seconds``.

        When everything is cancelled at once, run actors still write their terminal events behind a bounded shield;
        they can only do so if their last events get out.
        """
        task_status.started()
        try:
            await self._write(lambda: False)
        except trio.Cancelled:
            with trio.move_on_after(self._linger_seconds, shield=True):
                await self._write(lambda: not self._open)
            raise

    async def _write(self, done: Callable[[], bool]) -> None:
        pause = RETRY_FIRST_SECONDS
        while not done():
            await self._bell.wait()
            if await self._write_once():
                pause = RETRY_FIRST_SECONDS
            else:
                await trio.sleep(pause)
                pause = min(pause * 2, RETRY_MOST_SECONDS)

    async def _write_once(self) -> bool:
        """One round trip. False when the store did not take all of it."""
        logs = list(islice(self._ready, PIPELINE_RUNS))
        batches = [(log, batch) for log in logs if (batch := log.next_batch()) is not None]
        outcomes = await self._append([batch for _, batch in batches]) if batches else ()
        healthy = True
        for (log, _), outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailableError):
                healthy = False
            elif isinstance(outcome, Exception):
                # This run's log alone cannot be written (its record is unreadable, say); the others go on.
                _log.error("run's events refused", run_id=log.run_id, exc_info=outcome)
                log.refuse(outcome)
            else:
                log.settle(outcome)
        # Only after every answer was taken: a log that got events meanwhile moves to the end of the queue.
        for log in logs:
            self._ready.pop(log, None)
            if not log.idle:
                self._ready[log] = None
        if not self._ready:
            self._bell = trio.Event()
        self._note_health(healthy)
        return healthy

    async def _append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        try:
            return await self._store.append(batches)
        except StoreUnavailableError as error:
            return [error] * len(batches)

    def _note_health(self, healthy: bool) -> None:
        if healthy:
            if self._down_since is not None:
                _log.info("store is back", seconds=round(trio.current_time() - self._down_since, 1))
            self._down_since = None
            return
        if self._down_since is None:
            self._down_since = trio.current_time()
            _log.warning("store unavailable, events are queued", bytes=self.budget.used, limit=self.budget.limit)
        if trio.current_time() - self._down_since >= self._outage_seconds:
            for log in self._ready:
                log.tell_outage(self._outage_seconds)
