"""The heartbeat: renews this replica's lease, keeps its live runs' keys from expiring, and tidies its set of runs."""

import math
from typing import Final, Protocol

import trio

from dify_agent.actors.outage_log import OutageLog, UnreadableLog
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import KeyUnreadableError, Owner, RunStore

BEATS_PER_LEASE: Final = 3
TOUCHES_PER_RETENTION: Final = 3
RETRY_SECONDS: Final = 0.5

UNREADABLE_MEANING: Final = "if this replica is lost, none judges its runs until the key is deleted"
MEANING: Final = (
    "runs go on; events wait in memory; runs are stopped after DIFY_AGENT_STORE_OUTAGE_SECONDS; requests get 503"
)


class OwnRuns(Protocol):
    """The runs of this replica, as its registry knows them."""

    def run_ids(self) -> tuple[str, ...]:
        """Those that are executed now."""

    def take_ended(self) -> tuple[str, ...]:
        """Those that ended since the last call."""


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
        keep_seconds: float = 0.0,
    ) -> None:
        """
        Args:
            store: where the owner's keys are.
            owner: this replica.
            lease_seconds: within which the others must hear of it.
            retention_seconds: after which keys that nobody renews are gone.
            runs: this replica's.
            keep_seconds: how long ago a run must have ended before the owner's set names it no more. Where
                the two lie on different servers, a failover may lose the end alone, and nobody would find the run.
        """
        self._store = store
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._touch_seconds = retention_seconds / TOUCHES_PER_RETENTION
        self._beat_seconds = min(lease_seconds / BEATS_PER_LEASE, self._touch_seconds)
        self._runs = runs
        self._keep_seconds = keep_seconds
        self._ended: dict[str, float] = {}
        """Runs that have no actor any more but are still in the owner's set, and since when that is known."""
        self._touched: float | None = None
        """When the live runs were last touched (`trio.current_time`); outlives a restart of the service."""
        self._lease_log = OutageLog("lease not renewed", "store is back, lease renewed", owner=owner.id)
        self._tend_log = OutageLog(
            "runs not tended, tried again with the next beat", "runs are tended again", owner=owner.id
        )
        self._unreadable_log = UnreadableLog(owner=owner.id)
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
            await self._renew()
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

    def in_hand(self) -> tuple[str, ...]:
        """The runs that are executed, and those that have ended and not been looked at: no strays."""
        return (*self._runs.run_ids(), *self._take_ended())

    def _take_ended(self) -> dict[str, float]:
        now = trio.current_time()
        self._ended.update(dict.fromkeys(self._runs.take_ended(), now))
        return self._ended

    async def _beat(self) -> float:
        """Renew the lease, then tend the runs; how long to wait for the next."""
        if self._retired:
            return math.inf
        try:
            await self._renew()
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
            except KeyUnreadableError as error:
                self._unreadable_log.tell(error, meaning=UNREADABLE_MEANING)
        if failed is not None:
            self._tend_log.failed(failed.cause)
        else:
            self._tend_log.succeeded()
        return self._beat_seconds

    async def _renew(self) -> None:
        try:
            await self._store.heartbeat(self._owner, self._lease_seconds, self.in_hand())
        except KeyUnreadableError as error:
            self._unreadable_log.tell(error, meaning=UNREADABLE_MEANING)  # the lease holds all the same

    async def _touch(self) -> None:
        assert self._touched is not None
        if trio.current_time() - self._touched >= self._touch_seconds - self._beat_seconds / 2:
            await self._store.touch_runs(self._owner, self._runs.run_ids())
            self._touched = trio.current_time()

    async def retire(self) -> None:
        """Beat no more, and delete the owner's own keys. What could not be ended stays for the other replicas, and so
        does what has just ended, if that is to be kept for a while.

        Raises:
            StoreUnavailableError: the keys were not deleted, they expire.
        """
        async with self._beating:
            self._retired = True
            try:
                await self.release()
            except KeyUnreadableError as error:
                self._unreadable_log.tell(error, meaning=UNREADABLE_MEANING)
            await self._store.retire(self._owner)

    async def release(self) -> None:
        """Take finished runs out of the owner's set: all of a beat in one round trip, none in a run's own path.

        A run that no actor executes any more although its record does not say that it has ended stays in the set, for
        a reaper to judge: its actor failed, or a failover has lost its end.

        Raises:
            StoreUnavailableError: perhaps nothing was released; the next call tries the same runs again.
            KeyUnreadableError: the owner's set is none, so it names none of them.
        """
        waiting = self._take_ended()
        latest = trio.current_time() - self._keep_seconds
        ended = {run_id: since for run_id, since in waiting.items() if since <= latest}
        if not ended:
            return
        looks = await self._store.look(tuple(ended))
        over = [
            run_id
            for run_id, look in looks.items()
            if look is not None and look.record is not None and look.record.status != "running"
        ]
        unreadable: KeyUnreadableError | None = None
        try:
            await self._store.release_runs(self._owner.id, over)
        except KeyUnreadableError as error:
            unreadable = error
        for run_id in looks:
            if self._ended[run_id] == ended[run_id]:  # else it has ended once more meanwhile, as a refused create does
                del self._ended[run_id]
        if unreadable is not None:
            raise unreadable
