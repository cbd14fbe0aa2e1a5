"""Plays a trace of the model against a real store, and compares the two after every step.

A reply that is lost is a call whose answer is dropped, a crash a replica that does nothing more, an expiry a key that
the witness deletes, an outage a time in which nothing is called, a late request a call that is made later. Two
operations are played command by command by the witness, so that others can come in between: the second half of a create
that comes late, and `forget_owner` when it finds an owner to forget. The heartbeat's release and a replica's leaving
are the source's own (`Heartbeat.release`, `retire`), a leaving that is cut short excepted.
"""

import itertools
import json
from collections.abc import Awaitable, Callable
from functools import partial

import redis
from tests.contracts.store_support import MS, batch, event, intent, run_id, running, terminal
from tests.model.state import ACTIVE, Label, State, status_of

from dify_agent.actors.heartbeat import Heartbeat
from dify_agent.errors import RunNotFoundError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import AppendBatch, FinalizeOutcome, Owner, RunExistsError, RunStore, Terminal, Verdict
from dify_agent.store.keys import Keys
from dify_agent.store.lua import CREATE

LEASE_SECONDS = 300.0
RETENTION_SECONDS = 600
LATE_SECONDS = 60
LOCAL = frozenset(
    {
        "emit",
        "work-succeeds",
        "work-fails",
        "actor-lost",
        "settle-timeout",
        "pause",
        "resume",
        "cut",
        "heal",
        "crash",
        "watcher-crash",
        "up",
        "down",
        "node-up",
        "node-down",
    }
)
_Ending = Callable[[Terminal, AppendBatch], Awaitable[FinalizeOutcome]]
_numbers = itertools.count(1)


class EndedRuns:
    """The registry's view, as a heartbeat asks for it (`OwnRuns`): runs that have no actor any more."""

    def __init__(self, *run_ids: str) -> None:
        self.left = run_ids

    def run_ids(self) -> tuple[str, ...]:
        return ()

    def take_ended(self) -> tuple[str, ...]:
        ended, self.left = self.left, ()
        return ended


class Replay:
    """One run on a real store. The two owners are new for each, so that replays do not meet."""

    def __init__(self, store: RunStore, witness: redis.Redis, keys: Keys) -> None:
        self._store = store
        self._witness = witness
        self._keys = keys
        number = next(_numbers)
        self._owner, self._ghost = Owner(f"owner-{number}", 7), Owner(f"ghost-{number}", 3)
        self._run = run_id()
        self._terminals: dict[str, Terminal] = {}
        self._later = itertools.count(1)
        self._late: Callable[[], Awaitable[str]] | None = None

    async def play(self, start: State, steps: list[tuple[Label, State]]) -> None:
        """Go through a trace; ``steps`` are labels, each with the state after it."""
        await self._store.heartbeat(self._owner, LEASE_SECONDS)
        if start.ghost:
            self._witness.sadd(self._keys.runs(self._ghost.id), self._run)
            self._witness.sadd(self._keys.owners, self._ghost.id)
        before = start
        for position, (label, after) in enumerate(steps):
            where = [str(step) for step, _ in steps[: position + 1]]
            answer = await self._step(label, before)
            assert not label.outcome or answer == label.outcome, where
            assert self.observed() == expected(after), where
            before = after

    async def _step(self, label: Label, before: State) -> str:
        if label.network == "request lost" or label.action in LOCAL:
            return label.outcome
        if label.action == "create" and label.network in ("cut", "half late"):
            self._witness.sadd(self._keys.runs(self._owner.id), self._run)
            if label.network == "half late":
                self._late = self._write_record
            return ""
        if label.action.startswith("late "):
            assert self._late is not None
            return await self._late()
        do = self._call(label, before)
        if label.network == "late":
            self._late = do
            return ""
        return await do()

    def _call(self, label: Label, s: State) -> Callable[[], Awaitable[str]]:
        who, action = self._owner, label.action
        for prefix, owner in (("own-", self._owner), ("ghost-", self._ghost)):
            if action.startswith(prefix):
                who, action = owner, action.removeprefix(prefix)
        match action:
            case "append":
                return partial(self._append, s.stored, s.in_flight or s.offered)
            case "finish":
                return partial(self._end, self._store.finalize, self._terminal(s.ending), s.stored, s.offered)
            case "finish-cancel":
                return partial(self._end, self._store.finalize_cancel, self._terminal("C"), s.stored, s.offered)
            case "judge":
                stage = s.strays if label.action.startswith("own-") else s.stage
                assert stage is not None
                return partial(self._judge, self._verdict(with_cancel=stage.intent))
            case "settle":
                return partial(self._judge, self._settlement(with_cancel=s.step == "both"))
            case "beat" | "touch" | "watch":
                return partial(self._keep, action, s)
            case "retire":
                return partial(self._retire, s, label.network)
            case "expire" | "lease-expires" | "seen-expires" | "set-expires" | "other-set-expires":
                return partial(self._expire, action)
            case "forget" | "drop":
                return partial(self._forget, who)
        simple: dict[str, Callable[[], Awaitable[str]]] = {
            "create": self._create,
            "cancel": self._cancel,
            "read-intent": self._read_intent,
            "settle-read": self._read_intent,
            "release": self._release,
            "told": self._told,
            "reap": self._reap,
            "reap-ghost": self._reap_ghost,
            "recheck": partial(self._recheck, who),
            "look": partial(self._look, who),
            "count": self._count,
            "delist": self._delist,
            "strays": partial(self._strays, s),
        }
        return simple[action]

    # The owner.

    async def _create(self) -> str:
        try:
            await self._store.create_run(running(self._run), self._owner)
        except RunExistsError:
            return "exists"
        return "created"

    async def _write_record(self) -> str:
        """A create without its first half."""
        record, owner = running(self._run).model_dump_json(), f"{self._owner.epoch}:{self._owner.id}"
        keys = self._keys.run(self._run)
        return self._witness.eval(CREATE.source, len(keys), *keys, record, owner, RETENTION_SECONDS).decode()

    async def _append(self, top: int, last: int) -> str:
        (answer,) = await self._store.append([self._batch(top, last)])
        return str(answer)

    def _batch(self, top: int, last: int) -> AppendBatch:
        items = [event(n) for n in range(top + 1, last + 1)]
        return batch(self._run, EventId(MS, top) if top else START, *items)

    async def _end(self, transition: _Ending, item: Terminal, top: int, last: int) -> str:
        try:
            outcome = await transition(item, self._batch(top, last))
        except RunNotFoundError:
            return "missing"
        if outcome.gap:
            return "gap"
        return "applied" if outcome.applied else f"unapplied {outcome.status}"

    async def _read_intent(self) -> str:
        return "none" if await self._store.read_intent(self._run) is None else "intent"

    async def _told(self) -> str:
        look = (await self._store.look([self._run]))[self._run]
        if look is None:
            return "missing"
        assert look.record is not None
        return "cancel" if look.intent is not None else look.record.status

    async def _release(self) -> str:
        runs = EndedRuns(self._run)
        await self._heartbeat(runs).release()
        assert not runs.left
        look = (await self._store.look([self._run]))[self._run]
        return "left" if look is None or look.record is None or look.record.status == "running" else "ended"

    def _heartbeat(self, runs: EndedRuns) -> Heartbeat:
        return Heartbeat(
            self._store, self._owner, lease_seconds=LEASE_SECONDS, retention_seconds=RETENTION_SECONDS, runs=runs
        )

    async def _retire(self, s: State, network: str) -> str:
        """All that a leaving replica does, or all but its last command."""
        keys, owner_id = self._keys, self._owner.id
        runs = EndedRuns(self._run) if s.release else EndedRuns()
        if network == "ok":
            await self._heartbeat(runs).retire()
            assert not s.seen or 0 < self._witness.ttl(keys.seen(owner_id)) <= LATE_SECONDS
            return ""
        await self._heartbeat(runs).release()
        self._witness.delete(keys.alive(owner_id), keys.inbox(owner_id), keys.doorbell(owner_id))
        return ""

    async def _keep(self, action: str, s: State) -> str:
        store, owner = self._store, self._owner
        if action in ("beat", "watch") and s.life == "up":
            await store.heartbeat(owner, LEASE_SECONDS, [self._run] if s.phase in ACTIVE or s.release else [])
        elif action == "touch":
            await store.touch_runs(owner, [self._run])
        return ""

    # The others.

    async def _cancel(self) -> str:
        try:
            outcome = await self._store.request_cancel(self._run, intent())
        except RunNotFoundError:
            return "missing"
        assert outcome.owner_id == (self._owner.id if outcome.status == "running" else None)
        return outcome.status

    async def _reap(self) -> str:
        assert (await self._store.read_leases())[self._owner.id] is False
        return "some" if self._run in await self._store.read_owned(self._owner.id) else "none"

    async def _reap_ghost(self) -> str:
        assert (await self._store.read_leases())[self._ghost.id] is False
        assert await self._store.read_owned(self._ghost.id) == [self._run]
        return ""

    async def _recheck(self, who: Owner) -> str:
        return "gone" if (await self._store.read_leases()).get(who.id) is False else "held"

    async def _look(self, who: Owner) -> str:
        look = (await self._store.look([self._run]))[self._run]
        if look is None:
            return "missing"
        assert look.record is not None
        if look.record.status != "running":
            return "ended"
        assert look.owner == self._owner
        if look.owner.id != who.id:
            return "another's"
        return "running" if look.intent is None else "intent"

    async def _judge(self, verdict: Verdict) -> str:
        answer = await self._store.judge(verdict)
        if answer != "unapplied":
            return answer
        record = await self._store.read_record(self._run)
        assert record is not None
        return f"unapplied {record.status}"

    async def _forget(self, who: Owner) -> str:
        await self._store.release_runs(who.id, [self._run])
        return ""

    async def _count(self) -> str:
        keys, owner_id = self._keys, self._owner.id
        outcome = "seen" if self._witness.exists(keys.seen(owner_id)) else "none"
        if self._witness.scard(keys.runs(owner_id)):
            outcome = "some"
        if outcome != "none":
            await self._store.forget_owner(owner_id)  # that it forgets nothing is what the comparison shows
        return outcome

    async def _delist(self) -> str:
        if await self._count() == "none":
            await self._store.forget_owner(self._owner.id)
        else:
            self._witness.srem(self._keys.owners, self._owner.id)  # others came in between
        return ""

    async def _strays(self, s: State) -> str:
        if self._run not in await self._store.read_owned(self._owner.id) or s.phase in ("creating", "running"):
            return "none"
        return "seen" if s.strays is None else "again"

    async def _expire(self, action: str) -> str:
        keys, owner_id = self._keys, self._owner.id
        gone = {
            "expire": keys.run(self._run),
            "lease-expires": (keys.alive(owner_id),),
            "seen-expires": (keys.seen(owner_id),),
            "set-expires": (keys.runs(owner_id),),
            "other-set-expires": (keys.runs(self._ghost.id),),
        }
        self._witness.delete(*gone[action])
        return ""

    def _terminal(self, name: str) -> Terminal:
        if name not in self._terminals:
            self._terminals[name] = terminal(self._run, status_of(name), later=next(self._later))
        return self._terminals[name]

    def _verdict(self, *, with_cancel: bool) -> Verdict:
        later = next(self._later)
        cancelled = terminal(self._run, "cancelled", later=later) if with_cancel else None
        return Verdict(self._run, self._owner, terminal(self._run, "failed", later=later), cancelled)

    def _settlement(self, *, with_cancel: bool) -> Verdict:
        """The same at each call: the store recognises a repeat by its texts."""
        cancelled = self._terminal("sC") if with_cancel else None
        return Verdict(self._run, self._owner, self._terminal("sF"), cancelled)

    def observed(self) -> tuple:
        """What the witness sees of the run; to be compared with `expected`."""
        keys, run = self._keys, self._run
        with self._witness.pipeline(transaction=False) as asked:
            asked.get(keys.record(run)).xrange(keys.events(run)).exists(keys.intent(run), keys.owner(run))
            asked.exists(keys.intent(run)).sismember(keys.runs(self._owner.id), run)
            asked.sismember(keys.runs(self._ghost.id), run).sismember(keys.owners, self._owner.id)
            asked.exists(keys.alive(self._owner.id)).exists(keys.seen(self._owner.id))
            record, log, both, wish, in_set, ghost, listed, lease, seen = asked.execute()
        status = "missing" if record is None else json.loads(record)["status"]
        events = [(key.decode(), _kind(fields[b"payload"])) for key, fields in log]
        return status, events, wish, both - wish, in_set, ghost, listed, lease, seen


def expected(s: State) -> tuple:
    """The model's state as `Replay.observed` shows a store's."""
    log = [(f"{MS}-{n}", _name(entry)) for n, entry in enumerate(s.log, start=1)]
    return status_of(s.record), log, s.intent, s.record != "-", s.in_set, s.ghost, s.listed, s.lease, s.seen


def _name(entry: int | str) -> str:
    return f"x{entry}" if isinstance(entry, int) else f"run_{status_of(entry)}"


def _kind(payload: bytes) -> str:
    content = json.loads(payload)
    return content["t"] if content["type"] == "pydantic_ai_event" else content["type"]
