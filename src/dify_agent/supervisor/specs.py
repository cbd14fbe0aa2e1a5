"""Restart policy as data: which services there are, and how much trouble each may make.

Only services are restarted. A run is temporary: its actor is never started again, its failure is its terminal event.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """At most ``restarts`` within ``seconds``, with a pause before each that doubles from ``first_pause_seconds``."""

    restarts: int = 5
    seconds: float = 60.0
    first_pause_seconds: float = 0.1
    most_pause_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One permanent service: an async function that accepts ``task_status`` and runs until it is cancelled."""

    name: str
    serve: Callable[..., Awaitable[None]]
    budget: RestartBudget = field(default_factory=RestartBudget)


class ServiceBudgetSpentError(Exception):
    """A service failed more often than its budget allows. The process drains and exits with status 70."""

    def __init__(self, name: str, budget: RestartBudget) -> None:
        super().__init__(
            f"service '{name}' failed more than {budget.restarts} times within {budget.seconds:g} s; the process drains"
        )
        self.service = name


class RestartCounter:
    """Counts one service's failures against its budget. Pure: the caller brings the time."""

    def __init__(self, budget: RestartBudget) -> None:
        self._budget = budget
        self._failures: deque[float] = deque()

    def next_pause(self, now: float) -> float | None:
        """Note a failure at ``now``; the pause before the restart in seconds, or None when the budget is spent."""
        self._failures.append(now)
        while self._failures and now - self._failures[0] > self._budget.seconds:
            self._failures.popleft()
        if len(self._failures) > self._budget.restarts:
            return None
        pause = self._budget.first_pause_seconds * 2 ** (len(self._failures) - 1)
        return float(min(pause, self._budget.most_pause_seconds))
