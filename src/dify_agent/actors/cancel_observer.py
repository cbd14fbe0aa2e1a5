"""The cancel observer: tells this replica's runs what others did to them in the store.

That is mostly a cancel intent, whoever accepted it. One blocking read for the whole process, on the replica's own
inbox, brings those at once. The inbox is only a bell: it can be lost, so a sweep over all own runs is the safety net,
and the intent itself is always what counts. The sweep also sees a verdict on this replica (it was slow, and taken for
lost) and a record that is gone; a run without events to write would not notice either by itself. Whether the store has
answered for each run is passed on: nothing else asks about every run, so that is how an outage shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from dify_agent.actors.messages import Stop, StopKind
from dify_agent.actors.outage_log import UnreadableLog
from dify_agent.actors.outage_watch import OutageWatch
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import KeyUnreadableError, Owner, RunLook, RunStore

BLOCK_SECONDS: Final = 10.0
SWEEP_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.5


class CancelObserver:
    """Two permanent services over one registry: ``watch_inbox`` and ``sweep``."""

    def __init__(
        self,
        store: RunStore,
        owner: Owner,
        *,
        tell: Callable[[str, Stop], bool],
        own_runs: Callable[[], Iterable[str]],
        has_events: Callable[[str], bool],
        outages: OutageWatch,
        on_outage: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            store: where the inbox and the intents are.
            owner: this replica.
            tell: stops a run.
            own_runs: those that are executed now.
            has_events: whether anything of a run is stored.
            outages: hears for which runs the sweep asks, and for which it is answered.
            on_outage: called when the inbox cannot be read any more. Its read is always under way, so it is the first
                to notice.
        """
        self._store = store
        self._owner = owner
        self._tell = tell
        self._own_runs = own_runs
        self._has_events = has_events
        self._outages = outages
        self._on_outage = on_outage
        self._read_to = "0-0"
        self._unreadable_log = UnreadableLog(owner=owner.id)

    async def watch_inbox(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for bells until cancelled. An outage of the store is waited out; the position is kept."""
        task_status.started()
        away = False
        while True:
            try:
                entries = await self._store.read_inbox(self._owner, self._read_to, BLOCK_SECONDS)
                await self._look([run_id for _, run_id in entries])
            except StoreUnavailableError:
                if not away:
                    self._on_outage()
                away = True
                await trio.sleep(RETRY_SECONDS)
                continue
            except KeyUnreadableError as error:
                self._unreadable_log.tell(error, meaning="cancels are noticed by the sweep only")
                await trio.sleep(SWEEP_SECONDS)
                continue
            away = False
            if entries:
                self._read_to = entries[-1][0]

    async def sweep(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at all own runs, again and again, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(SWEEP_SECONDS)
            with suppress(StoreUnavailableError):
                await self._sweep()

    async def _sweep(self) -> None:
        own = tuple(self._own_runs())
        # Asked before the look: only a run that had an event then must have a record now.
        stored = {run_id for run_id in own if self._has_events(run_id)}
        looks = await self._ask(own)
        for run_id, look in looks.items():
            if look is None:
                if run_id in stored:
                    self._tell(run_id, Stop(StopKind.RECORD_LOST))
            elif look.record is None:
                self._tell(run_id, Stop(StopKind.RECORD_UNREADABLE))
            elif look.record.status != "running":
                self._tell(run_id, Stop(StopKind.SEALED, look.record.status))
            elif look.intent is not None:
                self._tell(run_id, Stop(StopKind.CANCEL))

    async def _ask(self, run_ids: Sequence[str]) -> Mapping[str, RunLook | None]:
        asked_at = trio.current_time()
        try:
            looks = await self._store.look(run_ids) if run_ids else {}
        except StoreUnavailableError:
            self._outages.note(run_ids, (), asked_at=asked_at)
            raise
        self._outages.note(run_ids, looks, asked_at=asked_at)
        return looks

    async def _look(self, run_ids: Sequence[str]) -> None:
        """Tell those of the runs that have an intent; a bell without one means nothing."""
        if run_ids:
            for run_id in await self._store.read_intents(run_ids):
                self._tell(run_id, Stop(StopKind.CANCEL))
