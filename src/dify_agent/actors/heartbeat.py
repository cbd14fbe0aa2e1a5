"""The heartbeat: renews this replica's lease, keeps its live runs' keys from expiring, and tidies its set of runs."""

import math
from collections.abc import Iterable
from typing import Final, Protocol

import trio

from dify_agent.actors.outage_log import OutageLog
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import Owner, RunStore

BEATS_PER_LEASE: Final = 3
TOUCHES_PER_RETENTION: Final = 3
RETRY_SECONDS: Final = 0.5

MEANING: Final = (
    "runs go on; events wait in memory, their runs are stopped after DIFY_AGENT_STORE_OUTAGE_SECONDS; requests get 503"
)


class OwnRuns(Protocol):
    """The runs of this replica, as its registry knows them."""

    def run_ids(self) -> tuple[str, ...]:
        """Those that are executed now."""

    def take_ended(self) -> tuple[str, ...]:
        """Those that ended since the last call."""

    def give_back(self, run_ids: Iterable[str]) -> None:
        """Undo a `take_ended`."""


class Heartbeat:
    """A permanent service."""

    def __init__(
        self,
        store: RunStore,
        owner: Owner,
        *,
        lease_seconds: float,
        retention_seconds: float,
        runs: OwnRuns,
    ) -> None:
        self._store = store
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._touch_seconds = retention_seconds / TOUCHES_PER_RETENTION
        self._beat_seconds = min(lease_seconds / BEATS_PER_LEASE, self._touch_seconds)
        self._runs = runs
        self._touched: float | None = None
        """When the live runs were last touched (`trio.current_time`); outlives a restart of the service."""
        self._lease_log = OutageLog("lease not renewed", "store is back, lease renewed", owner=owner.id)
        self._tend_log = OutageLog(
            "runs not tended, tried again with the next beat", "runs are tended again", owner=owner.id
        )
        self._doubted = trio.Event()
        self._beating = trio.Lock()
        self._retired = False

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started after the first beat: a run must not be created before its owner is known to be alive.

        Raises:
            StoreUnavailableError: the very first beat failed, and the process cannot start. Later, also after a
                restart, an outage is waited out.
        """
        if self._touched is None:
            await self._store.heartbeat(self._owner, self._lease_seconds)
            self._touched = trio.current_time()
        task_status.started()
        pause = self._beat_seconds
        while True:
            with trio.move_on_after(pause):
                await self._doubted.wait()
            self._doubted = trio.Event()
            async with self._beating:
                pause = await self._beat()

    def doubt(self) -> None:
        """Somebody else has met an outage: beat now, so that it is told at once and not with the next beat."""
        if not self._lease_log.lasts:
            self._doubted.set()

    async def _beat(self) -> float:
        """Renew the lease, then tend the runs; how long to wait for the next."""
        if self._retired:
            return math.inf
        try:
            await self._store.heartbeat(self._owner, self._lease_seconds)
        except StoreUnavailableError as error:
            # Renew at once when the store is back: a lease judged late is a healthy run lost.
            self._lease_log.failed(error.cause, meaning=MEANING)
            return min(RETRY_SECONDS, self._beat_seconds)
        self._lease_log.succeeded()
        # Neither of the two keeps the other from its turn, nor the lease: on a cluster one node may be away.
        failed: StoreUnavailableError | None = None
        for tend in (self._touch, self.release):
            try:
                await tend()
            except StoreUnavailableError as error:
                failed = error
        if failed is not None:
            self._tend_log.failed(failed.cause)
        else:
            self._tend_log.succeeded()
        return self._beat_seconds

    async def _touch(self) -> None:
        assert self._touched is not None
        if trio.current_time() - self._touched >= self._touch_seconds - self._beat_seconds / 2:
            await self._store.touch_runs(self._owner, self._runs.run_ids())
            self._touched = trio.current_time()

    async def retire(self) -> None:
        """Beat no more, and delete the owner's own keys. What could not be ended stays for the other replicas.

        Raises:
            StoreUnavailableError: the keys were not deleted, they expire.
        """
        async with self._beating:
            self._retired = True
            await self.release()
            await self._store.retire(self._owner)

    async def release(self) -> None:
        """Take finished runs out of the owner's set: all of a beat in one round trip, none in a run's own path.

        A run that no actor executes any more although its record does not say that it has ended stays in the set, for
        a reaper to judge: its actor failed, or a failover has lost its end.

        Raises:
            StoreUnavailableError: nothing was released; the next call tries the same runs again.
        """
        ended = self._runs.take_ended()
        if not ended:
            return
        released = False
        try:
            looks = await self._store.look(ended)
            over = [
                run_id
                for run_id, look in looks.items()
                if look is not None and look.record is not None and look.record.status != "running"
            ]
            await self._store.release_runs(self._owner.id, over)
            released = True
        finally:
            if not released:
                self._runs.give_back(ended)
