"""What must be true of every run when the dust has settled. Read by an independent client.

An ending that the faults alone can cause is right only where the record of the faults explains it: a verdict needs an
owner that was hit, and comes in time.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from tests.chaos.record import OUTAGE, VERDICT_SECONDS, Life, Record

TERMINALS: Final = {"run_succeeded": "succeeded", "run_failed": "failed", "run_cancelled": "cancelled"}
JUDGED_BY_ITS_OWN: Final = "failed to end it"
"""In the text of a verdict that an owner's own reaper gave on a run without an actor."""
LATE_SECONDS: Final = 0.5
"""What the two clocks of one verdict may differ by: its time is taken before it is written."""


@dataclass
class Audit:
    """Findings, and a summary of how the runs ended."""

    findings: list[str] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    """Why the owners of judged runs were lost."""
    runs: int = 0


@dataclass(frozen=True)
class Told:
    """What clients were told."""

    created: frozenset[str] = frozenset()
    cancelled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Run:
    """One run as the store has it."""

    run_id: str
    status: str
    owner: str
    """Its owner's id; empty without a readable owner key."""
    events: list[tuple[str, dict[str, Any]]]
    has_intent: bool = False

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for _, event in self.events]

    @property
    def ended_at(self) -> float | None:
        """By the clock of whoever wrote the newest event, seconds."""
        return int(self.events[-1][0].partition("-")[0]) / 1000 if self.events else None

    @property
    def reason(self) -> str | None:
        return self.events[-1][1]["data"].get("reason") if self.events else None


def statuses(witness: redis.Redis, prefix: str) -> dict[str, str]:
    """Every run's status."""
    found = {}
    keys = list(witness.scan_iter(match=f"{prefix}:runs:*:record", count=1000))
    for key, text in zip(keys, witness.mget(keys) if keys else [], strict=True):
        if text is not None:
            found[key.decode().split("{")[1].split("}")[0]] = str(json.loads(text)["status"])
    return found


def read_runs(witness: redis.Redis, prefix: str) -> Iterator[Run]:
    """Every run under the prefix, those included whose creation nobody was told of."""
    for run_id, status in statuses(witness, prefix).items():
        key = f"{prefix}:runs:{{{run_id}}}"
        events = [(entry.decode(), json.loads(fields[b"payload"])) for entry, fields in witness.xrange(f"{key}:events")]
        owner = (witness.get(f"{key}:owner") or b"").decode().partition(":")[2]
        yield Run(run_id, status, owner, events, has_intent=bool(witness.exists(f"{key}:cancel-intent")))


def audit(runs: list[Run], told: Told, record: Record) -> Audit:
    """Look at every run."""
    result = Audit(runs=len(runs))
    known = {run.run_id for run in runs}
    result.findings += [f"{run_id}: created, and gone" for run_id in sorted(told.created - known)]
    for run in runs:
        result.endings[_ending(run)] += 1
        result.findings += [f"{run.run_id}: {finding}" for finding in _judge(run, told, record, result.losses)]
    return result


def _ending(run: Run) -> str:
    if not run.events:
        return "no event"
    return run.kinds[-1] + (f" ({run.reason})" if run.reason not in (None, "chaos") else "")


def _judge(run: Run, told: Told, record: Record, losses: Counter[str]) -> Iterator[str]:
    yield from _judge_log(run)
    if run.run_id in told.cancelled and run.status != "cancelled":
        yield f"its cancel was accepted, and it {run.status}"
    if run.has_intent:
        yield "an intent is left"
    if (life := record.life_of(run.owner)) is None:
        yield f"its owner {run.owner or 'is unknown'} is no replica that was started"
        return
    yield from _judge_reason(run, life, told, record, losses)
    yield from _judge_time(run, life, record)


def _judge_log(run: Run) -> Iterator[str]:
    kinds = run.kinds
    terminals = [kind for kind in kinds if kind in TERMINALS]
    if len(terminals) != 1:
        yield f"{len(terminals)} terminal events"
    elif kinds[-1] not in TERMINALS:
        yield "events behind the terminal one"
    elif TERMINALS[terminals[0]] != run.status:
        yield f"the record says {run.status}, the log {terminals[0]}"
    if [int(entry.partition("-")[2]) for entry, _ in run.events] != list(range(1, len(kinds) + 1)):
        yield f"ordinals {[entry for entry, _ in run.events]}"
    if kinds.count("run_started") > 1 or (len(kinds) > 1 and kinds[0] != "run_started"):
        yield f"starts with {kinds[:2]}"


def _judge_reason(run: Run, life: Life, told: Told, record: Record, losses: Counter[str]) -> Iterator[str]:
    """Whether a fault explains what only a fault can cause."""
    at = run.ended_at
    if at is None:
        return
    # Its create got no answer: nobody executes it, and no caller waits for it.
    never_began = run.run_id not in told.created and len(run.events) == 1
    match run.reason:
        case "owner_lost" if JUDGED_BY_ITS_OWN in run.events[-1][1]["data"]["error"]:
            if not never_began:
                yield f"its owner ended it as one that it does not execute, {_fate(life, at)}"
            losses["never begun"] += 1
        case "owner_lost":
            why = record.why_lost(life, at) or ("never begun" if never_began and life.told is not None else None)
            if why is None:
                known = "told to its client" if run.run_id in told.created else "no client was told of it"
                yield f"owner_lost after {len(run.events)} events, {known}; nothing explains it: {_fate(life, at)}"
            losses[why or "not explained"] += 1
        case "shutdown" if life.told is None or at < life.told:
            yield f"shutdown, and nobody had told its owner to stop: {_fate(life, at)}"
        case "store_unavailable" if not never_began and not record.was_out_of_reach(life, at, OUTAGE - 1):
            yield f"store_unavailable, and the store was not away for {OUTAGE:g} s: {_fate(life, at)}"


def _judge_time(run: Run, life: Life, record: Record) -> Iterator[str]:
    """Whether a run that its owner left behind had its verdict in time."""
    if life.killed is None or run.ended_at is None or run.kinds[-1] not in TERMINALS or run.ended_at < life.killed:
        return
    late = run.ended_at - record.verdict_due(life, life.killed)
    if late > LATE_SECONDS:
        yield f"judged {late:.1f} s late: bound {VERDICT_SECONDS:g} s, {_fate(life, run.ended_at)}"


def _fate(life: Life, at: float) -> str:
    """What was done to an owner, by seconds before (-) and behind (+) a moment."""
    told = [("began", life.began), ("told", life.told), ("killed", life.killed), ("ended", life.ended)]
    moments = [f"{name} {when - at:+.1f}" for name, when in told if when is not None]
    spans = [
        f"{name} {span.start - at:+.1f} to {span.end - at:+.1f}"
        for name, found in (("frozen", life.frozen), ("waiting", life.waiting))
        for span in found
        if abs(span.start - at) < 30
    ]
    cuts = [f"cut {when - at:+.1f}" for when in life.cuts if abs(when - at) < 30]
    return f"replica {life.number}, owner {life.owner}: " + ", ".join(moments + spans + cuts)
