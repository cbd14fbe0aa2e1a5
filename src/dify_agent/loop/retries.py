"""Retry budgets: one counter per tool name, one for the run's output.

A tool's counter is compared during a step and changed only between steps. So two bad calls of one tool in one response
cost one retry, and a success resets the counter unless the same step also failed.
"""

from dataclasses import dataclass, field

from pydantic_ai.exceptions import UnexpectedModelBehavior

from dify_agent.loop.texts import output_retries_exhausted, retries_exhausted

DEFAULT_TOOL_RETRIES = 1
"""Budget of a tool that sets none, and of each unknown name."""
OUTPUT_RETRIES = 1


@dataclass(slots=True)
class ToolRetries:
    """Counters of failed attempts by tool name."""

    counts: dict[str, int] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _succeeded: set[str] = field(default_factory=set)

    def charge(self, name: str, limit: int, error: Exception | None) -> int:
        """Note a failure of ``name`` and return the attempt it asks for, counted from 1.

        Raises:
            UnexpectedModelBehavior: the budget is spent; caused by ``error``.
        """
        used = self.counts.get(name, 0)
        if used >= limit:
            raise UnexpectedModelBehavior(retries_exhausted(name, limit)) from error
        self._failed.add(name)
        return used + 1

    def succeed(self, name: str) -> None:
        """Note a success of ``name``."""
        self._succeeded.add(name)

    def next_step(self) -> None:
        """Apply what the last step noted. Called when the next model request is built."""
        counts = {name: used for name, used in self.counts.items() if name not in self._succeeded}
        counts.update({name: self.counts.get(name, 0) + 1 for name in self._failed})
        self.counts = counts
        self._failed.clear()
        self._succeeded.clear()


@dataclass(slots=True)
class OutputRetries:
    """Run-wide counter: text retries and invalid output calls count, only text retries check it."""

    used: int = 0

    def charge_text(self) -> int:
        """Count a response without usable output and return the attempt it asks for.

        Raises:
            UnexpectedModelBehavior: the budget is spent.
        """
        self.used += 1
        if self.used > OUTPUT_RETRIES:
            raise UnexpectedModelBehavior(output_retries_exhausted(OUTPUT_RETRIES))
        return self.used
