"""The reaper: ends runs whose owner is lost, so that none stays running for ever (docs/architecture.md, "Orphan
verdict").

Who is lost, the lease watch says: a store that was away, or a reaper that was itself stopped for a while, must not
condemn healthy replicas. Owners renew at once when the store is back.

A verdict names the owner it judged and applies only while the run still has it; it seals the log, which is what stops
an owner that was only slow.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from dify_agent.actors.lease_watch import LeaseWatch
from dify_agent.actors.messages import Failed
from dify_agent.actors.terminals import cancellation_terminal, failure_terminal
from dify_agent.errors import Reason, StoreUnavailableError
from dify_agent.metrics import Metrics
from dify_agent.store.base import KeyUnreadableError, Owner, RunLook, RunStore, Verdict, VerdictOutcome

JUDGED_AT_ONCE: Final = 100
STRAY_SECONDS: Final = 60.0
"""An own run without a record and without an actor is forgotten after so long."""
TRIES: Final = 3
"""A cancel may be accepted between the look and the verdict; then the run is looked at again."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Judged:
    """What came of judging runs of one owner."""

    missing: list[str]
    """Those without a record."""
    done: bool
    """All others are out of the owner's set."""


class Reaper:
    """A permanent service; every replica has one, and the store lets one verdict count."""

    def __init__(
        self,
        store: RunStore,
        owner: Owner,
        *,
        lease_seconds: float,
        own_runs: Callable[[], Iterable[str]],
        metrics: Metrics,
        keep_seconds: float = 0.0,
    ) -> None:
        """
        Args:
            store: where the owners are.
            owner: this replica.
            lease_seconds: of every owner.
            own_runs: those that this replica takes care of; the others in its set are strays.
            metrics: counts verdicts.
            keep_seconds: how old a run's end must be before no set names the run any more. Where a run and its owner's
                set lie on different servers, a failover may lose the end alone; it is found and judged once more then.
        """
        self._store = store
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._own_runs = own_runs
        self._metrics = metrics
        self._keep_seconds = keep_seconds
        self._watch = LeaseWatch(store, owner.id, lease_seconds)
        self._strays: dict[str, float] = {}
        """Runs in the own set that nobody executes, and since when."""
        self._over: dict[str, float] = {}
        """Runs of which nothing is to be judged any more, and since when that is known."""
        self._again_at: dict[str, float] = {}
        """When a lost owner whose runs were judged is looked at again."""
        self._said_at: dict[str, float] = {}
        """When something was last told of a run or a key: once in a lease is often enough."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at all leases, again and again, until cancelled."""
        task_status.started()
        while True:
            # Replicas that started together shall not judge together.
            await trio.sleep(self._watch.poll_seconds * random.uniform(0.8, 1.0))
            with suppress(StoreUnavailableError):
                await self._look()

    async def _look(self) -> None:
        self._tidy()
        try:
            leases = await self._watch.read()
        except KeyUnreadableError as error:
            self._say_unreadable(error, "list of owners cannot be read, nobody is judged")
            return
        if not self._watch.has_settled:
            return
        self._again_at = {owner_id: at for owner_id, at in self._again_at.items() if leases.get(owner_id) is False}
        for owner_id in leases:
            if owner_id != self._owner.id and self._watch.is_lost(owner_id) and self._is_due(owner_id):
                await self._try_reap(owner_id)
        await self._try_reap_strays()

    def _tidy(self) -> None:
        now = trio.current_time()
        self._said_at = {name: at for name, at in self._said_at.items() if now - at < self._lease_seconds}
        self._over = {run_id: since for run_id, since in self._over.items() if now - since < STRAY_SECONDS}

    def _is_due(self, owner_id: str) -> bool:
        now = trio.current_time()
        return now >= self._again_at.get(owner_id, now)

    async def _try_reap(self, owner_id: str) -> None:
        try:
            await self._reap(owner_id)
        except KeyUnreadableError as error:
            self._say_unreadable(error, "runs of a lost owner are unknown, it is left alone", owner=owner_id)
            self._again_at[owner_id] = trio.current_time() + self._lease_seconds
        except StoreUnavailableError:
            # One lost reply, or one node of a cluster, must not keep other owners from their verdicts. That the store
            # itself is away shows here.
            await self._watch.read()

    async def _reap(self, owner_id: str) -> None:
        run_ids = await self._store.read_owned(owner_id)
        done = True
        for start in range(0, len(run_ids), JUDGED_AT_ONCE):
            # It may have come back while others, or others of its runs, were judged. Frozen in the middle of a pass,
            # this process may be awake again before the owner could renew.
            await self._watch.read()
            if not self._watch.is_lost(owner_id):
                return
            done &= (await self._judge(owner_id, run_ids[start : start + JUDGED_AT_ONCE])).done
        if not done:
            return  # with the next look again: the bound on a verdict holds for a run whose answer was lost, too
        # What is left has no record. It stays in the set until that expires: a frozen owner may yet write the record.
        self._again_at[owner_id] = trio.current_time() + self._lease_seconds
        await self._store.forget_owner(owner_id)

    async def _try_reap_strays(self) -> None:
        try:
            await self._reap_strays()
        except KeyUnreadableError as error:
            self._say_unreadable(error, "own set of runs cannot be read, it is left alone", owner=self._owner.id)

    async def _reap_strays(self) -> None:
        """Own runs that no actor executes any more although they never ended: its failure is an owner lost as well."""
        active = set(self._own_runs())
        now = trio.current_time()
        strays = {run_id for run_id in await self._store.read_owned(self._owner.id) if run_id not in active}
        self._strays = {run_id: self._strays.get(run_id, now) for run_id in strays}
        # Not at once: a run that has just begun or ended is on its way into the set or out of it.
        settled = sorted(run_id for run_id, since in self._strays.items() if since < now)
        judged = await self._judge(self._owner.id, settled)
        # A create that was refused may have left its entry; by now nothing of it is on its way to the store.
        old = [run_id for run_id in judged.missing if self._strays[run_id] < now - STRAY_SECONDS]
        if old:
            await self._store.release_runs(self._owner.id, old)

    async def _judge(self, owner_id: str, run_ids: Sequence[str]) -> _Judged:
        """End those of the runs that are running and belong to the owner, and take out of its set what is over."""
        now = trio.current_time()
        asked = [
            run_id for run_id in run_ids if self._over.get(run_id, now - self._keep_seconds) <= now - self._keep_seconds
        ]
        looks = await self._store.look(asked) if asked else {}
        ripe: list[str] = []
        for run_id, look in looks.items():
            if look is None:
                continue
            if not await self._may_go_on(owner_id):
                break
            if await self._is_over(owner_id, run_id, look):
                now = trio.current_time()
                if now - self._over.setdefault(run_id, now) >= self._keep_seconds:
                    ripe.append(run_id)
        if ripe:
            await self._store.release_runs(owner_id, ripe)
        missing = [run_id for run_id, look in looks.items() if look is None]
        return _Judged(missing, done=len(ripe) + len(missing) == len(run_ids))

    async def _may_go_on(self, owner_id: str) -> bool:
        if self._watch.is_due:
            await self._watch.read()
        return owner_id == self._owner.id or self._watch.is_lost(owner_id)

    async def _is_over(self, owner_id: str, run_id: str, look: RunLook) -> bool:
        """Whether nothing of the run is left to be judged; it is ended if that can be done now."""
        if look.record is None:
            if self._is_news(run_id):
                _log.error("record of a lost owner's run cannot be read, it is left alone", run_id=run_id)
            return True
        if look.record.status != "running" or (look.owner is not None and look.owner.id != owner_id):
            return True
        if owner_id != self._owner.id and self._is_news(owner_id):
            _log.warning("owner lost, its runs are judged", owner=owner_id)
        try:
            outcome = await self._end(run_id, look)
        except KeyUnreadableError as error:
            if self._is_news(run_id):
                _log.error("run of a lost owner cannot be judged, it is left alone", run_id=run_id, key=error.key)
            return True
        except Exception as error:  # noqa: BLE001  One run must not keep the others from their verdicts.
            if self._is_news(run_id):
                why = {"cause": error.cause} if isinstance(error, StoreUnavailableError) else {"exc_info": error}
                _log.warning("run not judged, it is tried again", run_id=run_id, owner=owner_id, **why)
            return False
        self._metrics.verdict(outcome)
        _log.warning("run judged, its owner is lost", run_id=run_id, owner=owner_id, outcome=outcome)
        self._over.pop(run_id, None)  # a failover may have lost an earlier end: it has to stand anew
        return outcome != "intent"

    def _say_unreadable(self, error: KeyUnreadableError, event: str, **facts: str) -> None:
        if self._is_news(error.key):
            _log.error(event, **facts, key=error.key, why=str(error))

    def _is_news(self, name: str) -> bool:
        """Whether nothing was told of this for a lease. It counts as told now."""
        if name in self._said_at:
            return False
        self._said_at[name] = trio.current_time()
        return True

    async def _end(self, run_id: str, look: RunLook | None) -> VerdictOutcome:
        outcome: VerdictOutcome = "missing"
        for _ in range(TRIES):
            if look is None or look.record is None:
                return "missing"
            outcome = await self._store.judge(self._verdict(run_id, look))
            if outcome != "intent":
                break
            look = (await self._store.look([run_id])).get(run_id)
        return outcome

    def _verdict(self, run_id: str, look: RunLook) -> Verdict:
        record, now = look.record, datetime.now(UTC)
        assert record is not None, "only a readable record is judged"
        if look.owner == self._owner:
            text = "The replica that executed this run failed to end it. The run's result and snapshot are lost."
        else:
            text = (
                f"The replica that executed this run was lost: no heartbeat for {self._lease_seconds:g} seconds "
                "(DIFY_AGENT_OWNER_LEASE_SECONDS). The run's result and snapshot are lost with it."
            )
        failed = failure_terminal(record, now, Failed(text, reason=Reason.OWNER_LOST))
        cancelled = None if look.intent is None else cancellation_terminal(record, now, look.intent)
        return Verdict(run_id, look.owner, failed, cancelled)
