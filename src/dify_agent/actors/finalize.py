"""The end of a run: exactly one terminal event, or none when the log already belongs to someone else.

The decision table is protocol 6.3 with R11 and R12. The first accepted of success, failure and cancellation intent
wins, and the store decides which that was; this module only proposes.
"""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import Failed, Interrupted, Stop, StopKind, Succeeded, WorkDone
from dify_agent.actors.run_log import LogLostError, RunLog
from dify_agent.actors.terminals import UNWRITABLE, cancellation_terminal, failure_terminal, success_terminal
from dify_agent.errors import Reason, RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.base import (
    AppendBatch,
    CancelIntent,
    FinalizeOutcome,
    RecordUnreadableError,
    StoredEvent,
    Terminal,
)

RETRY_FIRST_SECONDS: Final = 0.05
RETRY_MOST_SECONDS: Final = 1.0

_log = structlog.get_logger()
_GIVEN_UP: Final = {
    StopKind.SEALED: "its log belongs to someone else",
    StopKind.RECORD_LOST: "its record is gone from the store (restart without persistence, FLUSHALL or expired)",
    StopKind.RECORD_UNREADABLE: "its record cannot be read",
}
"""Stops after which nothing may be written to the run any more."""


class Finalizer:
    """Writes one run's terminal transition."""

    def __init__(self, record: RunStatusResponse, env: RunEnvironment, log: RunLog, live: LiveLog) -> None:
        self._record = record
        self._env = env
        self._run_log = log
        self._live = live
        # Built once: a repeat after a lost reply must be the same transition, or the store could not recognise it.
        self._finished: Terminal | None = None
        self._cancelled: Terminal | None = None
        self._intent: CancelIntent | None = None
        """What the cancellation was proposed for."""
        self._last: AppendBatch | None = None
        self._reduced = False

    async def end(self, done: WorkDone, stop: Stop | None) -> None:
        """End the run. While the store is away it is tried again, for as long as this process lives.

        Cancelled, it can be called again and goes on where it was: the transition it proposes is built once.
        """
        if stop is not None and stop.kind in _GIVEN_UP:
            self._say_given_up(stop.kind, stop.detail)
            return
        pause = RETRY_FIRST_SECONDS
        while not await self._settled(done, stop):
            await trio.sleep(pause)
            pause = min(pause * 2, RETRY_MOST_SECONDS)

    async def _settled(self, done: WorkDone, stop: Stop | None) -> bool:
        """One try. False when it has to be tried again: the store is away, or a cancellation crossed this ending."""
        try:
            self._last = await self._run_log.take_last()
            outcome = await self._write(done, stop)
        except StoreUnavailableError:
            return False
        except LogLostError as lost:
            self._say_given_up(lost.kind, lost.detail)
        except RecordUnreadableError as error:
            self._say_given_up(StopKind.RECORD_UNREADABLE, str(error), key=error.key)
        except RunNotFoundError:
            self._say_given_up(StopKind.RECORD_LOST)
        except Exception as error:  # noqa: BLE001  The actor boundary: a refused ending must not leave the run running.
            if self._last is not None and self._last.events:
                self._run_log.put_back()  # if it is they that are refused, the publisher hears it of them alone
                return False
            return self._give_up(error) if self._reduced else self._reduce(error)
        else:
            if outcome.gap:
                self._run_log.put_back()
            if outcome.status == "running":
                return False
            if outcome.applied:
                self._note_ending(outcome, done, stop)
            else:  # its own transitions are recognised, so it is somebody else's
                self._say_given_up(StopKind.SEALED, f"it has {outcome.status}")
        return True

    def _say_given_up(self, kind: StopKind, detail: str = "", **facts: str) -> None:
        why = {"why": detail} if detail else {}
        _log.error(f"run given up, {_GIVEN_UP[kind]}", run_id=self._run_id, kind=kind, **why, **facts)

    def _note_ending(self, outcome: FinalizeOutcome, done: WorkDone, stop: Stop | None) -> None:
        """One line for an operator when a run failed. Not the error's text: it may quote what the caller sent."""
        self._env.metrics.run_ended(outcome.status)
        if outcome.status != "failed":
            _log.debug("run ended", run_id=self._run_id, status=outcome.status)
            return
        ending = proposed_ending(done, stop)
        failure = ending if isinstance(ending, Failed) else Failed("")  # a success that could not be stored
        facts = {"run_id": self._run_id, "reason": failure.reason, "error_type": failure.error_type}
        if failure.setting is None:
            _log.info("run failed", **facts)
        else:
            _log.warning("run failed", **facts, setting=failure.setting)

    def _reduce(self, error: Exception) -> bool:
        """The store refuses this very ending (too large for it, say): propose a failure without a snapshot instead."""
        _log.warning("the run's ending was refused, it is reduced", run_id=self._run_id, exc_info=error)
        self._reduced = True
        text = f"The run's ending could not be stored ({error}); its result and its snapshot are lost."
        self._finished = self._ending_terminal(Failed(text), WorkDone(Interrupted()))
        self._cancelled = None
        return False

    def _give_up(self, error: Exception) -> bool:
        _log.error("run not finalised, it stays running until judged", run_id=self._run_id, exc_info=error)
        return True

    async def _write(self, done: WorkDone, stop: Stop | None) -> FinalizeOutcome:
        outcome: FinalizeOutcome | None = None
        if self._intent is not None:  # an earlier try, which may have been applied although its reply was lost
            outcome = await self._cancel(done, self._intent, stop)
        elif stop is None or stop.kind is not StopKind.CANCEL:
            outcome = await self._finish(done, stop)
        if outcome is not None and (outcome.status != "running" or outcome.gap):
            return outcome
        # Either told so, or the store refused because an intent exists: cancellation has won.
        intent = await self._env.store.read_intent(self._run_id)
        return await (self._finish(done, stop) if intent is None else self._cancel(done, intent, stop))

    def _time_cancel(self, intent: CancelIntent, stop: Stop | None) -> None:
        """The legs of this run's cancel. A run that was never told found the intent at its end."""
        if stop is not None and stop.kind is StopKind.CANCEL:
            self._env.metrics.cancel_leg("observed", stop.told_at - intent.requested_at.timestamp())
            self._env.metrics.cancel_leg("cleaned", time.time() - stop.told_at)

    async def _finish(self, done: WorkDone, stop: Stop | None) -> FinalizeOutcome:
        if self._finished is None:
            self._finished = self._finish_terminal(done, stop)
        return self._seal(await self._env.store.finalize(self._finished, self._last), self._finished)

    async def _cancel(self, done: WorkDone, intent: CancelIntent, stop: Stop | None) -> FinalizeOutcome:
        self._intent = intent
        if self._cancelled is None:
            self._cancelled = self._cancel_terminal(done, intent)
        outcome = self._seal(await self._env.store.finalize_cancel(self._cancelled, self._last), self._cancelled)
        if outcome.applied:
            self._time_cancel(intent, stop)
        return outcome

    def _finish_terminal(self, done: WorkDone, stop: Stop | None) -> Terminal:
        ending = proposed_ending(done, stop)
        try:
            return self._ending_terminal(ending, done)
        except UNWRITABLE as error:
            # The log must end all the same; what cannot be written is left out, and the run has no result then.
            text = ending.error if isinstance(ending, Failed) else f"The run's ending is not JSON: {error}"
            return self._ending_terminal(Failed(text), replace(done, snapshot=None))

    def _ending_terminal(self, ending: Succeeded | Failed, done: WorkDone) -> Terminal:
        now = datetime.now(UTC)
        if isinstance(ending, Failed):
            return failure_terminal(self._record, now, ending, done.snapshot_without_success(), done.usage)
        assert done.snapshot is not None, "proposed_ending lets no success without a snapshot through"
        return success_terminal(self._record, now, ending, done.snapshot, done.usage)

    def _cancel_terminal(self, done: WorkDone, intent: CancelIntent) -> Terminal:
        snapshot = None if self._reduced else done.snapshot_without_success()
        return cancellation_terminal(self._record, datetime.now(UTC), intent, snapshot, done.usage)

    def _seal(self, outcome: FinalizeOutcome, terminal: Terminal) -> FinalizeOutcome:
        # A repeat of an applied transition answers the same id again; readers get the event once.
        if outcome.applied and outcome.event_id is not None and outcome.event_id > self._live.top:
            last = () if self._last is None else self._last.events
            self._live.extend((*last, StoredEvent(outcome.event_id, terminal.payload)))
        return outcome

    @property
    def _run_id(self) -> str:
        return self._record.run_id


def proposed_ending(done: WorkDone, stop: Stop | None) -> Succeeded | Failed:
    """What this run would end with if no cancellation intent exists.

    A success that was reached although the run was told to stop is kept.
    """
    if isinstance(done.ending, Succeeded):
        if done.snapshot is None:
            return Failed("Agenton run did not produce a session snapshot after exit.")
        return done.ending
    if stop is not None:
        return _stopped_failure(stop)
    if isinstance(done.ending, Failed):
        return done.ending
    return Failed("The run's work ended without a result.")


def _stopped_failure(stop: Stop) -> Failed:
    match stop.kind:
        case StopKind.SHUTDOWN:
            return Failed("run cancelled during server shutdown", reason=Reason.SHUTDOWN)
        case StopKind.OBSERVER:
            return Failed(f"run cancellation observer failed: {stop.detail}", reason=Reason.CANCELLATION_OBSERVER)
        case StopKind.STORE_UNAVAILABLE:
            text = (
                f"The run store was unavailable {stop.detail} (DIFY_AGENT_STORE_OUTAGE_SECONDS); the run was stopped."
            )
            return Failed(text, reason=Reason.STORE_UNAVAILABLE)
        case StopKind.REFUSED:
            return Failed(f"The store refused an event of this run ({stop.detail}); the run was stopped.")
        case _:
            return Failed(f"The run was stopped ({stop.kind}).")
