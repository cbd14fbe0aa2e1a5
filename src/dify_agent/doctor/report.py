"""A scan's result as text for people and as JSON for machines."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

from dify_agent.doctor.checks import Finding
from dify_agent.doctor.rules import RULES
from dify_agent.doctor.scan import ScanResult


def as_json(result: ScanResult, repaired: Collection[Finding]) -> str:
    """One object: ``counts``, ``findings``, ``remaining``."""
    findings = [_members(item, item in repaired) for item in result.findings]
    remaining = len(result.findings) - len(repaired)
    return json.dumps({"counts": asdict(result.counts), "remaining": remaining, "findings": findings})


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


def as_text(result: ScanResult, repaired: Collection[Finding]) -> str:
    """A line per finding, then what each broken rule means and what to do, then the sum."""
    return "\n".join(_lines(result, repaired))


def _lines(result: ScanResult, repaired: Collection[Finding]) -> Iterator[str]:
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
    yield f"{'' if not result.findings else chr(10)}{seen}: {_sum(len(left), len(repaired))}"


def _sum(left: int, repaired: int) -> str:
    if not left and not repaired:
        return "no broken rule"
    return f"{left} findings" + (f", {repaired} repaired" if repaired else "")


def _plain(text: str) -> str:
    """Without what a terminal would act on: key names may come from other programs."""
    return text if text.isprintable() else ascii(text)
