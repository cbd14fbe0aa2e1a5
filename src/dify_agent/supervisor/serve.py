"""The supervisor: owns the nursery in which services and run actors live. A failure here ends the process."""

from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import Final
from uuid import uuid4

import structlog
import trio

from dify_agent.actors.cancel_observer import CancelObserver
from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.heartbeat import Heartbeat
from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import RunMessage, Stop, StopKind
from dify_agent.actors.outage_watch import OutageWatch
from dify_agent.actors.reaper import Reaper
from dify_agent.actors.run_actor import Admission, RunActor
from dify_agent.actors.static_configs import tenant_of
from dify_agent.actors.tail_hub import TailHub
from dify_agent.concurrency.channels import REPLY_SIZE, RUN_INBOX_SIZE
from dify_agent.errors import (
    ActiveRunsLimit,
    RunCancellationConflictError,
    SchedulerStoppingError,
    StoreUnavailableError,
)
from dify_agent.protocol.event_id import EventId
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest
from dify_agent.store.base import CancelIntent, IdempotencyKey, KeyUnreadableError, RunExistsError
from dify_agent.supervisor.admission import NO_LIMITS, ActiveRuns, RunLimits
from dify_agent.supervisor.handle import Readiness, Tail
from dify_agent.supervisor.idempotency import IdempotentCreates
from dify_agent.supervisor.measuring import announce_series, counting_refusals
from dify_agent.supervisor.registry import RunEntry, RunRegistry
from dify_agent.supervisor.services import run_service
from dify_agent.supervisor.specs import ServiceBudgetSpentError, ServiceSpec
from dify_agent.supervisor.tails import PAGE, LogTail

READY_SECONDS: Final = 2.0
"""The store must answer within this for the replica to be ready (decision R22)."""

PUBLISHER: Final = "publisher"
OBSERVERS: Final = ("cancel inbox", "cancel sweep")

_log = structlog.get_logger()


class Supervisor:
    """Implements `dify_agent.supervisor.handle.RunService`.

    The nursery is opened by ``serve`` and lives exactly as long as that call; it is kept on the object so that a
    request can start a run in it.
    """

    def __init__(
        self,
        make_environment: Callable[[Callable[[str], None]], RunEnvironment],
        *,
        lease_seconds: float,
        retention_seconds: float,
        keep_seconds: float = 0.0,
        limits: RunLimits = NO_LIMITS,
        services: Sequence[ServiceSpec] = (),
    ) -> None:
        self._registry = RunRegistry()
        self._active = ActiveRuns(limits)
        self._housed: set[str] = set()
        """Run ids that an actor of this process has, also while it settles a refused create or waits for work that was
        left behind. None of them may get a second actor."""
        self._env = make_environment(self._run_ended)
        announce_series(self._env.metrics)
        self._idempotent = IdempotentCreates(
            self._env.store, start=self._start, reached=self._reached, is_housed=self._housed.__contains__
        )
        self._hub = TailHub(self._env.store, self._env.owner)
        self._services = (*self._own_services(lease_seconds, retention_seconds, keep_seconds), *services)
        self._runs: trio.Nursery | None = None
        self._stopping = False
        self._streams_end = trio.Event()
        self.failed = trio.Event()
        """A service has spent its restart budget: the process must drain and exit with status 70."""
        self.failure: ServiceBudgetSpentError | None = None

    def _own_services(
        self, lease_seconds: float, retention_seconds: float, keep_seconds: float
    ) -> tuple[ServiceSpec, ...]:
        env, registry = self._env, self._registry
        self._heartbeat = Heartbeat(
            env.store,
            env.owner,
            lease_seconds=lease_seconds,
            retention_seconds=retention_seconds,
            runs=registry,
            keep_seconds=keep_seconds,
        )
        outages = OutageWatch(outage_seconds=env.publisher.outage_seconds, tell=registry.tell)
        observer = CancelObserver(
            env.store,
            env.owner,
            tell=registry.tell,
            own_runs=registry.run_ids,
            has_events=registry.has_events,
            outages=outages,
            on_outage=self._heartbeat.doubt,
        )
        reaper = Reaper(
            env.store,
            env.owner,
            lease_seconds=lease_seconds,
            own_runs=self._heartbeat.in_hand,
            metrics=env.metrics,
            keep_seconds=keep_seconds,
        )
        return (
            ServiceSpec(name="heartbeat", serve=self._heartbeat.serve),
            ServiceSpec(name=PUBLISHER, serve=env.publisher.serve),
            ServiceSpec(name="flush timer", serve=env.flush_timer.serve),
            ServiceSpec(name="cancel inbox", serve=observer.watch_inbox),
            ServiceSpec(name="cancel sweep", serve=observer.sweep),
            ServiceSpec(name="outage watch", serve=outages.serve),
            ServiceSpec(name="reaper", serve=reaper.serve),
            ServiceSpec(name="tail hub", serve=self._hub.serve),
            ServiceSpec(name="tail bell", serve=self._hub.ring),
        )

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run services and runs until cancelled; started when every service is usable.

        Raises:
            Exception: a service could not be started at all.
        """
        async with trio.open_nursery() as services:
            for spec in self._services:
                await services.start(run_service, spec, self._give_up, name=f"service {spec.name}")
            async with trio.open_nursery() as runs:
                self._runs = runs
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._runs = None

    def _give_up(self, error: ServiceBudgetSpentError) -> None:
        self.failure = self.failure or error
        self.failed.set()
        if error.service == PUBLISHER:
            self._env.publisher.give_up()
        if error.service in OBSERVERS:
            # Nobody can tell these runs any more that they were cancelled (protocol 6.3, S3).
            for run_id in self._registry.run_ids():
                self._registry.tell(run_id, Stop(StopKind.OBSERVER, str(error.__cause__ or error)))

    # What HTTP asks.

    @property
    def draining(self) -> bool:
        """Whether shutdown has begun."""
        return self._stopping

    @property
    def active_runs(self) -> int:
        """Runs that are not finished."""
        return len(self._registry)

    async def create(self, request: CreateRunRequest) -> str:
        """Start a run, or find the one that its idempotency key stands for. The caller may go away: a run does not
        notice. An empty key counts as none."""
        with counting_refusals(self._env.metrics):
            return await self._create(request)

    async def _create(self, request: CreateRunRequest) -> str:
        tenant = tenant_of(request)
        if request.idempotency_key:
            return await self._idempotent.create(request, IdempotencyKey(tenant, request.idempotency_key))
        run_id = str(uuid4())
        try:
            return await self._start(request, run_id, tenant)
        except RunExistsError:
            # Nobody else has this id: a try whose reply was lost had written it, and this replica was away for so long
            # that another one has judged it since. The caller reads the verdict like any other.
            return run_id

    async def _start(self, request: CreateRunRequest, run_id: str, tenant: str) -> str:
        """Admit a run and start its actor, without a checkpoint before that; then wait for its record.

        Raises:
            SchedulerStoppingError, TooManyActiveRunsError: nothing has been done.
            StoreUnavailableError: the record could not be written.
            RunExistsError: another replica has created a run with this id.
        """
        runs = self._check_accepting()
        self._active.admit(run_id, tenant)
        inbox = trio.open_memory_channel[RunMessage](RUN_INBOX_SIZE)
        reply, answer = trio.open_memory_channel[Exception | None](REPLY_SIZE)
        live = LiveLog()
        actor = RunActor(run_id, request, self._env, live, inbox)
        self._registry.add(run_id, RunEntry(inbox[0].clone(), live))
        self._housed.add(run_id)
        # In an empty context: a task inherits its creator's, and would keep the request, headers and all, alive.
        Context().run(partial(runs.start_soon, self._house, run_id, actor, Admission(reply), name=f"run {run_id}"))
        with answer:
            error = await answer.receive()  # an actor that could not answer shows as EndOfChannel: a bug, HTTP 500
        if error is not None:
            raise error
        return run_id

    async def _house(self, run_id: str, actor: RunActor, admission: Admission) -> None:
        # For every log line of the run's tasks: tools, layers, models.
        structlog.contextvars.bind_contextvars(run_id=run_id)
        try:
            await actor.serve(admission)
        finally:
            self._housed.discard(run_id)

    def _check_accepting(self) -> trio.Nursery:
        if self._stopping or self._runs is None:
            raise SchedulerStoppingError
        return self._runs

    def _reached(self, tenant: str) -> ActiveRunsLimit | None:
        self._check_accepting()
        return self._active.reached(tenant)

    def _run_ended(self, run_id: str) -> None:
        self._registry.remove(run_id)
        self._active.release(run_id)

    async def cancel(self, run_id: str, request: CancelRunRequest) -> None:
        """Store the intent, then tell the run's owner."""
        began = trio.current_time()
        intent = CancelIntent(request.reason, request.message, datetime.now(UTC))
        outcome = await self._env.store.request_cancel(run_id, intent)
        if outcome.status == "running":
            self._env.metrics.cancel_leg("accepted", trio.current_time() - began)
        if outcome.status in ("succeeded", "failed"):
            raise RunCancellationConflictError(run_id, outcome.status)
        if outcome.status != "running" or self._registry.tell(run_id, Stop(StopKind.CANCEL)):
            return
        if outcome.owner_id is not None and outcome.owner_id != self._env.owner.id:
            try:
                await self._env.store.ring(outcome.owner_id, run_id)
            except StoreUnavailableError:
                # The intent is durable; the owner's sweep finds it.
                _log.warning("owner not rung, its sweep will find the intent", run_id=run_id)
            except KeyUnreadableError as error:
                _log.error("owner not rung, its sweep will find the intent", run_id=run_id, key=error.key)

    async def open_tail(self, run_id: str, after: EventId) -> Tail:
        """A reader; reads the store once unless the run is executed here and memory covers the cursor."""
        live = self._registry.live_log(run_id)
        first = None
        if live is None or not live.covers(after):
            first = await self._env.store.read_events(run_id, after, PAGE)
        return LogTail(self._env.store, self._hub, run_id, after, live=live, first=first, drain=self._streams_end)

    async def readiness(self) -> Readiness:
        """See the port."""
        if self._stopping:
            return "draining"
        try:
            with trio.fail_after(READY_SECONDS):
                await self._env.store.ping()
        except (trio.TooSlowError, StoreUnavailableError):
            return "store_unavailable"
        return "ready"

    @property
    def environment(self) -> RunEnvironment:
        """What this replica's runs are given."""
        return self._env

    # What the composition root asks.

    def stop_accepting(self) -> None:
        """From now on new runs are refused. A create in progress finishes: its run is registered already."""
        self._stopping = True

    async def drain(self, grace_seconds: float) -> None:
        """Let runs end by themselves for ``grace_seconds``, stop the rest, return when none is left.

        Each stopped run is bounded by its own phase bounds; the process's watchdog bounds the whole.
        """
        self.stop_accepting()
        _log.info("draining", active_runs=len(self._registry), grace_seconds=grace_seconds)
        with trio.move_on_after(grace_seconds):
            await self._registry.wait_empty()
        left = self._registry.run_ids()
        for run_id in left:
            self._registry.tell(run_id, Stop(StopKind.SHUTDOWN))
        if left:
            _log.info("grace is over, runs are stopped", active_runs=len(self._registry))
        await self._registry.wait_empty()

    def end_streams(self) -> None:
        """No local run is left: streams of other replicas' runs end, so that their readers resume elsewhere."""
        self._streams_end.set()
        self._hub.close()

    async def retire(self) -> None:
        """Delete this replica's own keys: it has drained. Without a store they expire.

        A run that could not be ended stays in the owner's set, and the other replicas judge it.
        """
        try:
            await self._heartbeat.retire()
        except StoreUnavailableError as error:
            _log.warning("own keys not deleted, they expire", cause=error.cause)
