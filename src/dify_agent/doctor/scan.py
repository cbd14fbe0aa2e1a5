"""The scan: every key of the prefix once, every suspicion twice.

A run that begins or ends while it is looked at can seem broken. So whatever the first look finds is looked at again
some seconds later, all of it at once, and only what both looks find is reported.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import trio

from dify_agent.doctor.checks import (
    Bounds,
    Finding,
    check_claim,
    check_member,
    check_retention,
    check_run,
    check_ttl,
    kept_by,
    refuse_doubtful,
)
from dify_agent.doctor.facts import KeyFacts
from dify_agent.doctor.keyspace import KeyspaceReader, pattern_of, scan_page
from dify_agent.doctor.looks import Looks
from dify_agent.doctor.rules import WRONG_TYPE
from dify_agent.store.executor import Executor
from dify_agent.store.keys import Keys

RECHECK_SECONDS: Final = 2.5
"""Before the second look. Replicas look at their own sets every second and drop what they see twice."""
RUNS_AT_ONCE: Final = 250
KEYS_AT_ONCE: Final = 250
"""What is judged together. Questions about all of it share round trips; facts of no more than this are kept."""

_OWNER_TYPES: Final = {"alive": "string", "seen": "string", "runs": "set", "inbox": "stream", "doorbell": "stream"}


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    keys: int = 0
    """Names that SCAN gave; one may come twice."""
    runs: int = 0
    owners: int = 0
    claims: int = 0
    events: int = 0
    suspicions: int = 0
    """Findings of the first look."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan found, in a stable order, and how much it saw."""

    findings: list[Finding]
    counts: Counts


@dataclass(slots=True)
class _Names:
    """The names of one page of SCAN, by what they are."""

    records: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Run ids of further keys."""
    owner_keys: list[str] = field(default_factory=list)
    sets: list[tuple[str, str]] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)


class Scan:
    """One examination of the keys under a prefix. Writes nothing."""

    def __init__(
        self, keyspace: KeyspaceReader, keys: Keys, bounds: Bounds, *, recheck_seconds: float = RECHECK_SECONDS
    ) -> None:
        self.looks = Looks(keyspace, keys)
        self._keyspace = keyspace
        self._keys = keys
        self.bounds = bounds
        """Known in full when `run` or `confirm` has begun: with the retentions that living owners show."""
        self._living: dict[str, int] = {}
        """Living owners and their retentions."""
        self._recheck_seconds = recheck_seconds
        self._names = _Classifier(keys)
        self._counts = Counts()

    async def run(self) -> ScanResult:
        """Look at everything, and at what is suspicious once more.

        Raises:
            StoreUnavailableError: the store did not answer all of it.
        """
        first: dict[tuple[str, str, str], Finding] = {}
        await self._see_owners()
        for server in await self._keyspace.servers():
            await self._walk(server, lambda found: first.update((item.place, item) for item in found))
        counts = replace(self._counts, suspicions=len(first))
        if first:
            await trio.sleep(self._recheck_seconds)
        found = await self.confirm(first.values())
        found = refuse_doubtful(sorted(found, key=lambda item: item.place), self.bounds)
        return ScanResult(found, counts)

    async def confirm(self, findings: Iterable[Finding]) -> list[Finding]:
        """Look again at what these findings are about; those of them that are found again, as they are now."""
        wanted = {item.place: item for item in findings}
        if not wanted:
            return []
        await self._see_owners()
        again: dict[tuple[str, str, str], Finding] = {}

        def note(found: Iterable[Finding]) -> None:
            again.update((item.place, item) for item in found if item.place in wanted)

        by_kind: dict[str, list[Finding]] = {}
        for item in wanted.values():
            by_kind.setdefault(item.kind, []).append(item)
        await self._each(by_kind.get("run", ()), RUNS_AT_ONCE, self._runs, note)
        await self._each(by_kind.get("key", ()), KEYS_AT_ONCE, self._owner_keys, note)
        await self._each(by_kind.get("claim", ()), KEYS_AT_ONCE, self._claims, note)
        await self._still_members(by_kind.get("member", ()), note)
        return list(again.values())

    async def _see_owners(self) -> None:
        seen = await self.looks.owners()
        kept = {owner: kept_by(*facts, self.bounds) for owner, facts in seen.items()}
        self._living = {owner: seconds for owner, seconds in kept.items() if seconds is not None}
        self.bounds = replace(self.bounds, in_use=frozenset(self._living.values()))

    async def _still_members(self, findings: Sequence[Finding], note: Callable[[Iterable[Finding]], None]) -> None:
        by_set: dict[tuple[str, str], list[str]] = {}
        for item in findings:
            by_set.setdefault((item.owner, item.key), []).append(item.subject)
        for (owner_id, set_key), run_ids in by_set.items():
            for part in _parts(run_ids, KEYS_AT_ONCE):
                (has,) = await self.looks.are_members([set_key], part)
                left = [run_id for run_id, has_it in zip(part, has, strict=True) if has_it]
                if left:
                    note(await self._members(owner_id, set_key, left))

    async def _each(
        self,
        findings: Sequence[Finding],
        size: int,
        look: Callable[[Sequence[str]], Awaitable[list[Finding]]],
        note: Callable[[Iterable[Finding]], None],
    ) -> None:
        for part in _parts(dict.fromkeys(item.subject for item in findings), size):
            note(await look(part))

    async def _walk(self, server: Executor, note: Callable[[Iterable[Finding]], None]) -> None:
        cursor = b""
        while cursor != b"0":
            cursor, keys = await scan_page(server, cursor or b"0", pattern_of(self._keys.prefix))
            self._counts.keys += len(keys)
            await self._examine(self._names.sort(keys), note)

    async def _examine(self, names: _Names, note: Callable[[Iterable[Finding]], None]) -> None:
        self._counts.runs += len(names.records)
        self._counts.owners += len(names.sets)
        self._counts.claims += len(names.claims)
        for part in _parts(names.records, RUNS_AT_ONCE):
            note(await self._runs(part))
        for part in _parts(await self._without_record(names), RUNS_AT_ONCE):
            note(await self._runs(part))
        for part in _parts(names.owner_keys, KEYS_AT_ONCE):
            note(await self._owner_keys(part))
        for part in _parts(names.claims, KEYS_AT_ONCE):
            note(await self._claims(part))
        for owner_id, set_key in names.sets:
            await self._owned(owner_id, set_key, note)

    async def _without_record(self, names: _Names) -> list[str]:
        """Runs of which the page had other keys and that have no record: no page will bring it."""
        unseen = list(dict.fromkeys(names.others).keys() - set(names.records))
        found = []
        for part in _parts(unseen, KEYS_AT_ONCE):
            present = await self.looks.present([self._keys.record(run_id) for run_id in part])
            found += [run_id for run_id, has_record in zip(part, present, strict=True) if not has_record]
        return found

    async def _runs(self, run_ids: Sequence[str]) -> list[Finding]:
        looked = await self.looks.runs(run_ids)
        self._counts.events += sum(facts.log.length for facts in looked)
        return [finding for facts in looked for finding in check_run(facts, self.bounds)]

    async def _owner_keys(self, names: Sequence[str]) -> list[Finding]:
        found: list[Finding] = []
        for name, facts in zip(names, await self.looks.keys(names), strict=True):
            owner = self._names.owner_of(name)
            renewed = owner in self._living if owner else bool(self._living)
            found += check_ttl("key", name, name, facts, self.bounds, renewed=renewed)
            found += self._owner_type(name, facts)
            if owner in self._living and name == self._keys.seen(owner):
                found += check_retention(name, self._living[owner], self.bounds)
        return found

    def _owner_type(self, name: str, facts: KeyFacts) -> Iterator[Finding]:
        wanted = "set" if name == self._keys.owners else _OWNER_TYPES[name.rpartition(":")[2]]
        if facts.exists and facts.type != wanted:
            yield Finding(WRONG_TYPE, "key", name, name, f"type {facts.type}", repairable=False)

    async def _claims(self, names: Sequence[str]) -> list[Finding]:
        return [finding for facts in await self.looks.claims(names) for finding in check_claim(facts, self.bounds)]

    async def _owned(self, owner_id: str, set_key: str, note: Callable[[Iterable[Finding]], None]) -> None:
        cursor = b""
        while cursor != b"0":
            cursor, members = await self.looks.members(set_key, cursor or b"0")
            for part in _parts(members, KEYS_AT_ONCE):
                note(await self._members(owner_id, set_key, part))

    async def _members(self, owner_id: str, set_key: str, run_ids: Sequence[str]) -> list[Finding]:
        has_record = await self.looks.present([self._keys.record(run_id) for run_id in run_ids])
        alive, seen = await self.looks.present([self._keys.alive(owner_id), self._keys.seen(owner_id)])
        found: list[Finding] = []
        for run_id, has_it in zip(run_ids, has_record, strict=True):
            found += check_member(owner_id, set_key, run_id, has_record=has_it, alive=alive, seen=seen)
        return found


class _Classifier:
    """Tells key names apart. Names of other programs under the prefix are left out."""

    def __init__(self, keys: Keys) -> None:
        prefix = re.escape(keys.prefix)
        self._owners = keys.owners
        self._run = re.compile(rf"{prefix}:runs:\{{(.+)\}}:(record|events|owner|cancel-intent)", re.DOTALL)
        self._owner = re.compile(rf"{prefix}:owners:\{{(.+)\}}:(alive|seen|runs|inbox|doorbell)", re.DOTALL)
        self._claim = re.compile(rf"{prefix}:idempotency:\{{.+\}}", re.DOTALL)

    def owner_of(self, key: str) -> str:
        """Whose key it is; empty for the list of all owners."""
        owner = self._owner.fullmatch(key)
        return owner[1] if owner else ""

    def sort(self, keys: Sequence[str]) -> _Names:
        names = _Names()
        for key in dict.fromkeys(keys):
            if run := self._run.fullmatch(key):
                (names.records if run[2] == "record" else names.others).append(run[1])
            elif owner := self._owner.fullmatch(key):
                names.owner_keys.append(key)
                if owner[2] == "runs":
                    names.sets.append((owner[1], key))
            elif key == self._owners:
                names.owner_keys.append(key)
            elif self._claim.fullmatch(key):
                names.claims.append(key)
        return names


def _parts(items: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
