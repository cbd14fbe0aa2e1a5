"""What the command prints."""

import json
from dataclasses import replace

import pytest

from dify_agent.doctor import rules
from dify_agent.doctor.checks import Bounds, Finding
from dify_agent.doctor.report import NOTHING_THERE, Examined, as_json, as_text
from dify_agent.doctor.rules import RULES
from dify_agent.doctor.scan import Counts, ScanResult

HOLE = Finding(rules.ORDINAL_GAP, "run", "r", "p:runs:{r}:events", "5-1 then 5-3", repairable=False)
LOST = Finding(rules.OWNER_LOST, "run", "s", "p:runs:{s}:owner", "owner \x1b[2J", repairable=True)
RESULT = ScanResult([HOLE, LOST], Counts(keys=9, runs=2, owners=1, claims=3, events=4, suspicions=2))
EXAMINED = Examined("redis://h:6379/2", "p", Bounds(retention=600, lease=1.5))
WHERE = "store redis://h:6379/2, prefix p, retention 600 s, lease 1.5 s"


def test_nothing_found_is_one_line_besides_what_was_looked_at() -> None:
    result = ScanResult([], Counts(keys=7, runs=2, owners=1))
    assert as_text(EXAMINED, result, []) == f"{WHERE}\n2 runs, 0 events, 1 owners, 0 claims: no broken rule"


def test_nothing_there_is_not_called_healthy() -> None:
    result = ScanResult([], Counts())
    lines = as_text(EXAMINED, result, []).splitlines()
    assert lines == [WHERE, f"note: {NOTHING_THERE}", "0 runs, 0 events, 0 owners, 0 claims: nothing to examine"]
    assert json.loads(as_json(EXAMINED, result, []))["notes"] == [NOTHING_THERE]


@pytest.mark.parametrize("policy", [None, "allkeys-lru"])
def test_a_store_that_evicts_is_told_of(policy: str | None) -> None:
    examined = replace(EXAMINED, maxmemory_policy=policy)
    notes = json.loads(as_json(examined, RESULT, []))["notes"]
    assert [f"note: {note}" for note in notes] == [
        line for line in as_text(examined, RESULT, []).splitlines() if line.startswith("note: ")
    ]
    assert len(notes) == (policy is not None)
    assert all("(maxmemory-policy allkeys-lru): CONFIG SET maxmemory-policy noeviction" in note for note in notes)


def test_text_tells_what_and_why_and_what_to_do() -> None:
    first, *lines = as_text(EXAMINED, RESULT, []).splitlines()
    assert first == WHERE
    assert lines[0] == "error    ordinal-gap          p:runs:{r}:events: 5-1 then 5-3"
    assert lines[1] == r"error    owner-lost           p:runs:{s}:owner: 'owner \x1b[2J'"
    text = "\n".join(lines)
    for rule in (rules.ORDINAL_GAP, rules.OWNER_LOST):
        assert f"{rule.id} (1): {rule.meaning}\n  {rule.advice}" in text
    assert text.count("--repair") == 1
    assert lines[-1] == "2 runs, 4 events, 1 owners, 3 claims: 2 findings"


def test_what_is_repaired_is_said_to_be() -> None:
    _, *lines = as_text(EXAMINED, RESULT, [LOST]).splitlines()
    assert lines[1].startswith("repaired owner-lost")
    assert "--repair" not in "\n".join(lines)
    assert lines[-1].endswith("1 findings, 1 repaired")


def test_json_has_the_same() -> None:
    report = json.loads(as_json(EXAMINED, RESULT, [LOST]))
    assert (report["store"], report["prefix"]) == ("redis://h:6379/2", "p")
    assert (report["retention_seconds"], report["lease_seconds"], report["notes"]) == (600, 1.5, [])
    assert report["counts"] == {"keys": 9, "runs": 2, "owners": 1, "claims": 3, "events": 4, "suspicions": 2}
    assert report["remaining"] == 1
    first, second = report["findings"]
    assert first == {
        "rule": "ordinal-gap",
        "severity": "error",
        "run_id": "r",
        "key": "p:runs:{r}:events",
        "detail": "5-1 then 5-3",
        "meaning": rules.ORDINAL_GAP.meaning,
        "advice": rules.ORDINAL_GAP.advice,
        "repairable": False,
        "repaired": False,
    }
    assert (second["repairable"], second["repaired"]) == (True, True)


def test_rules_are_told_apart_by_id() -> None:
    assert all(rule_id == rule.id for rule_id, rule in RULES.items())
    assert {rule.severity for rule in RULES.values()} == {"error", "warning"}
