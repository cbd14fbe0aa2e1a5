"""The store's port: what a run log must do, whatever holds it.

Every operation is safe to repeat after an unknown outcome (a lost reply), and every implementation maps its own faults
to `StoreUnavailableError`. Payloads are finished JSON text: a store never parses or re-encodes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol

from dify_agent.errors import DifyAgentError
from dify_agent.protocol.event_id import EventId
from dify_agent.protocol.schemas import RunStatus, RunStatusResponse

DEFAULT_PAGE_BYTES: Final = 128 * 1024
"""What one reader may hold at a time. A log has events of a hundred bytes and of ten million; counting them bounds
nothing."""

_TYPE_MARK = b'"type":"'


class KeyUnreadableError(DifyAgentError, ValueError):
    """A key of the store holds what no server of this kind writes: another program did. Nothing was written. HTTP 500.

    No repeat changes it, so it is no `StoreUnavailableError`. The text does not name the key, which is the operator's
    business: logs do, and `dify-agent doctor`.
    """

    def __init__(self, what: str, key: str, run_id: str | None = None) -> None:
        super().__init__(f"{what} in the store cannot be read")
        self.key = key
        self.run_id = run_id


class RecordUnreadableError(KeyUnreadableError):
    """It is a key of a run, mostly its record. Nothing is ever written to such a run."""

    def __init__(self, run_id: str, key: str, what: str = "record") -> None:
        super().__init__(f"the run's {what}", key, run_id)


class ClaimUnreadableError(KeyUnreadableError):
    """It is an idempotency key, and what it holds is no claim."""

    def __init__(self, key: str) -> None:
        super().__init__("the idempotency key's claim", key)


class LogsUnreadableError(KeyUnreadableError):
    """Among many logs there are some that are none. The others can be read without them."""

    def __init__(self, run_ids: Sequence[str], key: str) -> None:
        super().__init__("logs of runs", key)
        self.run_ids = run_ids


class RunExistsError(DifyAgentError):
    """A run with this id has been created before, by another call. Nothing was changed."""

    def __init__(self, run_id: str) -> None:
        super().__init__("a run with this id exists already")
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event as it lies in the log. ``payload`` is the event's JSON without its ``id``."""

    id: EventId
    payload: bytes

    @property
    def type(self) -> str:
        """The envelope's ``type``.

        The envelope writes only ``run_id`` (a UUID) and ``created_at`` before it, so the first mark is the right one.
        Empty for what is no event: another program wrote it.
        """
        start = self.payload.find(_TYPE_MARK) + len(_TYPE_MARK)
        end = self.payload.find(b'"', start)
        return self.payload[start:end].decode("utf-8", "replace") if start >= len(_TYPE_MARK) and end >= 0 else ""

    @property
    def is_terminal(self) -> bool:
        """Whether this event ends the run."""
        return self.type in ("run_succeeded", "run_failed", "run_cancelled")


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events after a cursor, oldest first, with the run's status read in the same step."""

    status: RunStatus
    events: tuple[StoredEvent, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """The replica that executes a run. ``epoch`` tells two lives of one owner id apart."""

    id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's key, in the scope of a tenant. Tenant ``""`` is the bucket of all requests without one."""

    tenant: str
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What an idempotency key stands for: a run id, taken before the run has a record."""

    run_id: str
    digest: str
    """SHA-256 of the request, in hex."""
    holder: str
    """Who means to create the run: a word of its own for each attempt."""


@dataclass(frozen=True, slots=True)
class CancelIntent:
    """A durably accepted wish to cancel. The first one of a run wins."""

    reason: str | None
    message: str | None
    requested_at: datetime


@dataclass(frozen=True, slots=True)
class AppendBatch:
    """Events of one run to append in one step, in order; without any, a question whether the log is as expected.

    ``expected_top`` is the id that must be the newest in the log (`START` for an empty one); ids of ``events`` follow
    it.
    """

    run_id: str
    expected_top: EventId
    events: tuple[StoredEvent, ...]


AppendOutcome = Literal["appended", "sealed", "gap", "missing"]
"""``appended``: all events of the batch are in the log (now or since an earlier try). ``sealed``: the run is no longer
running, nothing was written. ``gap``: the log's newest id is neither the expected one nor one of the batch, nothing was
written. ``missing``: the run has no record any more."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What ends a run: the record's final text and the terminal event's payload, both finished."""

    run_id: str
    record: RunStatusResponse
    payload: bytes
    ms: int
    """Owner's clock, milliseconds since the epoch. The event takes the top's ordinal + 1, and never a smaller time."""


@dataclass(frozen=True, slots=True)
class FinalizeOutcome:
    """Result of a terminal transition (protocol 5.5).

    ``applied`` is also true when an earlier try of this very transition had been applied and only its reply was lost.
    Not applied with status ``running`` means, unless it is for a gap, for success and failure: a cancellation intent
    won; for a cancellation: there is no intent.
    """

    applied: bool
    status: RunStatus
    event_id: EventId | None
    gap: bool = False
    """Not applied, because the log's newest id is not the expected one."""


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """Result of a cancel request: the run's status, and the owner to tell when an intent now waits for it."""

    status: RunStatus
    owner_id: str | None


@dataclass(frozen=True, slots=True)
class RunLook:
    """A run as a reaper or a sweep sees it: three keys, read in one step."""

    record: RunStatusResponse | None
    """None: it cannot be read, or the owner or the intent cannot; then all three are None."""
    owner: Owner | None
    intent: CancelIntent | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ends whose owner is lost. The owner is as it was when it was judged, None for a run without one."""

    run_id: str
    owner: Owner | None
    failed: Terminal
    cancelled: Terminal | None
    """For a run with an accepted intent; None when none was seen."""


VerdictOutcome = Literal["failed", "cancelled", "intent", "unapplied", "missing"]
"""``failed``, ``cancelled``: the run has ended so, by this verdict or by an earlier try of it. ``intent``: one was
accepted meanwhile, look again. ``unapplied``: the run has ended, or another owner has it. ``missing``: no record."""


@dataclass(frozen=True, slots=True)
class TailsRead:
    """What one read over many logs brought: events by run, and how far the replica's doorbell was read."""

    events: Mapping[str, tuple[StoredEvent, ...]]
    doorbell: str


class RunStore(Protocol):
    """The run log. All methods raise `StoreUnavailableError` when the store does not answer or cannot write now.

    Those that concern one run raise `RecordUnreadableError` when one of its keys is none of this server's, and have not
    written then.
    """

    async def ping(self) -> None:
        """Return when the store answers."""

    async def create_run(self, record: RunStatusResponse, owner: Owner) -> None:
        """Note the run in the owner's set, then write record and owner key in one step.

        Raises:
            RunExistsError: another run, or another owner's, has this id.
            KeyUnreadableError: the owner's set is none. The record may have been written.
        """

    async def claim(self, key: IdempotencyKey, claim: Claim, *, over: Claim | None = None) -> Claim:
        """Have the key stand for ``claim``, for one retention, if it stands for nothing or for ``over``.

        Returns what it stands for now: ``claim``, or the one that was there.

        Raises:
            ClaimUnreadableError: something else is there. Nothing was written.
        """

    async def read_claim(self, key: IdempotencyKey) -> Claim | None:
        """What the key stands for, or None.

        Raises:
            ClaimUnreadableError: something else is there.
        """

    async def release_claim(self, key: IdempotencyKey, claim: Claim) -> None:
        """Have the key stand for nothing if it still stands for ``claim``."""

    async def read_record(self, run_id: str) -> RunStatusResponse | None:
        """The run's record, or None when there is none."""

    async def append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        """Append several batches of different runs in one round trip; one result per batch, in order.

        A batch whose outcome is unknown gets a `StoreUnavailableError` in its place, one that cannot be appended (its
        ids do not ascend, say) the reason; the others stand.
        """

    async def read_tops(self, run_ids: Sequence[str]) -> dict[str, EventId]:
        """Id of the newest event in each run's log, `START` when it has none; those that could not be read are left
        out."""

    async def finalize(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        """End the run as succeeded or failed, unless it has ended or an intent exists. Seals the log.

        ``last`` are the run's last events, appended in the same step, right before the terminal event; the log must end
        where they expect it to. None: by somebody who does not know the log.

        Raises:
            RunNotFoundError: the run has no record.
        """

    async def finalize_cancel(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        """End the run as cancelled if an intent exists, and delete the intent. Seals the log. ``last`` as above.

        Raises:
            RunNotFoundError: the run has no record.
        """

    async def request_cancel(self, run_id: str, intent: CancelIntent) -> CancelOutcome:
        """Store the intent if the run is running and has none.

        Raises:
            RunNotFoundError: the run has no record.
        """

    async def read_intent(self, run_id: str) -> CancelIntent | None:
        """The run's accepted intent, if any."""

    async def read_intents(self, run_ids: Sequence[str]) -> dict[str, CancelIntent]:
        """The accepted intents among many runs.

        Only those that the store answered for: some of its servers may be away, and what is no stream holds no intent.
        Raises `StoreUnavailableError` when nothing at all was answered.
        """

    async def read_events(
        self, run_id: str, after: EventId, limit: int, max_bytes: int = DEFAULT_PAGE_BYTES
    ) -> EventPage:
        """Events strictly after ``after``, oldest first: at most ``limit``, and ``max_bytes`` of payload or the first
        one.

        Raises:
            RunNotFoundError: the run has no record.
        """

    async def heartbeat(self, owner: Owner, lease_seconds: float, run_ids: Sequence[str] = ()) -> None:
        """Renew the owner's lease and the life of its keys, and have its set name ``run_ids``: a failover may have lost
        the entries that create had made.

        Raises:
            KeyUnreadableError: the list of owners is none, or the owner's set. The lease is renewed.
        """

    async def touch_runs(self, owner: Owner, run_ids: Sequence[str]) -> None:
        """Refresh the TTL of live runs, so that a silent one outlives the retention. An error says that some were not
        refreshed; the others were. As in `heartbeat`, the owner's set names them, if it is one."""

    async def release_runs(self, owner_id: str, run_ids: Sequence[str]) -> None:
        """Take runs that have ended out of their owner's set.

        Raises:
            KeyUnreadableError: its set of runs is none.
        """

    async def look(self, run_ids: Sequence[str]) -> dict[str, RunLook | None]:
        """Each run's record, owner and intent; None: there is no record.

        Only runs that the store answered for are there: some of its servers may be away. A run whose keys cannot be
        read has a look with nothing in it. Raises `StoreUnavailableError` when nothing at all was answered.
        """

    async def read_leases(self) -> dict[str, bool | None]:
        """Every owner that may have runs, and whether its lease holds; None: the server that has it did not answer.

        Raises `StoreUnavailableError` when the list was not answered, or none of the leases.

        Raises:
            KeyUnreadableError: the list is none.
        """

    async def read_owned(self, owner_id: str) -> Sequence[str]:
        """Ids of the runs that the owner executes, or did until a moment ago.

        Raises:
            KeyUnreadableError: its set of runs is none.
        """

    async def judge(self, verdict: Verdict) -> VerdictOutcome:
        """End a run whose owner is lost, unless it has ended or changed its owner. Seals the log."""

    async def forget_owner(self, owner_id: str) -> None:
        """Take an owner out of the list if it has no runs and has not renewed its lease for the retention.

        Earlier would be too early: an owner that was frozen while it created a run may still write the record, and be
        gone before it can list itself again.
        """

    async def retire(self, owner: Owner) -> None:
        """Give the lease up after a drain, and delete the owner's own keys.

        Runs left in its set are for the others to judge. They also take it out of the list of owners, a minute later: a
        create that it gave up may still be on its way.
        """

    async def ring(self, owner_id: str, run_id: str) -> None:
        """Put a run id into a replica's inbox: 'look at its intent'.

        Raises:
            KeyUnreadableError: its inbox is none.
        """

    async def read_inbox(self, owner: Owner, after: str, block_seconds: float) -> list[tuple[str, str]]:
        """Wait for inbox entries behind ``after``: (entry id, run id), possibly none.

        Raises:
            KeyUnreadableError: the inbox is none.
        """

    async def read_tails(
        self, owner: Owner, positions: Mapping[str, EventId], doorbell: str, block_seconds: float
    ) -> TailsRead:
        """Wait until any of the logs has an event behind its position, or the doorbell was rung: one blocking read.

        ``doorbell`` is the last entry read, ``0-0`` at the start. Nothing within ``block_seconds`` is an empty answer.

        Raises:
            LogsUnreadableError: some of the logs are none; nothing was read.
            KeyUnreadableError: the doorbell is none; likewise.
        """

    async def ring_doorbell(self, owner: Owner) -> None:
        """Wake the replica's own blocking read. A bell rung too early is still there when the read begins.

        Raises:
            KeyUnreadableError: the doorbell is none.
        """
