"""Runs one service by its spec: started, restarted with backoff, given up past the budget."""

from collections.abc import Callable

import structlog
import trio

from dify_agent.supervisor.specs import RestartCounter, ServiceBudgetSpentError, ServiceSpec

_log = structlog.get_logger()


class _Started:
    """Passes the first ``started`` on; a restarted service's has nobody to tell."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self.done = False

    def started(self, value: None = None) -> None:
        if not self.done:
            self.done = True
            self._task_status.started(value)


async def run_service(
    spec: ServiceSpec,
    give_up: Callable[[ServiceBudgetSpentError], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep ``spec`` running until cancelled. Started when the service is usable for the first time.

    A service that has spent its budget stays down and is reported once to ``give_up``: the process drains, and runs
    end as well as they can without it.

    Raises:
        Exception: it failed before it was usable for the first time; the process cannot start.
    """
    counter = RestartCounter(spec.budget)
    status = _Started(task_status)
    while True:
        try:
            await spec.serve(task_status=status)
        except trio.Cancelled:
            raise
        except Exception as failure:
            if not status.done:
                raise
            error: Exception | None = failure
        else:
            if not status.done:
                raise RuntimeError(f"service '{spec.name}' ended before it was usable")
            error = None
        pause = counter.next_pause(trio.current_time())
        if pause is None:
            spent = ServiceBudgetSpentError(spec.name, spec.budget)
            spent.__cause__ = error
            _log.critical("service given up", service=spec.name, exc_info=error)
            give_up(spent)
            await trio.sleep_forever()
        _log.error("service ended, restarting", service=spec.name, pause_seconds=pause, exc_info=error)
        await trio.sleep(pause)
