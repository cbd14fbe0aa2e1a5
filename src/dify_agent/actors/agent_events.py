"""From the loop's events to the run's log: coalescing, serialising, backpressure."""

from datetime import UTC, datetime

import structlog
from pydantic_ai.messages import AgentStreamEvent

from dify_agent.actors.environment import CoalescingPolicy
from dify_agent.actors.publisher import RunLog
from dify_agent.events import envelope
from dify_agent.events.coalescer import Coalescer
from dify_agent.events.flusher import CoalescingSink, FlushTimer

_log = structlog.get_logger()


class AgentEvents:
    """The loop's sink for one run."""

    def __init__(self, run_id: str, log: RunLog, timer: FlushTimer, policy: CoalescingPolicy) -> None:
        self._run_id = run_id
        self._log = log
        coalescer = Coalescer(
            enabled=policy.enabled, interval_seconds=policy.interval_seconds, max_chars=policy.max_chars
        )
        self._sink = CoalescingSink(coalescer, timer, self._publish)

    async def emit(self, event: AgentStreamEvent) -> None:
        """Take one event. Waits only while the run's or the process's queue is full."""
        self._sink.push(event)
        if not self._log.has_room:
            await self._log.wait_for_room()

    def finish(self) -> None:
        """The loop is over: publish what is still buffered."""
        self._sink.finish()

    def give_up(self) -> None:
        """The loop ended with an error, which is the one to report: publish what is buffered as well as may be."""
        try:
            self._sink.finish()
        except Exception:  # noqa: BLE001  The error on its way must not be replaced.
            _log.exception("the last text of a run could not be published", run_id=self._run_id)

    def discard(self) -> None:
        """The run was told to stop: publish nothing more."""
        self._sink.discard()

    def _publish(self, event: AgentStreamEvent) -> None:
        payload = envelope.agent_event(self._run_id, datetime.now(UTC), event)
        if payload is not None:
            self._log.offer(payload)
