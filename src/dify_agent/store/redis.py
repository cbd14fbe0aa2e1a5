"""The run log in Redis (protocol 5, keys by R1, ids by R2).

Each transition is one Lua script, so a reader or a rival replica sees all of it or nothing. Every key is written
together with its TTL. Replies are bytes from end to end; only ids and the few words that scripts answer are decoded.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.protocol.schemas import RunStatus, RunStatusResponse
from dify_agent.store.base import (
    DEFAULT_PAGE_BYTES,
    AppendBatch,
    AppendOutcome,
    CancelIntent,
    CancelOutcome,
    Claim,
    ClaimUnreadableError,
    EventPage,
    FinalizeOutcome,
    IdempotencyKey,
    Owner,
    RecordUnreadableError,
    RunExistsError,
    RunLook,
    StoredEvent,
    TailsRead,
    Terminal,
    Verdict,
    VerdictOutcome,
)
from dify_agent.store.deployments import open_executor
from dify_agent.store.executor import Argument, Call, Command, Executor, Lane, Reply
from dify_agent.store.keys import Keys
from dify_agent.store.lua import (
    APPEND,
    CLAIM,
    CREATE,
    FINALIZE,
    FINALIZE_CANCEL,
    LOOK,
    READ,
    RELEASE_CLAIM,
    REQUEST_CANCEL,
    TOUCH,
    VERDICT,
    Script,
)
from dify_agent.store.urls import parse_store_url

_INBOX_LENGTH = 1000
_INBOX_READ = 100
_TAIL_READ = 16
"""Events per run and read. Small: a read may bring them for each of many runs."""
_DOORBELL_LENGTH = 10
_SWEEP = 500
"""Runs per round trip in operations over many runs, so that none holds the server for long."""
_LAST = EventId((1 << 64) - 1, (1 << 64) - 1)


class _Intent(BaseModel, extra="forbid"):
    """The intent's JSON (protocol 5.3)."""

    reason: str | None
    message: str | None
    requested_at: datetime


class RedisRunStore:
    """`dify_agent.store.base.RunStore` on Redis or Valkey. Made by `open_redis_store`."""

    def __init__(self, executor: Executor, keys: Keys, *, retention_seconds: int, max_length: int) -> None:
        self._executor = executor
        self._keys = keys
        self._retention = retention_seconds
        self._max_length = max_length

    async def ping(self) -> None:
        await self._all(Command(b"PING"))

    async def create_run(self, record: RunStatusResponse, owner: Owner) -> None:
        """See the port.

        Raises:
            RunExistsError: another run, or another owner's, has this id.
        """
        run_id, owned = record.run_id, self._keys.runs(owner.id)
        create = self._call(CREATE, run_id, _record_text(record), _owner_text(owner), self._retention)
        # In order: a run that no set names would never be judged.
        entry = Command(b"SADD", (owned, run_id))
        *_, reply = await self._all(entry, self._expire(owned), create, lane=Lane.RUNS, in_order=True)
        if reply != b"created":
            raise RunExistsError(run_id)

    async def claim(self, key: IdempotencyKey, claim: Claim, *, over: Claim | None = None) -> Claim:
        arguments = (_claim_text(claim), "" if over is None else _claim_text(over), self._retention)
        (reply,) = await self._all(Call(CLAIM, (self._claim_key(key),), arguments))
        return _read_claim(reply)

    async def read_claim(self, key: IdempotencyKey) -> Claim | None:
        (text,) = await self._all(Command(b"GET", (self._claim_key(key),)))
        return None if text is None else _read_claim(text)

    async def release_claim(self, key: IdempotencyKey, claim: Claim) -> None:
        await self._all(Call(RELEASE_CLAIM, (self._claim_key(key),), (_claim_text(claim),)))

    async def read_record(self, run_id: str) -> RunStatusResponse | None:
        (text,) = await self._all(Command(b"GET", (self._keys.record(run_id),)))
        return None if text is None else _read_record(run_id, text)

    async def append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        calls = [self._append_call(batch) for batch in batches]
        try:
            replies = await self._executor.execute(calls, lane=Lane.SERVICES)
        except StoreUnavailableError as error:
            return [error] * len(batches)
        return [_append_outcome(batch, reply) for batch, reply in zip(batches, replies, strict=True)]

    def _append_call(self, batch: AppendBatch) -> Call:
        arguments: list[Argument] = [str(batch.expected_top), self._max_length, self._retention]
        previous = batch.expected_top
        for event in batch.events:
            if event.id <= previous:
                raise ValueError("the ids of a batch must ascend from its expected top")
            arguments += [str(event.id), event.payload]
            previous = event.id
        return self._call(APPEND, batch.run_id, *arguments)

    async def read_top(self, run_id: str) -> EventId:
        newest = Command(b"XREVRANGE", (self._keys.events(run_id), "+", "-", "COUNT", 1))
        (reply,) = await self._all(newest, lane=Lane.SERVICES)
        return next((_event_id(key) for key, _ in _entries(reply)), START)

    async def finalize(self, terminal: Terminal) -> FinalizeOutcome:
        return await self._finalize(FINALIZE, terminal)

    async def finalize_cancel(self, terminal: Terminal) -> FinalizeOutcome:
        return await self._finalize(FINALIZE_CANCEL, terminal)

    async def _finalize(self, script: Script, terminal: Terminal) -> FinalizeOutcome:
        run_id, record = terminal.run_id, terminal.record
        arguments = (_record_text(record), terminal.payload, terminal.ms, self._max_length, self._retention)
        (reply,) = await self._all(self._call(script, run_id, *arguments), lane=Lane.RUNS)
        word, *rest = _words(reply)
        if word == "applied":
            return FinalizeOutcome(applied=True, status=record.status, event_id=EventId.parse(rest[0]))
        if word == "missing":
            raise RunNotFoundError(run_id)
        return FinalizeOutcome(applied=False, status=_status(run_id, rest[0]), event_id=None)

    async def request_cancel(self, run_id: str, intent: CancelIntent) -> CancelOutcome:
        (reply,) = await self._all(self._call(REQUEST_CANCEL, run_id, _intent_text(intent), self._retention))
        word, *rest = _words(reply)
        if word == "missing":
            raise RunNotFoundError(run_id)
        owner = _read_owner(rest[0]) if rest else None
        return CancelOutcome(status=_status(run_id, word), owner_id=None if owner is None else owner.id)

    async def read_intent(self, run_id: str) -> CancelIntent | None:
        return (await self.read_intents([run_id])).get(run_id)

    async def read_intents(self, run_ids: Sequence[str]) -> dict[str, CancelIntent]:
        found = {}
        for chunk in _chunks(run_ids):
            replies = await self._all(
                *(Command(b"XRANGE", (self._keys.intent(run_id), "-", "+", "COUNT", 1)) for run_id in chunk),
                lane=Lane.RUNS,
            )
            for run_id, entries in zip(chunk, replies, strict=True):
                for _, payload in _entries(entries):
                    found[run_id] = _read_intent(payload)
        return found

    async def read_events(
        self, run_id: str, after: EventId, limit: int, max_bytes: int = DEFAULT_PAGE_BYTES
    ) -> EventPage:
        # Nothing lies behind the last id, and Redis refuses the question.
        wanted = limit if after < _LAST else 0
        (reply,) = await self._all(self._call(READ, run_id, str(after), wanted, max_bytes))
        record, entries = cast("list[Any]", reply)
        if record is None:
            raise RunNotFoundError(run_id)
        events = (StoredEvent(_event_id(key), payload) for key, payload in _entries(entries))
        return EventPage(status=_read_record(run_id, record).status, events=tuple(events))

    async def heartbeat(self, owner: Owner, lease_seconds: float) -> None:
        keys = self._keys
        # In order: an owner in the list whose lease is not there yet would look lost.
        await self._all(
            Command(b"SET", (keys.alive(owner.id), owner.epoch, "PX", max(1, round(lease_seconds * 1000)))),
            Command(b"SET", (keys.seen(owner.id), owner.epoch, "EX", self._retention)),
            *map(self._expire, (keys.runs(owner.id), keys.inbox(owner.id), keys.doorbell(owner.id))),
            Command(b"SADD", (keys.owners, owner.id)),
            self._expire(keys.owners),
            lane=Lane.SERVICES,
            in_order=True,
        )

    async def touch_runs(self, owner: Owner, run_ids: Sequence[str]) -> None:
        # The set is written anew as well: a failover may have lost the entry that create had made.
        owned = self._keys.runs(owner.id)
        for chunk in _chunks(run_ids):
            refresh = (self._call(TOUCH, run_id, self._retention) for run_id in chunk)
            await self._all(Command(b"SADD", (owned, *chunk)), self._expire(owned), *refresh, lane=Lane.SERVICES)

    async def release_runs(self, owner_id: str, run_ids: Sequence[str]) -> None:
        for chunk in _chunks(run_ids):
            await self._all(Command(b"SREM", (self._keys.runs(owner_id), *chunk)), lane=Lane.SERVICES)

    async def look(self, run_ids: Sequence[str]) -> dict[str, RunLook]:
        found = {}
        for chunk in _chunks(run_ids):
            replies = await self._all(*(self._call(LOOK, run_id) for run_id in chunk), lane=Lane.SERVICES)
            for run_id, reply in zip(chunk, replies, strict=True):
                record, owner, intent = cast("list[bytes | None]", reply)
                if record is not None:
                    found[run_id] = RunLook(
                        record=_readable_record(record),
                        owner=None if owner is None else _read_owner(owner.decode()),
                        intent=None if intent is None else _read_intent(intent),
                    )
        return found

    async def read_leases(self) -> dict[str, bool]:
        (members,) = await self._all(Command(b"SMEMBERS", (self._keys.owners,)), lane=Lane.SERVICES)
        owners = sorted(member.decode() for member in cast("set[bytes]", members))
        held = await self._all(
            *(Command(b"EXISTS", (self._keys.alive(owner),)) for owner in owners), lane=Lane.SERVICES
        )
        return {owner: reply == 1 for owner, reply in zip(owners, held, strict=True)}

    async def read_owned(self, owner_id: str) -> Sequence[str]:
        (members,) = await self._all(Command(b"SMEMBERS", (self._keys.runs(owner_id),)), lane=Lane.SERVICES)
        return sorted(member.decode() for member in cast("set[bytes]", members))

    async def judge(self, verdict: Verdict) -> VerdictOutcome:
        failed, cancelled = verdict.failed, verdict.cancelled
        texts: list[Argument] = [_record_text(failed.record), failed.payload]
        texts += ["", ""] if cancelled is None else [_record_text(cancelled.record), cancelled.payload]
        owner = "" if verdict.owner is None else _owner_text(verdict.owner)
        arguments = (owner, *texts, failed.ms, self._max_length, self._retention)
        (reply,) = await self._all(self._call(VERDICT, verdict.run_id, *arguments), lane=Lane.RUNS)
        word, *rest = _words(reply)
        return cast("VerdictOutcome", rest[1] if word == "applied" else word)

    async def forget_owner(self, owner_id: str) -> None:
        keys = self._keys
        seen, left = await self._all(
            Command(b"EXISTS", (keys.seen(owner_id),)), Command(b"SCARD", (keys.runs(owner_id),)), lane=Lane.SERVICES
        )
        if not seen and not left:
            await self._all(Command(b"SREM", (keys.owners, owner_id)), lane=Lane.SERVICES)

    async def retire(self, owner: Owner) -> None:
        keys = self._keys
        own = (keys.alive(owner.id), keys.seen(owner.id), keys.inbox(owner.id), keys.doorbell(owner.id))
        await self._all(Command(b"DEL", own), lane=Lane.SERVICES)
        await self.forget_owner(owner.id)

    async def ring(self, owner_id: str, run_id: str) -> None:
        inbox = self._keys.inbox(owner_id)
        add = Command(b"XADD", (inbox, "MAXLEN", "~", _INBOX_LENGTH, "*", "run", run_id))
        await self._all(add, self._expire(inbox))

    async def read_inbox(self, owner: Owner, after: str, block_seconds: float) -> list[tuple[str, str]]:
        """See the port. ``after`` is the last entry id read, ``0-0`` at the start; ``$`` would miss earlier ones."""
        inbox = self._keys.inbox(owner.id)
        block = max(1, round(block_seconds * 1000))  # 0 would mean for ever
        read = Command(b"XREAD", ("COUNT", _INBOX_READ, "BLOCK", block, "STREAMS", inbox, after))
        (reply,) = await self._all(read, lane=Lane.SERVICES, block_seconds=block_seconds)
        streams = cast("dict[bytes, Any]", reply or {})
        return [(key.decode(), value.decode()) for entries in streams.values() for key, value in _entries(entries)]

    async def read_tails(
        self, owner: Owner, positions: Mapping[str, EventId], doorbell: str, block_seconds: float
    ) -> TailsRead:
        bell = self._keys.doorbell(owner.id)
        runs = {self._keys.events(run_id): run_id for run_id in positions}
        after = {bell: doorbell, **dict(zip(runs, map(str, positions.values()), strict=True))}
        streams = await self._executor.read_streams(after, count=_TAIL_READ, block_seconds=block_seconds)
        events = {
            run_id: tuple(StoredEvent(_event_id(entry), payload) for entry, payload in _entries(streams[name]))
            for key, run_id in runs.items()
            if (name := key.encode()) in streams
        }
        rung = [entry.decode() for entry, _ in _entries(streams.get(bell.encode(), ()))]
        return TailsRead(events, rung[-1] if rung else doorbell)

    async def ring_doorbell(self, owner: Owner) -> None:
        bell = self._keys.doorbell(owner.id)
        add = Command(b"XADD", (bell, "MAXLEN", "~", _DOORBELL_LENGTH, "*", "bell", ""))
        await self._all(add, self._expire(bell), lane=Lane.SERVICES)

    async def _all(
        self, *items: Command | Call, lane: Lane = Lane.REQUESTS, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        # For operations that stand or fall as one: the first error is raised.
        replies = await self._executor.execute(items, lane=lane, block_seconds=block_seconds, in_order=in_order)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _call(self, script: Script, run_id: str, *arguments: Argument) -> Call:
        return Call(script, self._keys.run(run_id), arguments)

    def _claim_key(self, key: IdempotencyKey) -> str:
        return self._keys.idempotency(key.tenant, key.text)

    def _expire(self, key: str) -> Command:
        return Command(b"EXPIRE", (key, self._retention))


@asynccontextmanager
async def open_redis_store(
    url: str,
    *,
    prefix: str = "dify-agent",
    retention_seconds: int = 7200,
    max_length: int = 5000,
    command_timeout: float = 5,
    max_connections: int = 64,
) -> AsyncIterator[RedisRunStore]:
    """Open the store at ``url``; enter it in a task that outlives all its users.

    Nothing is sent yet, so a server that is down shows at the first operation (`RedisRunStore.ping`). A cancellation
    from outside leaves the store working until the body has ended (`lasting_nursery`).

    Args:
        url: see `dify_agent.store.urls`.
        prefix: of all keys; without braces.
        retention_seconds: TTL of every key but the lease.
        max_length: approximate length limit of each run's log, in events.
        command_timeout: seconds for one round trip, waiting for a connection included; blocking reads add to it.
        max_connections: to one server; further callers wait. Seven are for the services and for what begins and ends
            runs; the rest, at least one, is for everything else.

    Raises:
        ValueError: unusable URL, prefix or number. Never repeats the URL.
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    keys, parsed = Keys(prefix), parse_store_url(url)
    if retention_seconds < 1 or max_length < 1:
        raise ValueError("retention and stream length must be at least 1")
    async with open_executor(parsed, limit=max_connections, timeout=command_timeout) as executor:
        yield RedisRunStore(executor, keys, retention_seconds=retention_seconds, max_length=max_length)


def _append_outcome(batch: AppendBatch, reply: Reply) -> AppendOutcome | Exception:
    if isinstance(reply, Exception):
        return reply
    word = cast("bytes", reply).decode()
    if word == "unreadable":
        return RecordUnreadableError(batch.run_id)
    return cast("AppendOutcome", word)


def _record_text(record: RunStatusResponse) -> str:
    return record.model_dump_json()


def _read_record(run_id: str, text: Reply) -> RunStatusResponse:
    try:
        return RunStatusResponse.model_validate_json(cast("bytes", text))
    except ValidationError:
        raise RecordUnreadableError(run_id) from None


def _readable_record(text: bytes) -> RunStatusResponse | None:
    try:
        return RunStatusResponse.model_validate_json(text)
    except ValidationError:
        return None


def _owner_text(owner: Owner) -> str:
    return f"{owner.epoch}:{owner.id}"


def _read_owner(text: str) -> Owner | None:
    epoch, _, owner_id = text.partition(":")
    return Owner(owner_id, int(epoch)) if epoch.isdigit() and owner_id else None


def _claim_text(claim: Claim) -> str:
    return f"{claim.run_id}:{claim.digest}:{claim.holder}"


def _read_claim(text: Reply) -> Claim:
    parts = cast("bytes", text).decode("utf-8", "replace").split(":")
    if len(parts) != 3:
        raise ClaimUnreadableError
    return Claim(*parts)


def _status(run_id: str, word: str) -> RunStatus:
    if word not in ("running", "succeeded", "failed", "cancelled"):
        raise RecordUnreadableError(run_id)
    return cast("RunStatus", word)


def _intent_text(intent: CancelIntent) -> str:
    return _Intent(reason=intent.reason, message=intent.message, requested_at=intent.requested_at).model_dump_json()


def _read_intent(text: bytes) -> CancelIntent:
    try:
        intent = _Intent.model_validate_json(text)
    except ValidationError:
        # Somebody's wish to cancel all the same: an accepted cancel must not end as a success.
        return CancelIntent(reason=None, message="the cancel intent is unreadable", requested_at=datetime.now(UTC))
    return CancelIntent(reason=intent.reason, message=intent.message, requested_at=intent.requested_at)


def _words(reply: Reply) -> list[str]:
    return [word.decode() for word in cast("list[bytes]", reply)]


def _entries(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    """Id and the one field's value of each entry of a stream range."""
    for key, fields in cast("list[tuple[bytes, list[bytes]]]", reply):
        yield key, fields[1]


def _event_id(text: bytes) -> EventId:
    ms, _, n = text.partition(b"-")
    return EventId(int(ms), int(n))


def _chunks(run_ids: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(run_ids)
    while chunk := list(islice(rest, _SWEEP)):
        yield chunk
