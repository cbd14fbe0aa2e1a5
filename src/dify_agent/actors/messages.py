"""What crosses between actors. Frozen, and nothing in here is changed after it was sent."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

from agenton.compositor import CompositorSessionSnapshot
from dify_agent.actors.history import without_question
from dify_agent.actors.lifecycle import Phase
from dify_agent.protocol.schemas import AgentRunUsage, DeferredToolCallPayload, RunFailureType


class StopKind(StrEnum):
    """Why a run is told to stop. The order of the members is not a ranking; the first stop of a run counts."""

    CANCEL = "cancel"
    """A durable intent exists: the run ends as cancelled."""
    SHUTDOWN = "shutdown"
    STORE_UNAVAILABLE = "store_unavailable"
    OBSERVER = "cancellation_observer"
    """Nobody can tell this run that it was cancelled."""
    SEALED = "sealed"
    """The log was closed by someone else (a verdict on a slow owner): stop, write nothing."""
    REFUSED = "refused"
    """The store refuses one of this run's events for good (too large for it, say)."""
    RECORD_LOST = "record_lost"
    """The record is gone (expired, FLUSHALL): stop, write nothing."""
    RECORD_UNREADABLE = "record_unreadable"
    """Another program has written under one of the run's keys: stop, write nothing."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To a run actor: stop your work."""

    kind: StopKind
    detail: str = ""
    told_at: float = field(default_factory=time.time, compare=False)
    """When the run was told, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Reached:
    """From a run's work to its actor: a phase has begun."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The work ended with a result: an output, or a call that is left for the outside."""

    output: JsonValue = None
    deferred: DeferredToolCallPayload | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The work ended with an error, already mapped to what the event carries."""

    error: str
    error_type: RunFailureType | None = None
    reason: str | None = None
    setting: str | None = None
    """For the log: what an operator has to look at."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The work ended because it was told to."""


Ending = Succeeded | Failed | Interrupted


@dataclass(frozen=True, slots=True)
class WorkDone:
    """From a run's work to its actor: everything is over, layers have left."""

    ending: Ending
    snapshot: CompositorSessionSnapshot | None = None
    usage: AgentRunUsage | None = None
    asked: bool = False
    """Whether the agent loop ended with a question to a human, which is open in the snapshot."""

    def snapshot_without_success(self) -> CompositorSessionSnapshot | None:
        """The snapshot for any ending but success: such an event names no question, so nobody would answer it and the
        next prompt would be refused (decision R19)."""
        if self.snapshot is None or not self.asked:
            return self.snapshot
        return without_question(self.snapshot)


RunMessage = Stop | Reached | WorkDone
