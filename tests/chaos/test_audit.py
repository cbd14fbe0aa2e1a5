"""The audit itself: what the faults explain is no finding, and the same without the fault is one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.audit import JUDGED_BY_ITS_OWN, Audit, Run, Told, audit
from tests.chaos.record import LEASE, OUTAGE, SOON, VERDICT_SECONDS, Life, Record, Span, joined

BEGAN = 1_000_000.0
AT = BEGAN + 100
"""When the run of a test ends."""
RUN = "run-1"
LOST = f"The replica that executed this run was lost: no heartbeat for {LEASE:g} seconds."

Change = Callable[[Record, Life], None]


def world() -> tuple[Record, Life]:
    """Two replicas that nothing was done to; the run is the first one's."""
    life = Life(0, BEGAN, owner="aa")
    return Record([life, Life(1, BEGAN, owner="bb")]), life


def run(
    terminal: str = "run_failed", *, at: float = AT, reason: str | None = None, error: str = LOST, began: bool = True
) -> Run:
    kinds = ["run_started", "pydantic_ai_event", terminal] if began else [terminal]
    status = {"run_failed": "failed", "run_succeeded": "succeeded", "run_cancelled": "cancelled"}.get(
        terminal, "running"
    )
    events: list[tuple[str, dict[str, Any]]] = [
        (f"{round((at - (len(kinds) - n)) * 1000)}-{n}", {"type": kind, "data": {}})
        for n, kind in enumerate(kinds, start=1)
    ]
    events[-1] = (f"{round(at * 1000)}-{len(kinds)}", {"type": terminal, "data": {"reason": reason, "error": error}})
    return Run(RUN, status, "aa", events)


def judged(record: Record, *runs: Run, told: bool = True, cancelled: bool = False) -> Audit:
    ids = frozenset([RUN])
    return audit(list(runs), Told(ids if told else frozenset(), ids if cancelled else frozenset()), record)


LOST_RUN = run(reason="owner_lost")


def _frozen(start: float, end: float) -> Change:
    """Seconds by the end of the run, as everywhere below."""
    return lambda _record, life: life.frozen.append(Span(AT + start, AT + end))


def _silenced(*spans: tuple[float, float]) -> Change:
    return lambda _record, life: life.waiting.extend(Span(AT + start, AT + end) for start, end in spans)


def _killed(at: float, *, number: int = 0) -> Change:
    def kill(record: Record, _life: Life) -> None:
        record.lives[number].killed = AT + at

    return kill


def _told(at: float, ended: float | None = None) -> Change:
    def tell(_record: Record, life: Life) -> None:
        life.told, life.ended = AT + at, None if ended is None else AT + ended

    return tell


def _away(start: float, end: float) -> Change:
    return lambda record, _life: record.away.append(Span(AT + start, AT + end))


def _cut(*ats: float) -> Change:
    return lambda _record, life: life.cuts.extend(AT + at for at in ats)


def _all(*changes: Change) -> Change:
    def change(record: Record, life: Life) -> None:
        for each in changes:
            each(record, life)

    return change


def _other(change: Change) -> Change:
    """The same, done to the replica that judges."""
    return lambda record, _life: change(record, record.lives[1])


EXPLAINED: dict[str, Change] = {
    "killed": _killed(-3),
    "frozen for longer than its lease": _frozen(-3, 1),
    "frozen, and awake again when the verdict is written": _frozen(-3, -0.1),
    "silenced for longer than its lease": _silenced((-5, -1)),
    "silenced, and silenced again when it tries once more": _silenced((-3, -2), (-2 + SOON / 2, 0)),
    "frozen, and its late beat was cut": _all(_frozen(-2, -0.9), _cut(-0.8)),
    "the machine stood still": lambda record, _life: record.stalls.append(Span(AT - 3, AT)),
    "told to stop while the store was away": _all(_told(-10, ended=-5), _away(-9, -8)),
}

UNEXPLAINED: dict[str, Change] = {
    "nothing was done": _all(),
    "another one was killed": _killed(-3, number=1),
    "it was killed afterwards": _killed(1),
    "it was frozen for a moment": _frozen(-1.5, -0.5),
    "it was frozen only just now": _frozen(-0.5, 9),
    "it was frozen afterwards": _frozen(1, 9),
    "it was frozen long ago": _frozen(-30, -1 - VERDICT_SECONDS),
    "another one was silenced": _other(_silenced((-5, 0))),
    "the store was away for longer than the lease": _away(-9, -1),
    "its connections were cut again and again": _cut(*(-tenths / 10 for tenths in range(40))),
    "it was told to stop, and nothing kept it from that": _told(-10, ended=-5),
    "it was told to stop, and has not ended": _all(_told(-10), _away(-9, -8)),
}


@pytest.mark.parametrize("fault", EXPLAINED.values(), ids=EXPLAINED)
def test_a_lost_owner_that_was_hit_is_no_finding(fault: Change) -> None:
    record, life = world()
    fault(record, life)
    assert judged(record, LOST_RUN).findings == []


@pytest.mark.parametrize("fault", UNEXPLAINED.values(), ids=UNEXPLAINED)
def test_a_judged_owner_that_was_not_hit_is_a_finding(fault: Change) -> None:
    record, life = world()
    fault(record, life)
    (finding,) = judged(record, LOST_RUN).findings
    assert finding.startswith("run-1: owner_lost after ")


def test_an_owner_that_nobody_started_is_a_finding() -> None:
    record, _ = world()
    for owner, words in (("cc", "cc"), ("", "is unknown")):
        (finding,) = judged(record, replace(LOST_RUN, owner=owner)).findings
        assert finding == f"run-1: its owner {words} is no replica that was started"


@pytest.mark.parametrize(("told", "began", "right"), [(True, False, False), (False, True, False), (False, False, True)])
def test_an_owner_judges_its_own_run_only_if_that_never_began(told: bool, began: bool, right: bool) -> None:
    record, life = world()
    life.frozen.append(Span(AT - 3, AT))  # no reason for this
    own = run(reason="owner_lost", error=f"The replica that executed this run {JUDGED_BY_ITS_OWN}.", began=began)
    assert (judged(record, own, told=told).findings == []) == right


@pytest.mark.parametrize("late", [-1.0, 1.0])
def test_a_verdict_comes_in_time_while_the_store_is_up(late: float) -> None:
    record, life = world()
    life.killed = AT - VERDICT_SECONDS - late
    findings = judged(record, LOST_RUN).findings
    assert (findings == []) == (late < 0)
    assert all("judged 1.0 s late: bound 7 s" in finding for finding in findings)


def _another_judge(record: Record, _life: Life) -> None:
    record.lives.append(Life(2, BEGAN, owner="cc"))


DELAYS: dict[str, tuple[Change, bool]] = {
    "the store was away": (_away(-8, -6), True),
    "the only judge was frozen": (_other(_frozen(-8, -6)), True),
    "the only judge was silenced": (_other(_silenced((-8, -6))), True),
    "a connection of the only judge was cut": (_other(_cut(-6)), True),
    "the only judge began late": (lambda record, _life: setattr(record.lives[1], "began", AT - 5), True),
    "the only judge was told to stop": (_other(_told(-6)), True),
    "all of it was over": (_away(-11, -9), False),
    "another judge was there": (_all(_another_judge, _other(_frozen(-8, -6))), False),
}


@pytest.mark.parametrize(("fault", "explains"), DELAYS.values(), ids=DELAYS)
def test_a_late_verdict_is_explained_by_what_kept_every_judge_from_it(fault: Change, explains: bool) -> None:
    record, life = world()
    life.killed = AT - VERDICT_SECONDS - 4
    fault(record, life)
    assert (judged(record, LOST_RUN).findings == []) == explains


@pytest.mark.parametrize("told", [None, AT + 1, AT - 1])
def test_shutdown_is_a_reason_only_where_it_was_told(told: float | None) -> None:
    record, life = world()
    life.told = told
    assert (judged(record, run(reason="shutdown")).findings == []) == (told == AT - 1)


@pytest.mark.parametrize(("seconds", "right"), [(OUTAGE / 2, False), (OUTAGE + 1, True)])
def test_an_outage_is_a_reason_only_when_it_was_long(seconds: float, right: bool) -> None:
    record, life = world()
    record.away.append(Span(AT - seconds, AT - seconds / 2))
    life.waiting.append(Span(AT - seconds / 2, AT))
    assert (judged(record, run(reason="store_unavailable")).findings == []) == right
    assert judged(record, run(reason="store_unavailable", began=False), told=False).findings == []


SPOILT: dict[str, tuple[Run, str]] = {
    "no end": (run("pydantic_ai_event"), "0 terminal events"),
    "another status": (replace(run(), status="succeeded"), "the record says succeeded, the log run_failed"),
    "a left intent": (replace(run(), has_intent=True), "an intent is left"),
    "a gap": (replace(run(), events=[run().events[0], run().events[2]]), "ordinals"),
    "two ends": (replace(run(), events=[*run().events, (f"{round(AT * 1000)}-4", run().events[2][1])]), "2 terminal"),
    "no start": (replace(run(), events=[("1-1", {"type": "x", "data": {}}), *run().events[1:]]), "starts with ['x'"),
}


@pytest.mark.parametrize(("spoilt", "words"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_run_is_a_finding(spoilt: Run, words: str) -> None:
    record, _ = world()
    (finding,) = judged(record, spoilt).findings
    assert words in finding
    assert judged(record, run()).findings == []


def test_a_run_that_is_gone_and_a_cancel_without_effect_are_findings() -> None:
    record, _ = world()
    assert judged(record).findings == ["run-1: created, and gone"]
    assert judged(record, run("run_succeeded"), cancelled=True).findings == [
        "run-1: its cancel was accepted, and it succeeded"
    ]
    assert judged(record, run("run_cancelled"), cancelled=True).findings == []


def test_troubles_that_follow_each_other_are_one() -> None:
    spans = [Span(5, 6), Span(0, 1), Span(1 + SOON / 2, 3), Span(3 + SOON * 2, 5.5)]
    assert joined(spans) == [Span(0, 3), Span(3 + SOON * 2, 6)]


def test_the_last_trouble_is_over_when_all_of_them_are() -> None:
    record, life = world()
    assert record.last_trouble() == BEGAN
    life.killed = BEGAN + 1
    record.away.append(Span(BEGAN, BEGAN + 5))
    assert record.last_trouble() == BEGAN + 5
    life.waiting.append(Span(BEGAN + 6))
    assert record.last_trouble() == float("inf")
