"""The run actor: owns one run from its record to its terminal event.

It has an inbox and one child task, the work. The child reports the phases it reaches; others send `Stop`. The actor
itself never does the work, so a tool that ignores cancellation cannot keep it from ending the run in time: every
phase has a bound, and past it the terminal event is written while the stuck task is left behind in the actor's
nursery, logged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.failures import describe_failure, overdue
from dify_agent.actors.finalize import Finalizer
from dify_agent.actors.lifecycle import Lifecycle, Phase
from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import Interrupted, Reached, RunMessage, Stop, StopKind, WorkDone
from dify_agent.actors.settle import settle_unknown
from dify_agent.actors.work import RunWork
from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.schemas import CreateRunRequest, RunStatusResponse
from dify_agent.store.base import KeyUnreadableError, RunExistsError

_log = structlog.get_logger()

CreateRefusal = StoreUnavailableError | RunExistsError | KeyUnreadableError

CREATE_TRIES: Final = 2
"""A create whose reply was lost is safe to repeat once; after that the caller hears 503 and decides."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The create request's answer: the caller waits for it, and may leave without touching the run."""

    reply: trio.MemorySendChannel[Exception | None]

    def answer(self, error: Exception | None) -> None:
        """Say how it went; an asker who has gone is no error."""
        with self.reply:
            try:
                self.reply.send_nowait(error)
            except trio.BrokenResourceError:
                return

    def close(self) -> None:
        """No answer will come; an asker who still waits sees the end of the channel."""
        self.reply.close()


class RunActor:
    """One run. ``serve`` is its whole life, called once, in the supervisor's nursery."""

    def __init__(
        self,
        run_id: str,
        request: CreateRunRequest,
        env: RunEnvironment,
        live: LiveLog,
        channel: tuple[trio.MemorySendChannel[RunMessage], trio.MemoryReceiveChannel[RunMessage]],
    ) -> None:
        self._run_id = run_id
        self._env = env
        self._live = live
        self._to_self, self._inbox = channel
        self._lifecycle = Lifecycle(env.metrics.run_moved)
        self._stop: Stop | None = None
        self._bound = float("inf")
        self._log = env.publisher.open_log(run_id, live, self._log_lost)
        self._work: RunWork | None = RunWork(run_id, request, env, self._log, self._tell)

    async def serve(self, admission: Admission) -> None:
        """Write the record, do the work, end the run. Failures end here: they become the run's terminal event."""
        try:
            with self._to_self, self._inbox:
                await self._serve(admission)
        except Exception:  # noqa: BLE001  The actor boundary: a run's failure never touches a sibling.
            _log.exception("run actor failed, the run stays running until judged", run_id=self._run_id)
        finally:
            admission.close()
            self._finished()

    async def _serve(self, admission: Admission) -> None:
        now = datetime.now(UTC)
        record = RunStatusResponse(run_id=self._run_id, status="running", created_at=now, updated_at=now)
        finalizer = Finalizer(record, self._env, self._log, self._live)
        done: WorkDone | None = None
        refused: CreateRefusal | None = None
        created = False
        async with trio.open_nursery() as nursery:
            try:
                refused = await self._create(record)
                admission.answer(refused)
                created = refused is None
                if created:
                    done = await self._lead(nursery)
                    await self._end(finalizer, done)
            except trio.Cancelled:
                # The supervisor is being torn down, and the work with it: end the run all the same.
                self._stop = self._stop or Stop(StopKind.SHUTDOWN)
                with trio.move_on_after(self._env.bounds.last_word_seconds, shield=True) as scope:
                    if created:
                        await self._end(finalizer, done or await self._last_word())
                    else:
                        await settle_unknown(self._env.store, self._env.owner, record, self._stop)
                if scope.cancelled_caught:
                    _log.error("run not finalised in time, it stays running until judged", run_id=self._run_id)
                raise
            # Normally nothing is left; work that ignores cancellation keeps this nursery open, and nothing else.
            nursery.cancel_scope.cancel(reason="the run has ended")
        if refused is not None:
            await self._settle_refused(record, refused)

    async def _end(self, finalizer: Finalizer, done: WorkDone) -> None:
        if self._lifecycle.phase is not Phase.FINALISING:
            self._lifecycle.move(Phase.FINALISING)
        await finalizer.end(done, self._stop)
        self._lifecycle.move(Phase.DONE)
        self._finished()

    async def _settle_refused(self, record: RunStatusResponse, refused: CreateRefusal) -> None:
        """The caller has heard why. If the record may exist although the store gave no answer, nobody executes it.

        It is no active run any more, so a drain does not wait for it. Held meanwhile: nothing of the request, which may
        be large, and many are refused in an outage.
        """
        self._work = None
        self._finished()
        if isinstance(refused, KeyUnreadableError) or (isinstance(refused, StoreUnavailableError) and refused.sent):
            stop = Stop(StopKind.STORE_UNAVAILABLE, "while the run was created")
            with trio.move_on_after(self._env.bounds.finalize_timeout_seconds):
                await settle_unknown(self._env.store, self._env.owner, record, stop)

    def _finished(self) -> None:
        self._lifecycle.leave()
        self._live.close()
        self._log.close()
        self._env.on_finished(self._run_id)

    async def _create(self, record: RunStatusResponse) -> CreateRefusal | None:
        """Write the record; None when it is written, else the last error, ``sent`` if any try may have written it.

        `RunExistsError` is an answer for certain: the run under this id is somebody else's. `KeyUnreadableError` is one
        of the owner's set, and says nothing of the record.
        """
        error: StoreUnavailableError | None = None
        for _ in range(CREATE_TRIES):
            try:
                await self._env.store.create_run(record, self._env.owner)
            except StoreUnavailableError as failure:
                failure.sent |= error is not None and error.sent
                error = failure
            except (RunExistsError, KeyUnreadableError) as refusal:
                return refusal
            else:
                return None
        return error

    async def _lead(self, nursery: trio.Nursery) -> WorkDone:
        if self._stopped_before_start():
            return WorkDone(Interrupted())
        try:
            return await self._supervise(nursery)
        except Exception as error:  # noqa: BLE001  The actor boundary.
            _log.exception("run actor failed, the run ends as failed", run_id=self._run_id)
            nursery.cancel_scope.cancel(reason="the run's actor failed")
            return WorkDone(describe_failure(error))

    async def _last_word(self) -> WorkDone:
        """The work's report of its end; without one when it never began, or is not over in time."""
        if self._lifecycle.phase is not Phase.ADMITTED:
            bounds = self._env.bounds
            with trio.move_on_after(bounds.cancel_timeout_seconds + bounds.exit_timeout_seconds):
                while True:
                    message = await self._inbox.receive()
                    if isinstance(message, WorkDone):
                        return message
        return WorkDone(Interrupted())

    def _stopped_before_start(self) -> bool:
        """A stop that came before the work began leaves a log with only the terminal event (protocol O5)."""
        try:
            message = self._inbox.receive_nowait()
        except trio.WouldBlock:
            return False
        if isinstance(message, Stop):
            self._stop = message
        return self._stop is not None

    async def _supervise(self, nursery: trio.Nursery) -> WorkDone:
        work = self._work
        assert work is not None, "only a refused run has lost its work"
        self._enter(Phase.ENTERING, self._env.bounds.enter_timeout_seconds)
        nursery.start_soon(work.run, name=f"work of run {self._run_id}")
        while True:
            message: RunMessage | None = None
            with trio.move_on_at(self._bound):
                message = await self._inbox.receive()
            match message:
                case WorkDone():
                    return message
                case Reached(phase):
                    self._reached(phase)
                case Stop():
                    self._told_to_stop(work, message)
                case None:
                    phase = self._lifecycle.phase
                    _log.error("run ignores cancellation, left behind", run_id=self._run_id, phase=phase)
                    return self._overdue(work)

    def _reached(self, phase: Phase) -> None:
        bounds = self._env.bounds
        seconds = bounds.run_timeout_seconds if phase is Phase.RUNNING else bounds.exit_timeout_seconds
        self._enter(phase, seconds)
        if phase is Phase.RUNNING and self._stop is not None:
            self._hurry()

    def _enter(self, phase: Phase, seconds: float) -> None:
        """The work bounds itself by ``seconds``; what ignores that is waited for a little longer, not for ever."""
        self._lifecycle.move(phase)
        self._bound = trio.current_time() + seconds + self._env.bounds.cancel_timeout_seconds

    def _told_to_stop(self, work: RunWork, stop: Stop) -> None:
        if self._stop is not None:
            return
        self._stop = stop
        work.interrupt(stop.kind)
        if self._lifecycle.phase is not Phase.EXITING:
            self._hurry()

    def _hurry(self) -> None:
        self._bound = min(self._bound, trio.current_time() + self._env.bounds.cancel_timeout_seconds)

    def _overdue(self, work: RunWork) -> WorkDone:
        work.interrupt("the phase's bound has passed")
        ending = Interrupted() if self._stop is not None else overdue(self._lifecycle.phase, self._env.bounds)
        return WorkDone(ending)

    def _tell(self, message: RunMessage) -> None:
        """From the work, which runs in this actor's nursery: the inbox outlives it, and has room for all it reports."""
        try:
            self._to_self.send_nowait(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError, trio.WouldBlock):
            _log.debug("report of a run that has ended", run_id=self._run_id)

    def _log_lost(self, kind: StopKind, detail: str) -> None:
        self._tell(Stop(kind, detail))
