"""What the HTTP front holds of the supervisor. HTTP knows no actor; this is the whole of what it may ask."""

from dataclasses import dataclass
from typing import Literal, Protocol

from dify_agent.protocol.event_id import EventId
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest
from dify_agent.store.base import StoredEvent

TailEnd = Literal["terminal", "drain", "expired"]
"""Why a tail ended: its terminal event was delivered (or lies at or before the cursor), the process drains, or the
record expired."""

Readiness = Literal["ready", "draining", "store_unavailable"]


@dataclass(frozen=True, slots=True)
class TailBatch:
    """What is ready to be written to a reader now.

    ``trimmed`` counts events that were dropped from the log just before ``events``. ``end`` is set on the last batch,
    whose events still have to be written.
    """

    events: tuple[StoredEvent, ...] = ()
    trimmed: int = 0
    end: TailEnd | None = None


class Tail(Protocol):
    """A reader's position in one run's log. Owns no task and no connection; nothing is buffered per reader."""

    async def next(self) -> TailBatch:
        """Wait for the next batch. While the store is away it waits on; the caller's heartbeats keep the stream alive.

        Safe to cancel at any time: no event is lost, the next call returns it.
        """

    def close(self) -> None:
        """The reader has gone. Whoever opened the tail calls it, whatever happened; may be called again."""


class RunService(Protocol):
    """The supervisor as HTTP sees it."""

    @property
    def draining(self) -> bool:
        """Whether shutdown has begun: new runs are refused, responses say ``Connection: close``."""

    async def create(self, request: CreateRunRequest) -> str:
        """Write the record, start the run's actor, return the run id; or return the id of the run that the request's
        idempotency key stands for.

        Raises:
            SchedulerStoppingError: shutdown has begun; nothing was stored.
            TooManyActiveRunsError: there is no room for another run; nothing was stored.
            IdempotencyConflictError: the idempotency key stands for another request.
            StoreUnavailableError: the record could not be written.
        """

    async def cancel(self, run_id: str, request: CancelRunRequest) -> None:
        """Accept a cancellation durably.

        Raises:
            RunNotFoundError: no record.
            RunCancellationConflictError: the run has already succeeded or failed.
            StoreUnavailableError: the intent could not be written.
        """

    async def open_tail(self, run_id: str, after: EventId) -> Tail:
        """A reader of the run's log, starting behind ``after``.

        Raises:
            RunNotFoundError: no record.
            StoreUnavailableError: the store does not answer.
        """

    async def readiness(self) -> Readiness:
        """``ready`` = accepting, and the store answered within 2 s (decision R22)."""
