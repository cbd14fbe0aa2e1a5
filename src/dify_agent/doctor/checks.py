"""The rules as pure functions: facts in, findings out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from dify_agent.doctor import rules
from dify_agent.doctor.facts import NO_TTL, TERMINAL_STATUS, ClaimFacts, KeyFacts, LogFacts, RunFacts
from dify_agent.doctor.rules import Rule
from dify_agent.protocol.event_id import START
from dify_agent.protocol.schemas import RunStatusResponse

DRIFT_MS: Final = 5_000
"""How far the TTLs of one run may differ. Every script sets all of them at once, so healthy ones do not differ."""
ROUNDING_MS: Final = 1_000
CLAIM_SECONDS: Final = 60.0
"""How long a claim may be without a record. A repeat takes it over after five seconds; a slow store takes longer."""

_TYPES: Final = ("string", "stream", "string", "stream")

Kind = Literal["run", "key", "member", "claim"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rules depend on, in seconds."""

    retention: int
    """As the command was told, like the lease."""
    lease: float
    in_use: frozenset[int] = frozenset()
    """Retentions by which living owners keep what they write."""

    @property
    def kept(self) -> int:
        """How long keys are kept: what living owners show, else what the command was told."""
        return max(self.in_use, default=self.retention)

    @property
    def untouched_ms(self) -> int:
        """A TTL that no living owner lets a running run's record fall to: it renews it every third of the retention."""
        return min(self.in_use, default=self.retention) * 500


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule and where."""

    rule: Rule
    kind: Kind
    subject: str
    """Run id; for kind ``key`` and ``claim`` the key's name."""
    key: str
    detail: str
    """What was seen. Never a part of a payload."""
    repairable: bool
    owner: str = ""
    """For kind ``member``: whose set."""

    @property
    def place(self) -> tuple[str, str, str]:
        """What makes it the same finding in another look."""
        return self.rule.id, self.subject, self.key


def check_run(facts: RunFacts, bounds: Bounds) -> list[Finding]:
    """All broken rules of one run; empty for a run that is gone."""
    return list(_check_run(facts, bounds))


def _check_run(facts: RunFacts, bounds: Bounds) -> Iterator[Finding]:
    for key, found in facts.keys.items():
        yield from check_ttl("run", facts.run_id, key, found, bounds)
    yield from _check_drift(facts)
    odd = [
        (key, found.type)
        for (key, found), type_ in zip(facts.keys.items(), _TYPES, strict=True)
        if found.exists and found.type != type_
    ]
    for key, type_ in odd:
        yield _of_run(facts, rules.WRONG_TYPE, key, f"type {type_}")
    if odd:
        return  # the rest would be guesses
    yield from _check_log(facts)
    yield from _check_record(facts, bounds)


def check_ttl(
    kind: Kind, subject: str, key: str, found: KeyFacts, bounds: Bounds, *, renewed: bool = False
) -> Iterator[Finding]:
    """A TTL that is missing or longer than the retention; the latter is nothing to a key that its owner renews."""
    if not found.exists:
        return
    if found.ttl_ms == NO_TTL:
        yield Finding(rules.TTL_MISSING, kind, subject, key, "no TTL", repairable=True)
    elif found.ttl_ms > bounds.kept * 1000 + ROUNDING_MS and not renewed:
        detail = f"TTL {found.ttl_ms / 1000:.0f} s, retention {bounds.kept} s"
        yield Finding(rules.TTL_TOO_LONG, kind, subject, key, detail, repairable=False)


def kept_by(seen: KeyFacts, alive: KeyFacts, bounds: Bounds) -> int | None:
    """The retention in seconds by which an owner keeps what it writes, None for one that is not known to live.

    A heartbeat gives ``seen`` the retention and ``alive`` the lease; by the rest of the lease one knows how long ago.
    What a lease of another length could explain is no difference.
    """
    if alive.ttl_ms < 0 or seen.ttl_ms < 0:
        return None
    told_ms, lease_ms = bounds.retention * 1000, bounds.lease * 1000
    if -ROUNDING_MS <= told_ms - seen.ttl_ms <= 2 * lease_ms + told_ms / 100:
        return bounds.retention
    return round((seen.ttl_ms + max(0.0, lease_ms - alive.ttl_ms)) / 1000)


def check_retention(key: str, kept: int, bounds: Bounds) -> Iterator[Finding]:
    """A living owner's retention, which its ``seen`` key shows."""
    if kept != bounds.retention:
        yield Finding(rules.RETENTION_DIFFERS, "key", key, key, _told_another(kept, bounds), repairable=False)


def _told_another(kept: int, bounds: Bounds) -> str:
    told = f"this command was told {bounds.retention} s"
    return f"replicas here keep runs for {kept} s, {told}: set DIFY_AGENT_RUN_RETENTION_SECONDS"


def refuse_doubtful(findings: Sequence[Finding], bounds: Bounds) -> list[Finding]:
    """The findings, without those repairs that would rely on a retention which something here speaks against."""
    why = _doubt(findings, bounds)
    if why is None:
        return list(findings)
    return [
        replace(item, repairable=False, detail=f"{item.detail}; not repaired: {why}")
        if item.repairable and _depends_on_retention(item)
        else item
        for item in findings
    ]


def _doubt(findings: Sequence[Finding], bounds: Bounds) -> str | None:
    if others := bounds.in_use - {bounds.retention}:
        return _told_another(max(others), bounds)
    if any(item.rule is rules.TTL_TOO_LONG for item in findings):
        told = f"this command was told {bounds.retention} s"
        return f"keys here are kept for longer, {told}: set DIFY_AGENT_RUN_RETENTION_SECONDS"
    return None


def _depends_on_retention(item: Finding) -> bool:
    if item.rule is rules.TTL_MISSING:
        return not is_lease(item)
    return item.rule is rules.OWNER_MISSING


def is_lease(item: Finding) -> bool:
    """Whether the finding is about an owner's lease."""
    return item.kind == "key" and item.key.endswith(":alive")


def _check_drift(facts: RunFacts) -> Iterator[Finding]:
    ttls = [found.ttl_ms for found in facts.keys.values() if found.ttl_ms >= 0]
    if ttls and max(ttls) - min(ttls) > DRIFT_MS:
        key = min(facts.keys, key=lambda name: _sort_ttl(facts.keys[name]))
        detail = f"TTLs from {min(ttls) / 1000:.0f} s to {max(ttls) / 1000:.0f} s"
        # Not named by the key: which is the shortest may change between two looks.
        yield _of_run(facts, rules.TTL_DRIFT, _key(facts, 0), f"{detail}, shortest: {key.rpartition(':')[2]}")


def _sort_ttl(found: KeyFacts) -> float:
    return found.ttl_ms if found.ttl_ms >= 0 else float("inf")


def _check_log(facts: RunFacts) -> Iterator[Finding]:
    log = facts.log
    for rule, places in (
        (rules.EVENT_AFTER_TERMINAL, log.behind_terminal),
        (rules.ORDINAL_GAP, log.gaps),
        (rules.ORDINAL_ORDER, log.disorder),
        (rules.PAYLOAD_UNREADABLE, log.unreadable),
        (rules.PAYLOAD_FOREIGN, log.foreign),
    ):
        if places.count:
            yield _of_log(facts, rule, str(places))
    if log.terminal_count > 1:
        seen = ", ".join(f"{event_id} {kind}" for event_id, kind in log.terminals)
        yield _of_log(facts, rules.TWO_TERMINALS, seen)
    if not log.gaps.count and log.last_generated > (log.top or START) and log.length:
        yield _of_log(facts, rules.ORDINAL_GAP, f"last id {log.last_generated}, newest event {log.top}")
    if (missing := _missing_front(log)) is not None:
        yield _of_log(facts, rules.FRONT_MISSING, missing)


def _missing_front(log: LogFacts) -> str | None:
    """Events missing at the front that trimming does not explain.

    Each trimmed entry was added once, so at least as many were removed as are missing; and whatever is deleted by name
    is noted as such by the server, which trimming is not.
    """
    if log.added is None:
        return None
    if log.first is None:
        return f"{log.added} events were added, none is left" if log.added else None
    missing, removed = log.first.n - 1, log.added - log.length
    if missing > removed:
        return f"first event {log.first}, only {removed} were ever removed"
    if missing > 0 and START < log.max_deleted < log.first:
        return f"first event {log.first}, {log.max_deleted} was deleted by name"
    return None


def _check_record(facts: RunFacts, bounds: Bounds) -> Iterator[Finding]:
    record_key, _, _, intent_key = facts.keys
    if facts.record_text is None:
        if facts.intents:
            yield _of_run(facts, rules.INTENT_WITHOUT_RUN, intent_key, "no record")
        left = [key for key in list(facts.keys)[1:3] if facts.keys[key].exists]
        if left:
            yield _of_run(facts, rules.LOG_WITHOUT_RECORD, left[0], "no record")
        return
    record = facts.record
    if record is None:
        yield _of_run(facts, rules.RECORD_UNREADABLE, record_key, f"{len(facts.record_text)} bytes")
    elif record.status == "running":
        yield from _check_running(facts, bounds)
    else:
        yield from _check_ended(facts, record)


def _check_running(facts: RunFacts, bounds: Bounds) -> Iterator[Finding]:
    if facts.log.terminal_count:
        detail = f"the log ends with {facts.log.terminals[0][1]}"
        yield _of_run(facts, rules.RECORD_RUNNING, _key(facts, 0), detail, repairable=ends_clearly(facts.log))
        return  # whose it is no longer matters
    yield from _check_owner(facts, bounds)


def _check_owner(facts: RunFacts, bounds: Bounds) -> Iterator[Finding]:
    owner_key, view = _key(facts, 2), facts.owner
    if facts.owner_text is None:
        if not facts.lost_owner_names_it:
            ttl_ms = facts.keys[_key(facts, 0)].ttl_ms
            untouched = 0 <= ttl_ms <= bounds.untouched_ms
            detail = f"last touched {bounds.kept - ttl_ms / 1000:.0f} s ago" if ttl_ms >= 0 else "no owner key"
            yield _of_run(facts, rules.OWNER_MISSING, owner_key, detail, repairable=untouched)
    elif facts.owner_of_record is None:
        yield _of_run(facts, rules.OWNER_UNREADABLE, owner_key, f"{len(facts.owner_text)} bytes")
    elif view is not None and not view.alive and not view.listed:
        yield _of_run(facts, rules.OWNER_LOST, owner_key, f"owner {facts.owner_of_record.id}")
    elif view is not None and not view.has_run:
        yield _of_run(facts, rules.OWNER_UNLISTED, owner_key, f"owner {facts.owner_of_record.id}")


def _check_ended(facts: RunFacts, record: RunStatusResponse) -> Iterator[Finding]:
    record_key, _, _, intent_key = facts.keys
    log = facts.log
    if facts.intents:
        yield _of_run(facts, rules.INTENT_AFTER_END, intent_key, f"status {record.status}")
    if not log.terminal_count:
        yield _of_run(facts, rules.TERMINAL_MISSING, record_key, f"status {record.status}")
    elif record.status != TERMINAL_STATUS[log.terminals[0][1]]:
        detail = f"status {record.status}, the log ends with {log.terminals[0][1]}"
        yield _of_run(facts, rules.STATUS_MISMATCH, record_key, detail, repairable=ends_clearly(log))


def ends_clearly(log: LogFacts) -> bool:
    """Whether the log has one terminal event, of this very run, and nothing behind it."""
    return log.terminal_count == 1 and log.terminals[0][0] == log.top and not log.foreign.count


def check_member(
    owner_id: str, set_key: str, run_id: str, *, has_record: bool, alive: bool, seen: bool
) -> list[Finding]:
    """A run id in an owner's set. While the owner's ``seen`` key is there, it may go on and write the record."""
    if has_record:
        return []
    state = "lives" if alive else "has no lease, but may go on" if seen else "has no lease"
    detail = f"owner {owner_id}, which {state}"
    repairable = not alive and not seen
    return [Finding(rules.SET_DANGLING, "member", run_id, set_key, detail, repairable=repairable, owner=owner_id)]


def check_claim(facts: ClaimFacts, bounds: Bounds) -> list[Finding]:
    """An idempotency key."""
    found = list(check_ttl("claim", facts.name, facts.name, facts.key, bounds))
    if not facts.key.exists:
        return found
    if facts.run_id is None:
        return [*found, _of_claim(facts, rules.CLAIM_UNREADABLE, f"type {facts.key.type}")]
    age = bounds.kept - facts.key.ttl_ms / 1000
    if not facts.has_run and age > CLAIM_SECONDS:
        found.append(_of_claim(facts, rules.CLAIM_WITHOUT_RUN, f"run {facts.run_id}, claimed {age:.0f} s ago"))
    return found


def _of_claim(facts: ClaimFacts, rule: Rule, detail: str) -> Finding:
    return Finding(rule, "claim", facts.name, facts.name, detail, repairable=False)


def _of_log(facts: RunFacts, rule: Rule, detail: str) -> Finding:
    return _of_run(facts, rule, _key(facts, 1), detail)


def _of_run(facts: RunFacts, rule: Rule, key: str, detail: str, *, repairable: bool = True) -> Finding:
    return Finding(rule, "run", facts.run_id, key, detail, repairable=repairable and rule.repair is not None)


def _key(facts: RunFacts, number: int) -> str:
    return list(facts.keys)[number]
