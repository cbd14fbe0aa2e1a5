"""What must be true of every run when the dust has settled. Read by an independent client."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import redis

TERMINALS = {"run_succeeded": "succeeded", "run_failed": "failed", "run_cancelled": "cancelled"}


@dataclass
class Audit:
    """Findings, and a summary of how the runs ended."""

    findings: list[str] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    runs: int = 0


def statuses(witness: redis.Redis, prefix: str) -> dict[str, str]:
    """Every run's status."""
    found = {}
    keys = list(witness.scan_iter(match=f"{prefix}:runs:*:record", count=1000))
    for key, text in zip(keys, witness.mget(keys) if keys else [], strict=True):
        if text is not None:
            found[key.decode().split("{")[1].split("}")[0]] = str(json.loads(text)["status"])
    return found


def audit(witness: redis.Redis, prefix: str, cancelled: set[str], created: list[str]) -> Audit:
    """Look at every run under the prefix, those included whose creation nobody was told of."""
    result = Audit()
    known = statuses(witness, prefix)
    result.runs = len(known)
    result.findings += [f"{run_id}: created, and gone" for run_id in created if run_id not in known]
    for run_id, status in known.items():
        events = [
            (entry.decode(), json.loads(fields[b"payload"]))
            for entry, fields in witness.xrange(f"{prefix}:runs:{{{run_id}}}:events")
        ]
        result.endings[_ending(events)] += 1
        result.findings += [f"{run_id}: {finding}" for finding in _judge(status, events)]
        if run_id in cancelled and status != "cancelled":
            result.findings.append(f"{run_id}: its cancel was accepted, and it {status}")
        if witness.exists(f"{prefix}:runs:{{{run_id}}}:cancel-intent"):
            result.findings.append(f"{run_id}: an intent is left")
    return result


def _ending(events: list[tuple[str, dict[str, Any]]]) -> str:
    if not events:
        return "no event"
    last = events[-1][1]
    reason = last["data"].get("reason")
    return str(last["type"]) + (f" ({reason})" if reason not in (None, "chaos") else "")


def _judge(status: str, events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    findings = []
    kinds = [event["type"] for _, event in events]
    terminals = [kind for kind in kinds if kind in TERMINALS]
    if len(terminals) != 1:
        findings.append(f"{len(terminals)} terminal events")
    elif kinds[-1] not in TERMINALS:
        findings.append("events behind the terminal one")
    elif TERMINALS[terminals[0]] != status:
        findings.append(f"the record says {status}, the log {terminals[0]}")
    if [int(entry.partition("-")[2]) for entry, _ in events] != list(range(1, len(events) + 1)):
        findings.append(f"ordinals {[entry for entry, _ in events]}")
    if kinds.count("run_started") > 1 or (len(kinds) > 1 and kinds[0] != "run_started"):
        findings.append(f"starts with {kinds[:2]}")
    return findings
