"""The cancel observer: tells this replica's runs about cancel intents, whoever accepted them.

One blocking read for the whole process, on the replica's own inbox. The inbox is only a bell: it can be lost, so a
sweep over the intents of all own runs is the safety net, and the intent itself is always what counts.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import trio

from dify_agent.actors.messages import Stop, StopKind
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import Owner, RunStore

BLOCK_SECONDS: Final = 10.0
SWEEP_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.5


class CancelObserver:
    """Two permanent services over one registry: ``watch_inbox`` and ``sweep``."""

    def __init__(
        self, store: RunStore, owner: Owner, *, tell: Callable[[str, Stop], bool], own_runs: Callable[[], Iterable[str]]
    ) -> None:
        self._store = store
        self._owner = owner
        self._tell = tell
        self._own_runs = own_runs
        self._read_to = "0-0"

    async def watch_inbox(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for bells until cancelled. An outage of the store is waited out; the position is kept."""
        task_status.started()
        while True:
            try:
                entries = await self._store.read_inbox(self._owner, self._read_to, BLOCK_SECONDS)
                await self._look([run_id for _, run_id in entries])
            except StoreUnavailableError:
                await trio.sleep(RETRY_SECONDS)
                continue
            if entries:
                self._read_to = entries[-1][0]

    async def sweep(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the intents of all own runs, again and again, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(SWEEP_SECONDS)
            with suppress(StoreUnavailableError):
                await self._look(list(self._own_runs()))

    async def _look(self, run_ids: Sequence[str]) -> None:
        """Tell those of the runs that have an intent; a bell without one means nothing."""
        if run_ids:
            for run_id in await self._store.read_intents(run_ids):
                self._tell(run_id, Stop(StopKind.CANCEL))
