"""The publisher: takes events from all run actors, keeps each run's order, writes them in batches.

One pipeline is in flight at a time; while it is, events pile up into the next one, so a busy process writes large
batches and an idle one writes at once. A run has at most one batch in flight, which is what makes a retry after a
lost reply safe (docs/architecture.md, "Appending is exactly-once"). State lives in the object, not in the task: a
restarted publisher sends what was in flight again.

A batch that was not taken for a reason that may pass makes its run's log *stuck*: it is sent again unchanged, with
pauses, and meanwhile the other runs' events go on. Each stuck log has its own clock for the outage bound.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain, islice
from typing import Final

import structlog
import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import StopKind
from dify_agent.actors.run_log import RunLog, batch_bytes
from dify_agent.concurrency.channels import ByteBudget
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import AppendBatch, AppendOutcome, RecordUnreadableError, RunStore

PIPELINE_RUNS: Final = 64
"""Runs that share one round trip."""
PIPELINE_BYTES: Final = 2 << 20
"""One round trip holds no further run's batch past this, so at most this and a batch: it must be over within the
store's time limit of 5 s on a slow link too."""
KEEP_SECONDS: Final = 2.0
"""How long acknowledged events are kept: a failover may lose those that the new primary had not got yet (R21)."""
KEEP_SHARE: Final = 4
"""All runs together keep at most a quarter of what the queue may hold; the oldest go first."""
RETRY_FIRST_SECONDS: Final = 0.05
RETRY_MOST_SECONDS: Final = 1.0

_log = structlog.get_logger()


class Publisher:
    """The process's writer of events. ``serve`` is a permanent service."""

    def __init__(self, store: RunStore, *, queue_bytes: int, outage_seconds: float, linger_seconds: float) -> None:
        self.budget = ByteBudget(queue_bytes)
        self._store = store
        self._linger_seconds = linger_seconds
        self.outage_seconds = outage_seconds
        self._open: set[RunLog] = set()
        # Both in the order in which they are served; a log with something to write is in exactly one of them.
        self._ready: dict[RunLog, None] = {}
        self._stuck: dict[RunLog, float] = {}
        """Logs whose batch was not taken, and since when."""
        self._kept: deque[tuple[float, AppendBatch]] = deque()
        """Acknowledged batches of all runs, and when they were. Not their logs: one would hold the actor of a run that
        has ended, for as long as this replica is idle."""
        self._kept_bytes = 0
        self._stuck_since = 0.0
        self._retry_at = 0.0
        self._pause = RETRY_FIRST_SECONDS
        self._bell = trio.Event()
        self._given_up = False

    def keep(self, batch: AppendBatch) -> None:
        """Remember an acknowledged batch for a while."""
        now = trio.current_time()
        self._kept.append((now, batch))
        self._kept_bytes += batch_bytes(batch)
        while self._kept and (
            self._kept[0][0] < now - KEEP_SECONDS or self._kept_bytes > self.budget.limit // KEEP_SHARE
        ):
            self._kept_bytes -= batch_bytes(self._kept.popleft()[1])

    def kept(self, run_id: str) -> list[AppendBatch]:
        """The batches of a run that were acknowledged not long ago, oldest first."""
        return [batch for _, batch in self._kept if batch.run_id == run_id]

    @property
    def waiting_events(self) -> int:
        """Events that are not written yet, of all runs."""
        return sum(log.waiting for log in self._open)

    @property
    def stuck_runs(self) -> int:
        """Runs whose last batch was not taken."""
        return len(self._stuck)

    def open_log(self, run_id: str, live: LiveLog, on_lost: Callable[[StopKind, str], None]) -> RunLog:
        """A new, empty log for a run that is about to be created.

        ``on_lost`` never waits. It is called once per kind, and already from in here when the publisher was given up.
        """
        log = RunLog(run_id, live, self, on_lost)
        if self._given_up:
            log.give_up()
        else:
            self._open.add(log)
        return log

    def forget(self, log: RunLog) -> None:
        """``log`` is closed: nothing will be offered to it any more."""
        self._open.discard(log)
        if not self._open:
            self._bell.set()

    def mark_ready(self, log: RunLog) -> None:
        """``log`` has something to write."""
        if log not in self._stuck:
            self._ready[log] = None
            self._bell.set()

    def give_up(self) -> None:
        """``serve`` will not run again: drop what waits, now and from now on, so that nobody waits for it.

        Each run is told once, as of an outage, and can still end: ``RunLog.take_last`` returns. Call it only when
        ``serve`` has ended. May be called again.
        """
        self._given_up = True
        for log in {*self._open, *self._ready, *self._stuck}:
            log.give_up()
        self._ready.clear()
        self._stuck.clear()

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
        while not done():
            with trio.move_on_at(self._retry_at if self._stuck else math.inf):
                await self._bell.wait()
            # What is offered in this turn of the loop leaves together; and a run that ends while a batch of it is under
            # way takes the rest along in its terminal transition, which saves a round trip.
            await trio.lowlevel.checkpoint()
            await self._write_once()

    async def _write_once(self) -> None:
        """At most one round trip."""
        if chosen := self._choose():
            logs = [log for log, _ in chosen]
            outcomes = await self._append([batch for _, batch in chosen])
            if "gap" in outcomes:
                outcomes = await self._mended(logs, outcomes)
            self._take_answers(logs, outcomes)
        if self._ready:
            self._bell.set()
        else:
            self._bell = trio.Event()

    def _choose(self) -> list[tuple[RunLog, AppendBatch]]:
        """Who takes part in the next round trip: stuck logs first when their pause is over, which is seldom."""
        due = self._stuck if trio.current_time() >= self._retry_at else ()
        chosen: list[tuple[RunLog, AppendBatch]] = []
        size = 0
        for log in list(islice(chain(due, self._ready), PIPELINE_RUNS)):
            if size >= PIPELINE_BYTES:
                break
            batch = log.next_batch()
            if batch is None:  # settled in a round trip of which a crash kept the rest from being noted
                self._stuck.pop(log, None)
                self._ready.pop(log, None)
            else:
                chosen.append((log, batch))
                size += batch_bytes(batch)
        return chosen

    async def _append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        try:
            return await self._store.append(batches)
        except StoreUnavailableError as error:
            return [error] * len(batches)

    async def _mended(
        self, logs: Sequence[RunLog], outcomes: Sequence[AppendOutcome | Exception]
    ) -> Sequence[AppendOutcome | Exception]:
        """After a failover the store may have less than it had acknowledged: append that again (decision R21).

        Two round trips for all logs together: the others' events wait meanwhile.
        """
        mended = list(outcomes)
        gaps = [index for index, outcome in enumerate(outcomes) if outcome == "gap"]
        unavailable = StoreUnavailableError("the newest event of a log could not be read")
        try:
            tops = await self._store.read_tops([logs[index].run_id for index in gaps])
        except StoreUnavailableError as error:
            tops, unavailable = {}, error
        repeated: dict[int, AppendBatch] = {}
        for index in gaps:
            top = tops.get(logs[index].run_id)
            if top is None:
                mended[index] = unavailable
            elif (batch := logs[index].step_back(top)) is not None:
                repeated[index] = batch
        if repeated:
            for index, outcome in zip(repeated, await self._append(list(repeated.values())), strict=True):
                mended[index] = outcome
        return mended

    def _take_answers(self, logs: Sequence[RunLog], outcomes: Sequence[AppendOutcome | Exception]) -> None:
        unanswered: dict[RunLog, StoreUnavailableError] = {}
        for log, outcome in zip(logs, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailableError):
                unanswered[log] = outcome
            elif isinstance(outcome, Exception):
                # This run's log alone cannot be written; the others go on.
                if isinstance(outcome, RecordUnreadableError):
                    _log.error("run's events refused", run_id=log.run_id, key=outcome.key, why=str(outcome))
                else:
                    _log.error("run's events refused", run_id=log.run_id, exc_info=outcome)
                log.refuse(outcome)
            else:
                log.settle(outcome)
        # Only after every answer was taken: a log that got events meanwhile moves to the end of the queue.
        retried = [log for log in logs if log in self._stuck]
        began = bool(unanswered) and not self._stuck
        self._queue_again(logs, unanswered)
        if len(unanswered) == len(logs) > len(retried):
            # Nobody was answered, not for an old trouble of their own: those who did not fit in share the fate.
            self._stuck |= dict.fromkeys(self._ready, trio.current_time())
            self._ready.clear()
        if began:
            self._note_trouble(next(iter(unanswered.values())))
        self._set_pause(began=began, retried=retried, unanswered=unanswered)
        # Without any answer these are all that are stuck: with many, each one's own turn comes seldom.
        self._tell_outage(self._stuck if len(unanswered) == len(logs) else unanswered)

    def _queue_again(self, logs: Sequence[RunLog], unanswered: Container[RunLog]) -> None:
        """Put each log of a round trip to the end of its queue."""
        for log in logs:
            since = self._stuck.pop(log, trio.current_time())
            self._ready.pop(log, None)
            if log in unanswered:
                self._stuck[log] = since
            elif not log.idle:
                self._ready[log] = None

    def _set_pause(self, *, began: bool, retried: Sequence[RunLog], unanswered: Container[RunLog]) -> None:
        now = trio.current_time()
        recovered = any(log not in unanswered for log in retried)
        if recovered and not self._stuck:
            _log.info("store is back", seconds=round(now - self._stuck_since, 1))
        if recovered or began:
            # Where one stuck log was taken, the others may be as well: no pause before they are tried.
            self._pause = RETRY_FIRST_SECONDS
            self._retry_at = now if recovered else now + self._pause
        elif retried:
            self._pause = min(self._pause * 2, RETRY_MOST_SECONDS)
            self._retry_at = now + self._pause

    def _note_trouble(self, error: StoreUnavailableError) -> None:
        self._stuck_since = trio.current_time()
        _log.warning(
            "store unavailable, events are queued",
            cause=error.cause,
            runs=len(self._stuck),
            bytes=self.budget.used,
            limit=self.budget.limit,
        )

    def _tell_outage(self, logs: Iterable[RunLog]) -> None:
        """Tell those of ``logs`` whose batch has been stuck for too long."""
        before = trio.current_time() - self.outage_seconds
        for log in logs:
            if self._stuck[log] <= before:
                log.tell_outage(self.outage_seconds)
