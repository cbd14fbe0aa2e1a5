"""The clocked shell around the coalescer: one timer task per process flushes the text that has waited long enough."""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio
from pydantic_ai.messages import AgentStreamEvent

from dify_agent.events.coalescer import Coalescer

_PASSES: Final = 3
"""Scheduler passes a source gets to show that it is ready: one more than the checkpoints it may make between deltas."""

_RECHECK_SECONDS: Final = 0.005
"""Pause before a source that was still ready is looked at again: short beside the interval, long beside a pass."""


class CoalescingSink:
    """Where a run's events enter: merges text deltas and hands what is due to ``publish``, in order.

    ``publish`` is called from the run's task or from the timer's. If it raises in the timer, the run's next call here
    raises the error in its place.
    """

    __slots__ = ("_coalescer", "_discarded", "_error", "_publish", "_timer")

    def __init__(self, coalescer: Coalescer, timer: "FlushTimer", publish: Callable[[AgentStreamEvent], None]) -> None:
        self._coalescer: Final = coalescer
        self._timer: Final = timer
        self._publish: Final = publish
        self._discarded = False
        self._error: Exception | None = None

    @property
    def deadline(self) -> float | None:
        """When the buffered text is due (`trio.current_time`), None while there is none."""
        return self._coalescer.deadline

    @property
    def generation(self) -> int:
        """Number of events taken so far."""
        return self._coalescer.generation

    def push(self, event: AgentStreamEvent) -> None:
        """Take the next event. After `discard` it goes nowhere."""
        if self._discarded:
            return
        self._raise_late_error()
        before = self._coalescer.deadline
        for due in self._coalescer.push(event, trio.current_time()):
            self._publish(due)
        deadline = self._coalescer.deadline
        if deadline is not None and deadline != before:
            self._timer.arm(deadline, self)

    def finish(self) -> None:
        """Publish what is buffered: the source has ended, raised, or met its deadline. May be called again."""
        self._raise_late_error()
        self._flush()

    def discard(self) -> None:
        """Drop what is buffered and everything that still comes: a cancel was accepted, or the process shuts down."""
        self._discarded = True
        self._coalescer.flush()

    def flush_waiting(self) -> None:
        """Called by the timer: the deadline has passed and the source is waiting."""
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001  One run's failure must not end the timer that all runs share.
            self._error = error

    def _flush(self) -> None:
        event = self._coalescer.flush()
        if event is not None:
            self._publish(event)

    def _raise_late_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class FlushTimer:
    """One task for all runs of a process. All sinks must use one interval: deadlines then arrive in order.

    What is armed outlives a crash of the task: `serve` may be started again.
    """

    def __init__(self) -> None:
        self._armed: deque[tuple[float, CoalescingSink]] = deque()
        self._rechecks: deque[tuple[float, float, CoalescingSink]] = deque()
        self._arrived = trio.Event()

    def arm(self, deadline: float, sink: CoalescingSink) -> None:
        """Look at ``sink`` when ``deadline`` (`trio.current_time`) has passed, if its text is still there by then."""
        self._armed.append((deadline, sink))
        self._arrived.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush what is due until cancelled. Parked while nothing is armed."""
        task_status.started()
        while True:
            await self._sleep()
            due = self._take_due(trio.current_time())
            if due:
                await self._flush_waiting(due)

    async def _sleep(self) -> None:
        """Until the first deadline. Later ones cannot be earlier, so an arrival need not wake a sleeping timer."""
        wake_times = [queue[0][0] for queue in (self._armed, self._rechecks) if queue]
        if wake_times:
            await trio.sleep_until(min(wake_times))
        else:
            self._arrived = trio.Event()
            await self._arrived.wait()

    def _take_due(self, now: float) -> list[tuple[float, int, CoalescingSink]]:
        """What has passed and is not stale: the deadline, the sink's generation as it is now, the sink."""
        found = []
        while self._armed and self._armed[0][0] <= now:
            found.append(self._armed.popleft())
        while self._rechecks and self._rechecks[0][0] <= now:
            found.append(self._rechecks.popleft()[1:])
        return [(deadline, sink.generation, sink) for deadline, sink in found if sink.deadline == deadline]

    async def _flush_waiting(self, due: list[tuple[float, int, CoalescingSink]]) -> None:
        """Flush the sinks whose source waits: one that is ready pushes its next event within a few passes."""
        for _ in range(_PASSES):
            await trio.lowlevel.checkpoint()
        again = trio.current_time() + _RECHECK_SECONDS
        for deadline, generation, sink in due:
            if sink.generation == generation:
                sink.flush_waiting()
            elif sink.deadline == deadline:
                self._rechecks.append((again, deadline, sink))
