"""The life of a run: every move that exists, and no other."""

from itertools import product

import pytest

from dify_agent.actors.lifecycle import IllegalTransitionError, Lifecycle, Phase

LEGAL = {
    ("admitted", "entering"),
    ("admitted", "finalising"),
    ("entering", "running"),
    ("entering", "exiting"),
    ("entering", "finalising"),
    ("running", "exiting"),
    ("running", "finalising"),
    ("exiting", "finalising"),
    ("finalising", "done"),
}


def in_phase(phase: Phase) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.phase = phase
    return lifecycle


def test_begins_admitted() -> None:
    assert Lifecycle().phase is Phase.ADMITTED


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)))
def test_moves(before: Phase, after: Phase) -> None:
    lifecycle = in_phase(before)
    if (before.value, after.value) in LEGAL:
        lifecycle.move(after)
        assert lifecycle.phase is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"from {before} to {after}"):
            lifecycle.move(after)
        assert lifecycle.phase is before, "an illegal move changes nothing"


def test_every_phase_leads_to_the_end() -> None:
    for phase in Phase:
        seen, todo = set(), [phase.value]
        while todo:
            here = todo.pop()
            seen.add(here)
            todo.extend(after for before, after in LEGAL if before == here and after not in seen)
        assert "done" in seen
