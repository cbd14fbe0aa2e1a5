"""The runs this replica executes, in memory. Changed only in synchronous functions; handed in, never a module
global."""

from dataclasses import dataclass, field

import trio

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import RunMessage, Stop, StopKind
from dify_agent.protocol.event_id import START


@dataclass(frozen=True, slots=True)
class RunEntry:
    """How to reach a run: its inbox, and its recent events."""

    inbox: trio.MemorySendChannel[RunMessage]
    live: LiveLog
    told: set[StopKind] = field(default_factory=set)
    """Kinds of stop that are in the inbox or were. Repeats are not sent: a burst of cancel requests must not take the
    room that the work's own reports need."""


class RunRegistry:
    """Run id to `RunEntry`."""

    def __init__(self) -> None:
        self._runs: dict[str, RunEntry] = {}
        self._ended: set[str] = set()
        self._emptied = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run_id: str, entry: RunEntry) -> None:
        """Note a run, before its actor starts."""
        self._runs[run_id] = entry

    def remove(self, run_id: str) -> None:
        """Forget a run that has ended. May be called again, when its actor has written its last."""
        entry = self._runs.pop(run_id, None)
        if entry is not None:
            entry.inbox.close()
        self._ended.add(run_id)
        if not self._runs:
            self._emptied.unpark_all()

    def run_ids(self) -> tuple[str, ...]:
        """The runs at this moment."""
        return tuple(self._runs)

    def take_ended(self) -> tuple[str, ...]:
        """The runs that ended since the last call: still in the owner's set, until the heartbeat takes them out."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def live_log(self, run_id: str) -> LiveLog | None:
        """The run's recent events, if it is executed here."""
        entry = self._runs.get(run_id)
        return None if entry is None else entry.live

    def has_events(self, run_id: str) -> bool:
        """Whether an event of the run is stored, so that its record must exist; False when it is not executed here."""
        entry = self._runs.get(run_id)
        return entry is not None and entry.live.top > START

    def tell(self, run_id: str, stop: Stop) -> bool:
        """Send ``stop`` to a run, once per kind; False when it is not executed here."""
        entry = self._runs.get(run_id)
        if entry is None:
            return False
        if stop.kind in entry.told:
            return True
        try:
            entry.inbox.send_nowait(stop)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        entry.told.add(stop.kind)
        return True

    async def wait_empty(self) -> None:
        """Return when no run is left."""
        while self._runs:
            await self._emptied.park()
