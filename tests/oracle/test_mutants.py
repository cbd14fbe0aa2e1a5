"""Each naive form of the loop is noticed by a hand-written scenario."""

from typing import Any

import pytest

from tests.oracle.hand import hand
from tests.oracle.mutants import MUTANTS
from tests.oracle.runner import AGENT, Side, judge, play

SCENARIOS = list(hand().values())


@pytest.fixture(scope="module")
def agent_played() -> tuple[dict[str, dict[str, Any]], str]:
    """What `Agent` made of the scenarios."""
    [played] = play(SCENARIOS, AGENT)
    return played


@pytest.mark.full
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_fits_the_source(name: str) -> None:
    assert [patch.occurrences for patch in MUTANTS[name]] == [1] * len(MUTANTS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str, agent_played: tuple[dict[str, dict[str, Any]], str]) -> None:
    [mutant] = play(SCENARIOS, Side("loop_side", ["--mutant", name]))
    noticed = [scenario for scenario, lines in judge(SCENARIOS, [agent_played, mutant]).items() if lines]
    assert mutant[0], f"the mutant answered nothing:\n{mutant[1][-2000:]}"
    assert noticed
