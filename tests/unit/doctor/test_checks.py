"""The rules as functions: a table of facts and what is to be found in them."""

from dataclasses import replace
from typing import Any

import pytest

from dify_agent.doctor.checks import CLAIM_SECONDS, DRIFT_MS, Bounds, check_claim, check_member, check_run
from dify_agent.doctor.facts import NO_KEY, NO_TTL, ClaimFacts, Entry, KeyFacts, LogFacts, OwnerView, RunFacts
from dify_agent.protocol.event_id import EventId

BOUNDS = Bounds(retention=600, lease=15)
TTL = 590_000
HEALTHY = OwnerView(alive=True, listed=True, has_run=True)
KEYS = ("record", "events", "owner", "cancel-intent")


def entry(n: int, kind: str = "pydantic_ai_event", *, run: str = "r", ms: int = 5) -> Entry:
    text = f'{{"run_id":"{run}","created_at":"x","type":"{kind}","data":{{}}}}'.encode()
    return Entry(EventId(ms, n), len(text), text)


def log(*entries: Entry, added: int | None = -1, max_deleted: int = 0) -> LogFacts:
    """A log of these entries. ``added`` is by default what an untrimmed or trimmed log would have."""
    facts = LogFacts("r", max_deleted=EventId(5 if max_deleted else 0, max_deleted))
    for item in entries:
        facts.add(item)
    facts.length = len(entries)
    facts.last_generated = facts.top or EventId(0, 0)
    facts.added = (facts.top.n if facts.top else 0) if added == -1 else added
    return facts


def ended_log(kind: str = "run_succeeded") -> LogFacts:
    return log(entry(1), entry(2), entry(3, kind))


def record(status: str = "running", run: str = "r") -> bytes:
    created = "2026-11-30T09:00:00Z"
    return (
        f'{{"run_id":"{run}","status":"{status}","created_at":"{created}","updated_at":"{created}",'
        f'"error":null,"error_type":null}}'
    ).encode()


def run(status: str | None = "running", events: LogFacts | None = None, **changes: Any) -> RunFacts:
    """A healthy run, changed."""
    types = dict(zip(KEYS, ("string", "stream", "string", "none"), strict=True))
    keys = {name: KeyFacts(type_, TTL if type_ != "none" else NO_KEY) for name, type_ in types.items()}
    healthy = RunFacts(
        "r",
        keys,
        record_text=None if status is None else record(status),
        owner_text=b"7:replica",
        intents=0,
        log=events or log(entry(1), entry(2)),
        owner=HEALTHY if status == "running" else None,
    )
    return replace(healthy, **changes)


def keys(**changed: KeyFacts) -> dict[str, KeyFacts]:
    found = dict(run().keys)
    return found | {name.replace("_", "-"): facts for name, facts in changed.items()}


def ttl_of(name: str, ttl_ms: int) -> dict[str, KeyFacts]:
    return keys(**{name: replace(run().keys[name], ttl_ms=ttl_ms)})


INTENT = keys(cancel_intent=KeyFacts("stream", TTL))
NO_OWNER = keys(owner=KeyFacts("none", NO_KEY))
OLD = {name: replace(facts, ttl_ms=min(facts.ttl_ms, 250_000)) for name, facts in NO_OWNER.items()}

FACTS: dict[str, tuple[RunFacts, list[str]]] = {
    "healthy": (run(), []),
    "just created": (run(events=log()), []),
    "ended": (run("succeeded", ended_log()), []),
    "gone": (
        run(
            None,
            log(),
            keys=dict.fromkeys(KEYS, KeyFacts("none", NO_KEY)),
            owner_text=None,
        ),
        [],
    ),
    "a waiting cancel": (run(keys=INTENT, intents=1), []),
    "trimmed": (run(events=log(entry(101), entry(102))), []),
    "trimmed, and an event inside deleted": (
        run(events=log(entry(101), entry(103), added=103, max_deleted=102)),
        ["ordinal-gap"],
    ),
    "trimmed, server does not count": (run(events=log(entry(101), added=None)), []),
    "first deleted by name": (run(events=log(entry(2), entry(3), max_deleted=1)), ["front-missing"]),
    "never added": (run(events=log(entry(101), entry(102), added=2)), ["front-missing"]),
    "hole lost by a failover, front trimmed": (
        run(events=log(entry(11), entry(12), entry(15), added=13)),
        ["ordinal-gap"],
    ),
    "hole, and more of the front missing than was removed": (
        run(events=log(entry(11), entry(12), entry(15), added=12)),
        ["front-missing", "ordinal-gap"],
    ),
    "emptied": (run(events=log(added=3)), ["front-missing"]),
    "ordinal 0": (run(events=log(entry(0), entry(1))), ["ordinal-order"]),
    "ordinal twice": (run(events=log(entry(1), entry(1, ms=6), entry(2, ms=6), added=3)), ["ordinal-order"]),
    "ordinal descends": (run(events=log(entry(1), entry(2), entry(1, ms=6), added=3)), ["ordinal-order"]),
    "tail deleted": (
        run(events=replace(log(entry(1), entry(2)), last_generated=EventId(5, 3))),
        ["ordinal-gap"],
    ),
    "two terminals": (
        run("failed", log(entry(1, "run_failed"), entry(2, "run_failed"))),
        ["two-terminals"],
    ),
    "two terminals and more": (
        run("failed", log(entry(1, "run_failed"), entry(2), entry(3, "run_failed"))),
        ["event-after-terminal", "two-terminals"],
    ),
    "behind the terminal": (run("failed", log(entry(1, "run_failed"), entry(2))), ["event-after-terminal"]),
    "running, ended": (run("running", ended_log()), ["record-running"]),
    "running, ended, owner lost": (
        run("running", ended_log(), owner=OwnerView(False, False, False)),
        ["record-running"],
    ),
    "other status": (run("failed", ended_log()), ["status-mismatch"]),
    "no terminal": (run("cancelled"), ["terminal-missing"]),
    "no log": (run("cancelled", log()), ["terminal-missing"]),
    "unreadable record": (run(record_text=b"{}"), ["record-unreadable"]),
    "other run's record": (run(record_text=record(run="s")), ["record-unreadable"]),
    "no record": (run(None), ["log-without-record"]),
    "intent alone": (
        run(None, log(), keys={**dict.fromkeys(KEYS, KeyFacts("none", NO_KEY)), KEYS[3]: INTENT[KEYS[3]]}, intents=1),
        ["intent-without-run"],
    ),
    "intent of an ended run": (run("succeeded", ended_log(), keys=INTENT, intents=1), ["intent-after-end"]),
    "other run's event": (run(events=log(entry(1), entry(2, run="s"))), ["payload-foreign"]),
    "other field": (run(events=log(entry(1), Entry(EventId(5, 2), -1, b""))), ["payload-unreadable"]),
    "head of a long event": (
        run(events=log(entry(1), Entry(EventId(5, 2), 99_999, b'{"run_id":"r","created_at":"x","type":"y","da'))),
        [],
    ),
    "head of something long": (run(events=log(Entry(EventId(5, 1), 99_999, b'{"a":'))), ["payload-unreadable"]),
    "cut head": (run(events=log(Entry(EventId(5, 1), 99_999, b'{"run_id":"r","ty'))), ["payload-unreadable"]),
    "members of other types": (
        run(events=log(Entry(EventId(5, 1), 23, b'{"run_id":"r","type":1}'))),
        ["payload-unreadable"],
    ),
    "no owner": (run(keys=NO_OWNER, owner_text=None, owner=None), ["owner-missing"]),
    "no owner, but about to be judged": (
        run(keys=NO_OWNER, owner_text=None, owner=None, lost_owner_names_it=True),
        [],
    ),
    "unreadable owner": (run(owner_text=b"x:y", owner=None), ["owner-unreadable"]),
    "owner with other digits": (run(owner_text="٣:y".encode(), owner=None), ["owner-unreadable"]),
    "owner lost": (run(owner=OwnerView(False, False, True)), ["owner-lost"]),
    "owner about to be judged": (run(owner=OwnerView(False, True, True)), []),
    "owner lives unlisted": (run(owner=OwnerView(True, False, True)), []),
    "not in the set": (run(owner=OwnerView(True, True, False)), ["owner-unlisted"]),
    "not in the lost owner's set": (run(owner=OwnerView(False, True, False)), ["owner-unlisted"]),
    "no TTL": (run(keys=ttl_of("events", NO_TTL)), ["ttl-missing"]),
    "TTLs nearly equal": (run(keys=ttl_of("events", TTL - DRIFT_MS)), []),
    "TTLs apart": (run(keys=ttl_of("events", TTL - DRIFT_MS - 1)), ["ttl-drift"]),
    "TTL of the retention": (run(keys=ttl_of("owner", 601_000 - 6_000)), []),
    "TTL too long": (
        run(
            keys={name: replace(facts, ttl_ms=601_001) if facts.exists else facts for name, facts in run().keys.items()}
        ),
        ["ttl-too-long"] * 3,
    ),
    "other type": (run(None, keys=keys(record=KeyFacts("list", TTL))), ["wrong-type"]),
}


@pytest.mark.parametrize(("facts", "expected"), FACTS.values(), ids=FACTS)
def test_facts_and_findings(facts: RunFacts, expected: list[str]) -> None:
    assert sorted(item.rule.id for item in check_run(facts, BOUNDS)) == expected


@pytest.mark.parametrize(
    ("facts", "repairable"),
    [
        (run("running", ended_log()), True),
        (run("running", log(entry(1, "run_failed"), entry(2))), False),
        (run("running", log(entry(1, "run_failed"), entry(2, "run_failed"))), False),
        (run("running", log(entry(1), entry(2, "run_failed", run="s"))), False),
        (run("failed", ended_log()), True),
        (run(keys=NO_OWNER, owner_text=None, owner=None), False),
        (run(keys=OLD, owner_text=None, owner=None), True),
    ],
)
def test_what_is_not_clear_is_not_repaired(facts: RunFacts, repairable: bool) -> None:
    rules = ("record-running", "status-mismatch", "owner-missing")
    found = [item.repairable for item in check_run(facts, BOUNDS) if item.rule.id in rules]
    assert found == [repairable]


def test_only_rules_with_a_repair_are_repairable() -> None:
    found = [item for facts, _ in FACTS.values() for item in check_run(facts, BOUNDS)]
    assert not any(item.repairable and item.rule.repair is None for item in found)


@pytest.mark.parametrize(
    ("text", "age", "has_run", "expected"),
    [
        (b"r:d:h", CLAIM_SECONDS + 1, True, []),
        (b"r:d:h", CLAIM_SECONDS - 1, False, []),
        (b"r:d:h", CLAIM_SECONDS + 1, False, ["claim-without-run"]),
        (b"r:d", 1, False, ["claim-unreadable"]),
        (b":d:h", 1, False, ["claim-unreadable"]),
        (None, 1, False, ["claim-unreadable"]),
    ],
)
def test_claims(text: bytes | None, age: float, has_run: bool, expected: list[str]) -> None:
    key = KeyFacts("string" if text else "list", round((BOUNDS.retention - age) * 1000))
    found = check_claim(ClaimFacts("name", key, text, has_run), BOUNDS)
    assert [item.rule.id for item in found] == expected
    assert not any(item.repairable for item in found)


def test_a_claim_that_has_gone_is_none() -> None:
    assert check_claim(ClaimFacts("name", KeyFacts("none", NO_KEY), None, has_run=False), BOUNDS) == []


@pytest.mark.parametrize(
    ("has_record", "alive", "seen", "expected"),
    [
        (True, False, False, []),
        (False, False, False, [True]),
        (False, False, True, [False]),
        (False, True, True, [False]),
        (False, True, False, [False]),
    ],
)
def test_members(has_record: bool, alive: bool, seen: bool, expected: list[bool]) -> None:
    found = check_member("o", "set", "r", has_record=has_record, alive=alive, seen=seen)
    assert [item.repairable for item in found] == expected


def test_examples_are_few_and_the_rest_is_counted() -> None:
    facts = run(events=log(*(entry(n) for n in range(1, 20, 2))))
    (finding,) = check_run(facts, BOUNDS)
    assert finding.detail == "5-1 then 5-3, 5-3 then 5-5, 5-5 then 5-7 and 6 more"
