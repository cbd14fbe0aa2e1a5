"""The defined repairs. Each looks again first, and what it writes is guarded by the server or harmless to repeat.

None of them deletes an event, ends a run, shortens a TTL, or touches a run that somebody executes: a run that nobody
would judge is handed to the reapers, which give their verdict under their own rule.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import structlog
from pydantic import ValidationError
from pydantic_core import from_json

from dify_agent.doctor import rules
from dify_agent.doctor.checks import Finding, ends_clearly, is_lease
from dify_agent.doctor.facts import TERMINAL_STATUS, RunFacts
from dify_agent.doctor.keyspace import KeyspaceReader
from dify_agent.doctor.looks import Looks
from dify_agent.doctor.scan import Scan
from dify_agent.doctor.scripts import ADOPT, DROP_INTENT, DROP_MEMBER, REWRITE_RECORD, ReadOnlyCall
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.executor import Call, Command, Reply
from dify_agent.store.keys import Keys

NOBODY: Final = "doctor"
"""An owner that never lived, for runs that have none: reapers find it without a lease and judge what it has."""

_ORDER: Final = (rules.TTL_MISSING, rules.TTL_DRIFT)
"""TTLs are levelled last, to what the others have made of them."""

_log = structlog.get_logger()


class Repairs:
    """Mends what can be mended of what ``scan`` has found.

    Every method raises `StoreUnavailableError` when the store does not answer; what was done before stands.
    """

    def __init__(self, keyspace: KeyspaceReader, keys: Keys, scan: Scan) -> None:
        self._keyspace = keyspace
        self._keys = keys
        self._scan = scan
        self._looks = Looks(keyspace, keys)
        self._repairs: dict[str, Callable[[Finding], Awaitable[None]]] = {
            rules.RECORD_RUNNING.id: self._rewrite_record,
            rules.STATUS_MISMATCH.id: self._rewrite_record,
            rules.INTENT_WITHOUT_RUN.id: self._drop_intent,
            rules.INTENT_AFTER_END.id: self._drop_intent,
            rules.OWNER_MISSING.id: self._adopt,
            rules.OWNER_LOST.id: self._enlist,
            rules.OWNER_UNLISTED.id: self._enlist,
            rules.SET_DANGLING.id: self._drop_member,
            rules.TTL_MISSING.id: self._give_ttl,
            rules.TTL_DRIFT.id: self._level_ttls,
        }

    async def apply(self, findings: Sequence[Finding]) -> list[Finding]:
        """Repair what is repairable, then look again; returns the findings that are gone."""
        mended = [item for item in findings if item.repairable]
        for item in sorted(mended, key=lambda item: _ORDER.index(item.rule) if item.rule in _ORDER else -1):
            await self._repairs[item.rule.id](item)
        left = {item.place for item in await self._scan.confirm(mended)}
        return [item for item in mended if item.place not in left]

    async def _give_ttl(self, finding: Finding) -> None:
        # A living owner renews its lease at once and for its own time.
        bounds = self._scan.bounds
        seconds = max(1, round(bounds.lease)) if is_lease(finding) else bounds.kept
        await self._send(Command(b"EXPIRE", (finding.key, seconds, "NX")))
        await self._level_ttls(finding)

    async def _level_ttls(self, finding: Finding) -> None:
        """To the longest of the run's, also where that is too long: whatever is kept of a run is kept as a whole."""
        if finding.kind != "run":
            return
        facts = await self._run(finding)
        longest = max(found.ttl_ms for found in facts.keys.values())
        if longest > 0:
            await self._send(*(Command(b"PEXPIRE", (key, longest, "GT")) for key in facts.keys))

    async def _drop_intent(self, finding: Finding) -> None:
        await self._send(Call(DROP_INTENT, self._keys.run(finding.subject), ()))

    async def _drop_member(self, finding: Finding) -> None:
        """Only of an owner that cannot create the run any more.

        One that is frozen, or whose lease lapsed in an outage, may write the record at any time after its entry, and
        would be named by nobody. Reapers leave such entries alone for the same reason.
        """
        (has_record,) = await self._looks.present([self._keys.record(finding.subject)])
        if not has_record:
            owner_keys = (self._keys.alive(finding.owner), self._keys.seen(finding.owner), finding.key)
            await self._send(Call(DROP_MEMBER, owner_keys, (finding.subject,)))

    async def _enlist(self, finding: Finding) -> None:
        """Harmless to an owner that lives: with its next heartbeats it would write the same."""
        facts = await self._run(finding)
        record, owner = facts.record, facts.owner_of_record
        if record is not None and record.status == "running" and owner is not None:
            await self._put_into_set(owner.id, facts.run_id)

    async def _adopt(self, finding: Finding) -> None:
        facts = await self._run(finding)
        record = facts.record
        if record is None or record.status != "running":
            return
        arguments = (facts.record_text or b"", self._scan.bounds.untouched_ms)
        (alone,) = await self._send(ReadOnlyCall(ADOPT, self._keys.run(facts.run_id), arguments))
        if alone == 1:
            await self._put_into_set(NOBODY, facts.run_id)

    async def _put_into_set(self, owner_id: str, run_id: str) -> None:
        # The set first: a reaper takes an owner whose set is empty out of the list.
        sets = (self._keys.runs(owner_id), run_id), (self._keys.owners, owner_id)
        for key, member in sets:
            ttl = (Command(b"EXPIRE", (key, self._scan.bounds.kept, only)) for only in ("NX", "GT"))
            await self._send(Command(b"SADD", (key, member)), *ttl)

    async def _rewrite_record(self, finding: Finding) -> None:
        facts = await self._run(finding)
        record, log = facts.record, facts.log
        if record is None or not ends_clearly(log):
            return
        event_id, kind = log.terminals[0]
        if record.status == TERMINAL_STATUS[kind]:
            return
        payload = await self._payload(facts, str(event_id))
        ended = None if payload is None else _ended(record, kind, payload)
        if ended is None:
            _log.warning("terminal event cannot be read as a record, left alone", run_id=facts.run_id)
            return
        arguments = (facts.record_text or b"", ended.model_dump_json(), str(event_id))
        await self._send(Call(REWRITE_RECORD, self._keys.run(facts.run_id), arguments))

    async def _payload(self, facts: RunFacts, event_id: str) -> bytes | None:
        key = self._keys.events(facts.run_id)
        (entries,) = await self._send(Command(b"XRANGE", (key, event_id, event_id)))
        return next((fields[1] for _, fields in cast("list[Any]", entries)), None)

    async def _run(self, finding: Finding) -> RunFacts:
        (facts,) = await self._looks.runs([finding.subject])
        return facts

    async def _send(self, *items: Command | Call) -> list[Reply]:
        replies = await self._keyspace.ask(items, in_order=True)
        for item, reply in zip(items, replies, strict=True):
            if isinstance(reply, Exception):
                _log.error("repair refused by the store", key=item.key, cause=str(reply))
        return replies


def _ended(record: RunStatusResponse, kind: str, payload: bytes) -> RunStatusResponse | None:
    """The record as the script that wrote this event would have written it, None when it cannot be told."""
    try:
        event = from_json(payload)
        data = event["data"]
        members = {"error": None, "error_type": None}
        if kind == "run_failed":
            members = {"error": data["error"], "error_type": data.get("error_type")}
        elif kind == "run_cancelled":
            members["error"] = data.get("message") or data.get("reason")
        return RunStatusResponse.model_validate(
            {
                "run_id": record.run_id,
                "status": TERMINAL_STATUS[kind],
                "created_at": record.created_at,
                "updated_at": event["created_at"],
                **members,
            }
        )
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError):
        return None
