"""A scan's result as text for people and as JSON for machines."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from dify_agent.doctor.checks import Bounds, Finding
from dify_agent.doctor.rules import RULES
from dify_agent.doctor.scan import ScanResult
from dify_agent.store.advice import EVICTION, NO_EVICTION

NOTHING_THERE: Final = (
    "nothing under this prefix: is DIFY_AGENT_REDIS_PREFIX that of the replicas? Is DIFY_AGENT_REDIS_URL their store?"
)


@dataclass(frozen=True, slots=True)
class Examined:
    """What was looked at."""

    store: str
    """Its URL, without a login."""
    prefix: str
    bounds: Bounds
    maxmemory_policy: str | None = None
    """By which the server deletes keys when its memory is full; None: it does not, or does not say."""


def as_json(examined: Examined, result: ScanResult, repaired: Collection[Finding]) -> str:
    """One object: what was looked at, ``notes``, ``counts``, ``findings``, ``remaining``."""
    return json.dumps(
        {
            "store": examined.store,
            "prefix": examined.prefix,
            "retention_seconds": examined.bounds.retention,
            "lease_seconds": examined.bounds.lease,
            "notes": list(_notes(examined, result)),
            "counts": asdict(result.counts),
            "remaining": len(result.findings) - len(repaired),
            "findings": [_members(item, item in repaired) for item in result.findings],
        }
    )


def _notes(examined: Examined, result: ScanResult) -> Iterator[str]:
    """What an operator should know and what is no broken rule."""
    if examined.maxmemory_policy is not None:
        yield f"{EVICTION} (maxmemory-policy {examined.maxmemory_policy}): {NO_EVICTION}"
    if not result.counts.keys:
        yield NOTHING_THERE


def _members(item: Finding, repaired: bool) -> dict[str, Any]:
    return {
        "rule": item.rule.id,
        "severity": item.rule.severity,
        "run_id": item.subject if item.kind in ("run", "member") else None,
        "key": item.key,
        "detail": item.detail,
        "meaning": item.rule.meaning,
        "advice": item.rule.advice,
        "repairable": item.repairable,
        "repaired": repaired,
    }


def as_text(examined: Examined, result: ScanResult, repaired: Collection[Finding]) -> str:
    """What was looked at, a line per finding, then what each broken rule means and what to do, then the sum."""
    return "\n".join(_lines(examined, result, repaired))


def _lines(examined: Examined, result: ScanResult, repaired: Collection[Finding]) -> Iterator[str]:
    bounds = examined.bounds
    where = f"store {_plain(examined.store)}, prefix {_plain(examined.prefix)}"
    yield f"{where}, retention {bounds.retention} s, lease {bounds.lease:g} s"
    yield from (f"note: {note}" for note in _notes(examined, result))
    for item in result.findings:
        mark = "repaired" if item in repaired else item.rule.severity
        yield f"{mark:<8} {item.rule.id:<20} {_plain(item.key)}: {_plain(item.detail)}"
    left = [item for item in result.findings if item not in repaired]
    for rule_id, number in sorted(Counter(item.rule.id for item in left).items()):
        rule = RULES[rule_id]
        repairable = sum(item.repairable for item in left if item.rule is rule)
        yield f"\n{rule_id} ({number}): {rule.meaning}"
        yield f"  {rule.advice}"
        if repairable:
            yield f"  --repair ({repairable}): {rule.repair}."
    counts = result.counts
    seen = f"{counts.runs} runs, {counts.events} events, {counts.owners} owners, {counts.claims} claims"
    sum_ = _sum(len(left), len(repaired)) if counts.keys else "nothing to examine"
    yield f"{chr(10) if result.findings else ''}{seen}: {sum_}"


def _sum(left: int, repaired: int) -> str:
    if not left and not repaired:
        return "no broken rule"
    return f"{left} findings" + (f", {repaired} repaired" if repaired else "")


def _plain(text: str) -> str:
    """Without what a terminal would act on: key names may come from other programs."""
    return text if text.isprintable() else ascii(text)
