"""The reaper: ends runs whose owner is lost, so that none stays running for ever (docs/architecture.md, "Orphan
verdict").

An owner is lost when its lease is gone although the store was seen healthy, without a break, for a whole lease: its
heartbeats had every chance. A store that was away, or a reaper that was itself stopped for a while, starts that time
anew; otherwise an outage longer than the lease would condemn every healthy replica. Owners renew at once when the store
is back.

A verdict names the owner it judged and applies only while the run still has it; it seals the log, which is what stops
an owner that was only slow.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from dify_agent.actors.messages import Failed
from dify_agent.actors.terminals import cancellation_terminal, failure_terminal
from dify_agent.errors import Reason, StoreUnavailableError
from dify_agent.metrics import Metrics
from dify_agent.store.base import KeyUnreadableError, Owner, RunLook, RunStore, Verdict, VerdictOutcome

POLL_SECONDS: Final = 1.0
"""Between two looks at the leases; a verdict is late by at most this and the time of its writing."""
BREAK_POLLS: Final = 3
"""A look that comes later than so many polls after the one before is a break: this process was not watching."""
JUDGED_AT_ONCE: Final = 100
STRAY_SECONDS: Final = 60.0
"""An own run without a record and without an actor is forgotten after so long."""
TRIES: Final = 3
"""A cancel may be accepted between the look and the verdict; then the run is looked at again."""

_log = structlog.get_logger()


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
    ) -> None:
        self._store = store
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._own_runs = own_runs
        self._metrics = metrics
        self._poll_seconds = min(POLL_SECONDS, lease_seconds / BREAK_POLLS)
        self._healthy_since: float | None = None
        self._seen_at = 0.0
        self._strays: dict[str, float] = {}
        """Runs in the own set that nobody executes, and since when."""
        self._again_at: dict[str, float] = {}
        """When a lost owner whose runs were judged is looked at again."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at all leases, again and again, until cancelled."""
        task_status.started()
        while True:
            # Replicas that started together shall not judge together.
            await trio.sleep(self._poll_seconds * random.uniform(0.8, 1.0))
            try:
                await self._look()
            except StoreUnavailableError:
                self._healthy_since = None

    async def _look(self) -> None:
        leases = await self._store.read_leases()
        now = trio.current_time()
        if not self._has_watched():
            self._healthy_since = now
        if self._healthy_since is None or now - self._healthy_since < self._lease_seconds:
            return
        self._again_at = {owner_id: at for owner_id, at in self._again_at.items() if leases.get(owner_id) is False}
        for owner_id, held in leases.items():
            if held is False and owner_id != self._owner.id and now >= self._again_at.get(owner_id, now):
                await self._try_reap(owner_id)
        await self._reap_strays()
        self._seen_at = trio.current_time()  # judging many runs takes time, and every answer was one of the store

    def _has_watched(self) -> bool:
        """Whether the store has answered without a break until now. Call it when it has answered."""
        now = trio.current_time()
        watched = self._healthy_since is not None and now - self._seen_at <= BREAK_POLLS * self._poll_seconds
        self._seen_at = now
        if not watched:
            self._healthy_since = None
        return watched

    async def _try_reap(self, owner_id: str) -> None:
        try:
            await self._reap(owner_id)
        except KeyUnreadableError as error:
            _log.error(
                "runs of a lost owner are unknown, it is left alone", owner=owner_id, key=error.key, why=str(error)
            )
            self._again_at[owner_id] = trio.current_time() + self._lease_seconds

    async def _reap(self, owner_id: str) -> None:
        run_ids = await self._store.read_owned(owner_id)
        if run_ids and owner_id not in self._again_at:
            _log.warning("owner lost, its runs are judged", owner=owner_id, runs=len(run_ids))
        for start in range(0, len(run_ids), JUDGED_AT_ONCE):
            # It may have come back while others, or others of its runs, were judged.
            held = (await self._store.read_leases()).get(owner_id)
            # Frozen in the middle of a pass, this process may be awake again before the owner could renew.
            if held is not False or not self._has_watched():
                return
            await self._judge(owner_id, run_ids[start : start + JUDGED_AT_ONCE])
        # What is left has no record. It stays in the set until that expires: a frozen owner may yet write the record.
        self._again_at[owner_id] = trio.current_time() + self._lease_seconds
        await self._store.forget_owner(owner_id)

    async def _reap_strays(self) -> None:
        """Own runs that no actor executes any more although they never ended: its failure is an owner lost as well."""
        active = set(self._own_runs())
        now = trio.current_time()
        strays = {run_id for run_id in await self._store.read_owned(self._owner.id) if run_id not in active}
        self._strays = {run_id: self._strays.get(run_id, now) for run_id in strays}
        # Not at once: a run that has just begun or ended is on its way into the set or out of it.
        settled = sorted(run_id for run_id, since in self._strays.items() if since < now)
        missing = await self._judge(self._owner.id, settled)
        # A create that was refused may have left its entry; by now nothing of it is on its way to the store.
        old = [run_id for run_id in missing if self._strays[run_id] < now - STRAY_SECONDS]
        if old:
            await self._store.release_runs(self._owner.id, old)

    async def _judge(self, owner_id: str, run_ids: Sequence[str]) -> list[str]:
        """End those of the runs that are running and belong to the owner; it has none of those with a record then.

        Returns:
            The runs that have no record.
        """
        looks = await self._store.look(run_ids) if run_ids else {}
        over: list[str] = []
        failures = 0
        for run_id, look in looks.items():
            if look is None:
                continue
            if look.record is None:
                _log.error("record of a lost owner's run cannot be read, it is left alone", run_id=run_id)
            elif look.record.status == "running" and (look.owner is None or look.owner.id == owner_id):
                try:
                    outcome = await self._end(run_id, look)
                except KeyUnreadableError as error:
                    _log.error("run of a lost owner cannot be judged, it is left alone", run_id=run_id, key=error.key)
                    over.append(run_id)
                    continue
                except Exception as error:
                    # One run, or one node of a cluster, must not keep the others from their verdicts.
                    failures += 1
                    away = error if isinstance(error, StoreUnavailableError) else None
                    if failures >= TRIES and away is not None:
                        raise
                    why = {"exc_info": error} if away is None else {"cause": away.cause}
                    _log.warning("run not judged, it is tried again", run_id=run_id, owner=owner_id, **why)
                    continue
                self._metrics.verdict(outcome)
                _log.warning("run judged, its owner is lost", run_id=run_id, owner=owner_id, outcome=outcome)
                if outcome == "intent":
                    continue
            over.append(run_id)
        if over:
            await self._store.release_runs(owner_id, over)
        return [run_id for run_id, look in looks.items() if look is None]

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
