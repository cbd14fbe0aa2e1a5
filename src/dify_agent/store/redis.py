"""The run log in Redis (protocol 5, keys by R1, ids by R2).

Each transition is one Lua script, so a reader or a rival replica sees all of it or nothing. Every key is written
together with its TTL. Replies are bytes from end to end; only ids and the few words that scripts answer are decoded.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

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
    LogsUnreadableError,
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
from dify_agent.store.executor import Argument, Call, Command, Executor, Item, Lane, Reply
from dify_agent.store.faults import is_wrong_type
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
    VERDICT,
    Script,
)
from dify_agent.store.owners import OwnerOperations
from dify_agent.store.questions import sound
from dify_agent.store.replies import entries_of, event_id_of, evicting, type_of, word_of, words_of
from dify_agent.store.texts import (
    claim_text,
    intent_text,
    owner_text,
    read_intent,
    read_owner,
    read_record,
    record_text,
    require_claim,
    require_record,
    require_status,
)
from dify_agent.store.urls import parse_store_url

_TAIL_READ = 16
"""Events per run and read. Small: a read may bring them for each of many runs."""
_LAST = EventId((1 << 64) - 1, (1 << 64) - 1)


_RUN_KEYS = (("record", "string"), ("log", "stream"), ("owner", "string"), ("cancel intent", "stream"))
"""What a run's keys are and their types, in the order of `Keys.run`."""
_UNREADABLE = RunLook(record=None, owner=None, intent=None)


class RedisRunStore(OwnerOperations):
    """`dify_agent.store.base.RunStore` on Redis or Valkey. Made by `open_redis_store`."""

    def __init__(self, executor: Executor, keys: Keys, *, retention_seconds: int, max_length: int) -> None:
        super().__init__(executor, keys, retention_seconds=retention_seconds)
        self._max_length = max_length

    async def ping(self) -> None:
        await self._all(Command(b"PING"))

    async def eviction_policy(self) -> str | None:
        """By which policy the server, of a cluster any one, deletes keys when its memory is full; None: it does not.

        None as well when it does not say: managed servers refuse such questions.
        """
        try:
            (reply,) = await self._executor.execute([Command(b"INFO")])
        except StoreUnavailableError:
            return None
        return evicting(reply)

    async def create_run(self, record: RunStatusResponse, owner: Owner) -> None:
        """See the port.

        Raises:
            RunExistsError: another run, or another owner's, has this id.
        """
        run_id, owned = record.run_id, self._keys.runs(owner.id)
        create = self._call(CREATE, run_id, record_text(record), owner_text(owner), self._retention)
        # In order: a run that no set names would never be judged.
        items = (Command(b"SADD", (owned, run_id)), self._expire(owned), create)
        entry, *replies = await self._executor.execute(items, lane=Lane.RUNS, in_order=True)
        if is_wrong_type(entry):
            raise self._unreadable_of_owner(owned)
        *_, reply = [sound(each) for each in (entry, *replies)]
        if reply != b"created":
            raise RunExistsError(run_id)

    async def claim(self, key: IdempotencyKey, claim: Claim, *, over: Claim | None = None) -> Claim:
        name = self._claim_key(key)
        arguments = (claim_text(claim), "" if over is None else claim_text(over), self._retention)
        reply = await self._of_claim(name, Call(CLAIM, (name,), arguments))
        return require_claim(name, cast("bytes", reply))

    async def read_claim(self, key: IdempotencyKey) -> Claim | None:
        name = self._claim_key(key)
        text = await self._of_claim(name, Command(b"GET", (name,)))
        return None if text is None else require_claim(name, cast("bytes", text))

    async def release_claim(self, key: IdempotencyKey, claim: Claim) -> None:
        name = self._claim_key(key)
        await self._of_claim(name, Call(RELEASE_CLAIM, (name,), (claim_text(claim),)))

    async def read_record(self, run_id: str) -> RunStatusResponse | None:
        key = self._keys.record(run_id)
        text = await self._of_run(run_id, Command(b"GET", (key,)))
        return None if text is None else require_record(run_id, key, cast("bytes", text))

    async def append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        calls = [self._append_call(batch) for batch in batches]
        sent = [call for call in calls if isinstance(call, Call)]
        replies = iter(await self._answers(sent, lane=Lane.SERVICES))
        return [
            self._append_outcome(batch, next(replies)) if isinstance(call, Call) else call
            for batch, call in zip(batches, calls, strict=True)
        ]

    def _append_call(self, batch: AppendBatch) -> Call | ValueError:
        try:
            events = _event_arguments(batch)
        except ValueError as error:
            return error
        top = str(batch.expected_top)
        return self._call(APPEND, batch.run_id, top, self._max_length, self._retention, *events)

    def _append_outcome(self, batch: AppendBatch, reply: Reply) -> AppendOutcome | Exception:
        if is_wrong_type(reply):  # which it is, is told when the run ends
            return RecordUnreadableError(batch.run_id, self._keys.events(batch.run_id), "record or log")
        if isinstance(reply, Exception):
            return reply
        word = word_of(cast("bytes", reply))
        if word == "unreadable":
            return RecordUnreadableError(batch.run_id, self._keys.record(batch.run_id))
        return cast("AppendOutcome", word)

    async def read_tops(self, run_ids: Sequence[str]) -> dict[str, EventId]:
        newest = [Command(b"XREVRANGE", (self._keys.events(run_id), "+", "-", "COUNT", 1)) for run_id in run_ids]
        replies = await self._executor.execute(newest, lane=Lane.SERVICES)
        return {
            run_id: next((event_id_of(key) for key, _ in entries_of(reply)), START)
            for run_id, reply in zip(run_ids, replies, strict=True)
            if not isinstance(reply, Exception)
        }

    async def finalize(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        return await self._finalize(FINALIZE, terminal, last)

    async def finalize_cancel(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        return await self._finalize(FINALIZE_CANCEL, terminal, last)

    async def _finalize(self, script: Script, terminal: Terminal, last: AppendBatch | None) -> FinalizeOutcome:
        run_id, record = terminal.run_id, terminal.record
        arguments = (record_text(record), terminal.payload, terminal.ms, self._max_length, self._retention)
        events = () if last is None else (str(last.expected_top), *_event_arguments(last))
        reply = await self._of_run(run_id, self._call(script, run_id, *arguments, *events), lane=Lane.RUNS)
        word, *rest = words_of(reply)
        if word == "applied":
            return FinalizeOutcome(applied=True, status=record.status, event_id=EventId.parse(rest[0]))
        if word == "missing":
            raise RunNotFoundError(run_id)
        if word == "gap":
            return FinalizeOutcome(applied=False, status="running", event_id=None, gap=True)
        return FinalizeOutcome(applied=False, status=self._status(run_id, rest[0]), event_id=None)

    async def request_cancel(self, run_id: str, intent: CancelIntent) -> CancelOutcome:
        reply = await self._of_run(run_id, self._call(REQUEST_CANCEL, run_id, intent_text(intent), self._retention))
        word, *rest = cast("list[bytes]", reply)
        if word == b"missing":
            raise RunNotFoundError(run_id)
        owner = read_owner(rest[0]) if rest else None
        return CancelOutcome(status=self._status(run_id, word_of(word)), owner_id=None if owner is None else owner.id)

    async def read_intent(self, run_id: str) -> CancelIntent | None:
        entries = await self._of_run(run_id, self._intent(run_id), lane=Lane.RUNS)
        return next((read_intent(payload) for _, payload in entries_of(entries)), None)

    async def read_intents(self, run_ids: Sequence[str]) -> dict[str, CancelIntent]:
        answers = await self._answers_by_run(run_ids, self._intent, lane=Lane.RUNS)
        return {
            run_id: read_intent(payload)
            for run_id, reply in answers.items()
            if not isinstance(reply, Exception)
            for _, payload in entries_of(reply)
        }

    async def read_events(
        self, run_id: str, after: EventId, limit: int, max_bytes: int = DEFAULT_PAGE_BYTES
    ) -> EventPage:
        # Nothing lies behind the last id, and Redis refuses the question.
        wanted = limit if after < _LAST else 0
        reply = await self._of_run(run_id, self._call(READ, run_id, str(after), wanted, max_bytes))
        record, entries = cast("list[Any]", reply)
        if record is None:
            raise RunNotFoundError(run_id)
        events = (StoredEvent(event_id_of(key), payload) for key, payload in entries_of(entries))
        status = require_record(run_id, self._keys.record(run_id), record).status
        return EventPage(status=status, events=tuple(events))

    async def look(self, run_ids: Sequence[str]) -> dict[str, RunLook | None]:
        answers = await self._answers_by_run(run_ids, lambda run_id: self._call(LOOK, run_id), lane=Lane.SERVICES)
        return {run_id: _look(reply) for run_id, reply in answers.items()}

    async def judge(self, verdict: Verdict) -> VerdictOutcome:
        failed, cancelled = verdict.failed, verdict.cancelled
        texts: list[Argument] = [record_text(failed.record), failed.payload]
        texts += ["", ""] if cancelled is None else [record_text(cancelled.record), cancelled.payload]
        owner = "" if verdict.owner is None else owner_text(verdict.owner)
        arguments = (owner, *texts, failed.ms, self._max_length, self._retention)
        reply = await self._of_run(verdict.run_id, self._call(VERDICT, verdict.run_id, *arguments), lane=Lane.RUNS)
        word, *rest = words_of(reply)
        if word == "unapplied":
            self._status(verdict.run_id, rest[0])
        return cast("VerdictOutcome", rest[1] if word == "applied" else word)

    async def read_tails(
        self, owner: Owner, positions: Mapping[str, EventId], doorbell: str, block_seconds: float
    ) -> TailsRead:
        bell = self._keys.doorbell(owner.id)
        runs = {self._keys.events(run_id): run_id for run_id in positions}
        after = {bell: doorbell, **dict(zip(runs, map(str, positions.values()), strict=True))}
        mistake: Exception | None = None
        try:
            streams = await self._executor.read_streams(after, count=_TAIL_READ, block_seconds=block_seconds)
        except Exception as error:
            if not is_wrong_type(error):
                raise
            mistake = error
        if mistake is not None:
            await self._find_no_logs(runs)
            raise self._unreadable_of_owner(bell) from mistake
        events = {
            run_id: tuple(StoredEvent(event_id_of(entry), payload) for entry, payload in entries_of(streams[name]))
            for key, run_id in runs.items()
            if (name := key.encode()) in streams
        }
        rung = [entry.decode() for entry, _ in entries_of(streams.get(bell.encode(), ()))]
        return TailsRead(events, rung[-1] if rung else doorbell)

    async def _of_run(self, run_id: str, item: Item, *, lane: Lane = Lane.REQUESTS) -> Reply:
        (reply,) = await self._executor.execute([item], lane=lane)
        if is_wrong_type(reply):
            raise await self._unreadable(run_id, lane)
        return sound(reply)

    async def _of_claim(self, name: str, item: Item) -> Reply:
        (reply,) = await self._executor.execute([item])
        if is_wrong_type(reply):
            raise ClaimUnreadableError(name)
        return sound(reply)

    def _status(self, run_id: str, word: str) -> RunStatus:
        return require_status(run_id, self._keys.record(run_id), word)

    async def _unreadable(self, run_id: str, lane: Lane) -> RecordUnreadableError:
        """Which of the run's keys has a wrong type; the record if that has changed meanwhile."""
        names = self._keys.run(run_id)
        types = await self._all(*(Command(b"TYPE", (name,)) for name in names), lane=lane)
        for name, (what, wanted), found in zip(names, _RUN_KEYS, types, strict=True):
            if type_of(found) not in (wanted, "none"):
                return RecordUnreadableError(run_id, name, what)
        return RecordUnreadableError(run_id, names[0])

    async def _find_no_logs(self, runs: Mapping[str, str]) -> None:
        """Look which of the logs, by their keys, are none.

        Raises:
            LogsUnreadableError: some.
        """
        types = await self._answers([Command(b"TYPE", (key,)) for key in runs], lane=Lane.SERVICES)
        wrong = {
            key: run_id
            for (key, run_id), found in zip(runs.items(), types, strict=True)
            if not isinstance(found, Exception) and type_of(found) not in ("stream", "none")
        }
        if wrong:
            raise LogsUnreadableError(list(wrong.values()), next(iter(wrong)))

    def _intent(self, run_id: str) -> Command:
        return Command(b"XRANGE", (self._keys.intent(run_id), "-", "+", "COUNT", 1))

    def _claim_key(self, key: IdempotencyKey) -> str:
        return self._keys.idempotency(key.tenant, key.text)


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
        max_connections: to one server; further callers wait. Nine are for the services and for what begins and ends
            runs; the rest, at least one, is for everything else. A cluster's nodes have a few more.

    Raises:
        ValueError: unusable URL, prefix or number. Never repeats the URL.
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    keys, parsed = Keys(prefix), parse_store_url(url)
    if retention_seconds < 1 or max_length < 1:
        raise ValueError("retention and stream length must be at least 1")
    async with open_executor(parsed, limit=max_connections, timeout=command_timeout) as executor:
        yield RedisRunStore(executor, keys, retention_seconds=retention_seconds, max_length=max_length)


def _event_arguments(batch: AppendBatch) -> list[Argument]:
    """Id and payload of each event, as scripts take them.

    Raises:
        ValueError: the ids do not ascend.
    """
    arguments: list[Argument] = []
    previous = batch.expected_top
    for event in batch.events:
        if event.id <= previous:
            raise ValueError("the ids of a batch must ascend from its expected top")
        arguments += [str(event.id), event.payload]
        previous = event.id
    return arguments


def _look(reply: Reply) -> RunLook | None:
    if isinstance(reply, Exception):  # a key of a wrong type
        return _UNREADABLE
    stored, owner_bytes, intent = cast("list[bytes | None]", reply)
    if stored is None:
        return None
    record = read_record(stored)
    owner = None if owner_bytes is None else read_owner(owner_bytes)
    if record is None or (owner is None and owner_bytes is not None):
        return _UNREADABLE
    return RunLook(record, owner, None if intent is None else read_intent(intent))
