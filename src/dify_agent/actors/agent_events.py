"""From the loop's events to the run's log: coalescing, serialising, backpressure."""

from datetime import UTC, datetime
from typing import Final

import structlog
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, TextPartDelta

from dify_agent.actors.environment import CoalescingPolicy
from dify_agent.actors.run_log import RunLog
from dify_agent.events import envelope
from dify_agent.events.coalescer import Coalescer
from dify_agent.events.flusher import CoalescingSink, FlushTimer
from dify_agent.metrics import Metrics

COUNTED_AT_ONCE: Final = 1024
"""Text deltas between two reports to the metrics."""

_log = structlog.get_logger()


class AgentEvents:
    """The loop's sink for one run."""

    def __init__(self, run_id: str, log: RunLog, timer: FlushTimer, policy: CoalescingPolicy, metrics: Metrics) -> None:
        self._run_id = run_id
        self._log = log
        self._metrics = metrics
        self._texts = self._text_events = 0
        coalescer = Coalescer(
            enabled=policy.enabled, interval_seconds=policy.interval_seconds, max_chars=policy.max_chars
        )
        self._sink = CoalescingSink(coalescer, timer, self._publish)

    async def emit(self, event: AgentStreamEvent) -> None:
        """Take one event. Waits only while the run's or the process's queue is full."""
        if type(event) is PartDeltaEvent and type(event.delta) is TextPartDelta:
            self._texts += 1
            if self._texts >= COUNTED_AT_ONCE:
                self._count()
        self._sink.push(event)
        if not self._log.has_room:
            await self._log.wait_for_room()

    def finish(self) -> None:
        """The loop is over: publish what is still buffered."""
        self._sink.finish()
        self._count()

    def give_up(self) -> None:
        """The loop ended with an error, which is the one to report: publish what is buffered as well as may be."""
        try:
            self._sink.finish()
        except Exception:  # noqa: BLE001  The error on its way must not be replaced.
            _log.exception("the last text of a run could not be published", run_id=self._run_id)
        self._count()

    def discard(self) -> None:
        """The run was told to stop: publish nothing more."""
        self._sink.discard()

    def _count(self) -> None:
        """Note how many deltas became how many events: not for each, which would cost more than the delta."""
        self._metrics.text(deltas=self._texts, events=self._text_events)
        self._texts = self._text_events = 0

    def _publish(self, event: AgentStreamEvent) -> None:
        self._text_events += type(event) is PartDeltaEvent and type(event.delta) is TextPartDelta
        payload = envelope.agent_event(self._run_id, datetime.now(UTC), event)
        if payload is not None:
            self._log.offer(payload)
