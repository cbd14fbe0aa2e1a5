"""The outage watch: stops runs for which the store has not answered for longer than the bound, whatever they do.

The publisher notices an outage only for runs that write. Here every run counts, by the questions that the sweep asks
about each of them (`dify_agent.actors.cancel_observer`): a run's time begins when the first question was asked that got
no answer, so never before the store was away, and an answer ends it. On a Cluster each node answers for the runs of its
own slots, so one that is away costs no run of another.

The bound is kept by a timer: a question to a store that has stopped takes seconds to fail.
"""

import math
from collections.abc import Callable, Container, Iterable
from typing import Final

import trio

from dify_agent.actors.messages import Stop, StopKind

LAST_CHANCE_SECONDS: Final = 2.5
"""From the bound to the verdict. The sweep asks once more in that time, so a store that came back just before the bound
has answered by then; and so has one whose last answer came too late because this process itself was stopped."""


class OutageWatch:
    """A permanent service. Its state is in the object: a restart forgets no outage."""

    def __init__(self, *, outage_seconds: float, tell: Callable[[str, Stop], bool]) -> None:
        """
        Args:
            outage_seconds: how long the store may be away.
            tell: stops a run that is executed here, once however often it is called.
        """
        self._outage_seconds = outage_seconds
        self._tell = tell
        self._unanswered: dict[str, float] = {}
        """Runs about which the last question got no answer, and since when."""
        self._changed = trio.Event()

    def note(self, asked: Iterable[str], answered: Container[str], *, asked_at: float) -> None:
        """The store was asked about all runs that are executed here, and a while later had answered for some."""
        before = self._unanswered
        self._unanswered = {run_id: before.get(run_id, asked_at) for run_id in asked if run_id not in answered}
        if self._unanswered != before:
            self._changed.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell every run whose time is over, until cancelled."""
        task_status.started()
        while True:
            with trio.move_on_at(self._due()):
                await self._changed.wait()
            self._changed = trio.Event()
            now = trio.current_time()
            if now >= self._due():
                await trio.sleep(LAST_CHANCE_SECONDS)
                self._tell_overdue(now - self._outage_seconds)

    def _due(self) -> float:
        return min(self._unanswered.values(), default=math.inf) + self._outage_seconds

    def _tell_overdue(self, before: float) -> None:
        overdue = [run_id for run_id, since in self._unanswered.items() if since <= before]
        for run_id in overdue:
            del self._unanswered[run_id]
            self._tell(run_id, Stop(StopKind.STORE_UNAVAILABLE, f"for {self._outage_seconds:g} s"))
