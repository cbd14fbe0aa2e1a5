"""Every reachable state of one run and two replicas, faults at any time and in any number.

Covered: the store's scripts, the owner's retries, the reapers' single commands, the owner's leaving, crashes, pauses,
partitions, outages, of one node of a cluster as well, lost and late messages, expired keys. Abstracted away: payloads,
trimming, failover, a store that answers and takes no write, other runs, a second creator under the same id, repairs by
`dify-agent doctor`, endings that the store refuses, and the bound after which an owner stops its runs in an outage (a
failure that may come at any time).

Clocks are abstracted to what may not happen within a time. A lease that is gone, a whole healthy lease and a retention
are single transitions.

- A retention is longer than any request is late and any pass of a reaper. It passes for `seen` and for the owner's set
  only while the owner is dead, paused or cut off, and for the set not before `seen`, which is never renewed without it,
  nor before the record of a run that still runs, which the owner renews no more than a beat after them.
- After `STRAY_SECONDS` as a stray no request of a living owner's create is late any more; nor is one when the `seen` of
  a replica that has retired is gone.
- An outage that costs a healthy owner its lease ends every reaper's pass: none is frozen within it meanwhile, and goes
  on before the owner renews.
- A lost owner is looked at again at any time: the lease between two passes is no promise to anybody.

What the design does not stand, although the times allow it, is in `LIMITS`: each has its trace.
"""

import pytest
from tests.model import beginnings, invariants
from tests.model.explore import STUCK, Exploration, explore
from tests.model.state import EVERY_KIND, Bounds, Rules

SMALLEST = Bounds(events=0)
LATE_CREATE = Bounds(events=0, cancels=False, late=("create",))
REDUCED = (Bounds(events=1), 91_073, 871_291)
"""Bounds, and how many states and transitions are reached within them. A change of the model changes the numbers."""
FULL = {
    "events": (Bounds(events=3), 264_053, 2_509_872),
    "world": (Bounds(events=1, cut=True, ghost=True, expiry=True), 706_434, 6_836_066),
    "late": (Bounds(events=1, late=EVERY_KIND), 743_296, 7_580_771),
    "partial": (Bounds(events=1, partial=True), 156_189, 1_451_518),
    "retention": (Bounds(events=0, cancels=False, late=EVERY_KIND, expiry=True), 167_984, 1_366_433),
}

LIMITS = {
    "an owner is out of reach for a whole retention, then creates a run and is lost before it renews": (
        Bounds(events=0, cancels=False, expiry=True, thaw=True),
        [
            "pause",
            "lease-expires",
            "seen-expires",
            "reap -> none",
            "count -> none",
            "resume",
            "create -> created",
            "pause",
        ],
    ),
}
"""What can leave a run running until its record expires: the bounds that allow it, and the shortest way there."""

MUTANTS = {
    "append_any_top": (invariants.ORDER, Bounds(events=1)),
    "append_assumed": (invariants.KEPT, Bounds(events=1)),
    "append_unsealed": (invariants.BEHIND, Bounds(events=2)),
    "finish_drops_last": (invariants.KEPT, Bounds(events=1)),
    "finish_ignores_intent": (invariants.CANCELLED, SMALLEST),
    "finish_ignores_status": (invariants.ONE_TERMINAL, SMALLEST),
    "finish_rebuilt": (invariants.TOLD, SMALLEST),
    "verdict_any_owner": (invariants.LIVING, Bounds(events=0, ghost=True)),
    "verdict_ignores_intent": (invariants.CANCELLED, SMALLEST),
    "verdict_ignores_status": (invariants.ONE_TERMINAL, SMALLEST),
    "verdict_keeps_record": (invariants.STATUS, SMALLEST),
    "reaper_hasty": (invariants.LIVING, SMALLEST),
    "reaper_blind": (invariants.LIVING, Bounds(events=0, partial=True)),
    "reaper_idle": (STUCK, SMALLEST),
    "record_first": (STUCK, SMALLEST),
    "releases_unended": (STUCK, SMALLEST),
    "forgets_missing": (STUCK, SMALLEST),
    "delists": (STUCK, SMALLEST),
    "drops_at_once": (STUCK, LATE_CREATE),
    "leaves_at_once": (STUCK, LATE_CREATE),
    "seen_too_short": (STUCK, LATE_CREATE),
    "rechecks_late": (invariants.LIVING, SMALLEST),
}


pytestmark = pytest.mark.slow


def check(bounds: Bounds, states: int, transitions: int) -> Exploration:
    found = explore(Rules(), bounds)
    print(f"{bounds}: {len(found.states):,} states, {found.transitions:,} transitions")
    assert not found.broken, "\n".join(map(found.story, found.broken))
    assert (len(found.states), found.transitions) == (states, transitions)
    return found


def test_the_reduced_model_holds():
    check(*REDUCED)


@pytest.mark.full
@pytest.mark.timeout(600)  # a minute of work on an idle core
@pytest.mark.parametrize("part", FULL)
def test_the_full_model_holds(part):
    found = check(*FULL[part])
    assert found.edges.keys() <= beginnings.labels(), "a transition or outcome that is not replayed"


@pytest.mark.full
@pytest.mark.parametrize("fault", MUTANTS)
def test_each_invariant_can_fail(fault):
    invariant, bounds = MUTANTS[fault]
    found = explore(Rules(**{fault: True}), bounds, until=invariant)
    assert invariant in found.broken
    print(fault, found.story(invariant), sep=": ")


def test_every_invariant_has_a_mutant():
    named = {value for name, value in vars(invariants).items() if name.isupper()}
    assert named | {STUCK} == {invariant for invariant, _ in MUTANTS.values()} | {invariants.ASKED}


@pytest.mark.parametrize("limit", LIMITS)
def test_beyond_its_limits_a_run_may_stay_running_but_no_log_is_wrong(limit):
    bounds, story = LIMITS[limit]
    found = explore(Rules(), bounds)
    assert set(found.broken) == {STUCK}
    assert [str(label) for label, _ in found.trace(found.broken[STUCK])] == story


def test_every_mutant_is_planted():
    assert set(MUTANTS) == set(Rules._fields)
