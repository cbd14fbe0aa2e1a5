"""From the store to facts: bounded round trips, each run read in one step of the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, cast

from dify_agent.doctor.facts import ClaimFacts, Entry, KeyFacts, LogFacts, OwnerView, RunFacts
from dify_agent.doctor.keyspace import KeyspaceReader
from dify_agent.doctor.scripts import LOOK, PAGE, ReadOnlyCall
from dify_agent.protocol.event_id import EventId
from dify_agent.store.executor import Command, Reply
from dify_agent.store.keys import Keys

RUNS_AT_ONCE: Final = 25
"""Runs whose logs begin in one reply: with `PAGE_BYTES`, what bounds its size."""
MOST_ENTRIES: Final = 256
"""Of one log in one round trip."""
PAGE_BYTES: Final = 256 * 1024
"""Payload that the server looks at for one log in one round trip, unless the first event is larger."""
WHOLE_BYTES: Final = 16 * 1024
"""Payloads up to this come whole and are parsed; of longer ones comes the head, which names run and type."""
HEAD_BYTES: Final = 512

_LIMITS: Final = (MOST_ENTRIES, PAGE_BYTES, WHOLE_BYTES, HEAD_BYTES)


class Looks:
    """Reads what the checks judge. Writes nothing.

    Every method raises `StoreUnavailableError` when the store does not answer.
    """

    def __init__(self, keyspace: KeyspaceReader, keys: Keys) -> None:
        self._keyspace = keyspace
        self._keys = keys

    async def runs(self, run_ids: Sequence[str]) -> list[RunFacts]:
        """Each run's facts. The caller bounds how many: what is kept of a run are its record and a sum of its log."""
        found: list[RunFacts] = []
        rest = iter(run_ids)
        while part := list(islice(rest, RUNS_AT_ONCE)):
            replies = await self._keyspace.ask([ReadOnlyCall(LOOK, self._keys.run(run), _LIMITS) for run in part])
            found += [await self._run(run_id, reply) for run_id, reply in zip(part, replies, strict=True)]
        return await self._with_owners(found)

    async def key(self, name: str) -> KeyFacts:
        """One key's type and TTL."""
        return (await self.keys([name]))[0]

    async def keys(self, names: Sequence[str]) -> list[KeyFacts]:
        """Types and TTLs."""
        asked = [Command(command, (name,)) for name in names for command in (b"TYPE", b"PTTL")]
        replies = _sound(await self._keyspace.ask(asked))
        return [
            KeyFacts(_text(type_), cast("int", ttl)) for type_, ttl in zip(replies[::2], replies[1::2], strict=True)
        ]

    async def present(self, names: Sequence[str]) -> list[bool]:
        """Which of the keys exist."""
        replies = _sound(await self._keyspace.ask([Command(b"EXISTS", (name,)) for name in names]))
        return [reply == 1 for reply in replies]

    async def are_members(self, set_keys: Sequence[str], members: Sequence[str]) -> list[list[bool]]:
        """For each set, which of the members it has; none for a key of another type."""
        asked = [Command(b"SMISMEMBER", (set_key, *members)) for set_key in set_keys]
        replies = await self._keyspace.ask(asked) if members else [[]] * len(asked)
        return [
            [found == 1 for found in reply] if isinstance(reply, list) else [False] * len(members) for reply in replies
        ]

    async def members(self, set_key: str, cursor: bytes) -> tuple[bytes, list[str]]:
        """Some members of a set and the next cursor; none for a key of another type."""
        (reply,) = await self._keyspace.ask([Command(b"SSCAN", (set_key, cursor, "COUNT", 500))])
        if isinstance(reply, Exception):
            return b"0", []
        following, members = cast("tuple[bytes, Any]", reply)
        return following, [member.decode("utf-8", "replace") for member in members]

    async def claims(self, names: Sequence[str]) -> list[ClaimFacts]:
        """Idempotency keys, and whether their runs exist."""
        keys = await self.keys(names)
        texts = await self._keyspace.ask([Command(b"GET", (name,)) for name in names])
        found = [
            ClaimFacts(name, key, text if isinstance(text, bytes) else None, has_run=False)
            for name, key, text in zip(names, keys, texts, strict=True)
        ]
        has_run = await self.present([self._keys.record(claim.run_id or "") for claim in found])
        return [replace(claim, has_run=present) for claim, present in zip(found, has_run, strict=True)]

    async def owners(self) -> dict[str, tuple[KeyFacts, KeyFacts]]:
        """Of each listed owner, what its ``seen`` and its ``alive`` key are."""
        cursor = b""
        found: dict[str, tuple[KeyFacts, KeyFacts]] = {}
        while cursor != b"0":
            cursor, owners = await self.members(self._keys.owners, cursor or b"0")
            names = [name for owner in owners for name in (self._keys.seen(owner), self._keys.alive(owner))]
            facts = await self.keys(names)
            found.update(zip(owners, zip(facts[::2], facts[1::2], strict=True), strict=True))
        return found

    async def _run(self, run_id: str, reply: Reply) -> RunFacts:
        if isinstance(reply, Exception):
            raise reply
        look = _Look(*cast("list[Any]", reply))
        keys = {
            name: KeyFacts(_text(type_), ttl)
            for name, type_, ttl in zip(self._keys.run(run_id), look.types, look.ttls, strict=True)
        }
        log = _log(run_id, look.stream)
        entries, more = look.entries, look.more
        while True:
            for event_id, size, text in entries:
                log.add(Entry(EventId.parse(event_id.decode()), size, text))
            if not more or log.top is None:
                return RunFacts(run_id, keys, look.record, look.owner, look.intents, log)
            page = ReadOnlyCall(PAGE, self._keys.run(run_id), (str(log.top), *_LIMITS))
            ((entries, more),) = cast("list[Any]", _sound(await self._keyspace.ask([page])))

    async def _with_owners(self, runs: list[RunFacts]) -> list[RunFacts]:
        running = [run for run in runs if (record := run.record) is not None and record.status == "running"]
        views = await self._views({run.run_id: owner.id for run in running if (owner := run.owner_of_record)})
        ownerless = [run.run_id for run in running if run.owner_text is None]
        named = await self._named_by_lost_owners(ownerless) if ownerless else set()
        return [replace(run, owner=views.get(run.run_id), lost_owner_names_it=run.run_id in named) for run in runs]

    async def _views(self, owners: Mapping[str, str]) -> dict[str, OwnerView]:
        asked = []
        for run_id, owner_id in owners.items():
            asked.append(Command(b"EXISTS", (self._keys.alive(owner_id),)))
            asked.append(Command(b"SISMEMBER", (self._keys.owners, owner_id)))
            asked.append(Command(b"SISMEMBER", (self._keys.runs(owner_id), run_id)))
        ones = await self._ones(asked)
        views = zip(ones[::3], ones[1::3], ones[2::3], strict=True)
        return {run_id: OwnerView(*view) for run_id, view in zip(owners, views, strict=True)}

    async def _named_by_lost_owners(self, run_ids: Sequence[str]) -> set[str]:
        """Those that a reaper comes upon although they have no owner key: a few questions for all of them together."""
        cursor, named = b"", set()
        while cursor != b"0":
            cursor, owners = await self.members(self._keys.owners, cursor or b"0")
            held = await self.present([self._keys.alive(owner) for owner in owners])
            sets = [self._keys.runs(owner) for owner, alive in zip(owners, held, strict=True) if not alive]
            for has in await self.are_members(sets, run_ids):
                named |= {run_id for run_id, has_it in zip(run_ids, has, strict=True) if has_it}
        return named

    async def _ones(self, items: Sequence[Command]) -> list[bool]:
        """Which replies are 1. A key of another type has no members; its own finding tells of it."""
        return [reply == 1 for reply in await self._keyspace.ask(items)]


@dataclass(frozen=True, slots=True)
class _Look:
    """The reply of look.lua."""

    types: list[bytes]
    ttls: list[int]
    record: bytes | None
    owner: bytes | None
    intents: int
    stream: list[Any]
    entries: list[Any]
    more: int


def _log(run_id: str, stream: list[Any]) -> LogFacts:
    length, added, last_generated, max_deleted = stream
    return LogFacts(
        run_id,
        length=length,
        added=added if added >= 0 else None,
        last_generated=EventId.parse(_text(last_generated)),
        max_deleted=EventId.parse(_text(max_deleted)),
    )


def _sound(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _text(reply: Reply) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
