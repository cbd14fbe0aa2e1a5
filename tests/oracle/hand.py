"""All hand-written scenarios, by name."""

from tests.oracle import (
    hand_contract,
    hand_extra,
    hand_output,
    hand_questions,
    hand_resume,
    hand_sessions,
    hand_text,
    hand_tools,
)
from tests.oracle.scenario import Scenario


def hand() -> dict[str, Scenario]:
    """Every hand-written scenario, in order."""
    found: dict[str, Scenario] = {}
    for module in (
        hand_text,
        hand_tools,
        hand_output,
        hand_resume,
        hand_extra,
        hand_contract,
        hand_questions,
        hand_sessions,
    ):
        for scenario in module.all_scenarios():
            assert scenario.name not in found, f"two scenarios are called {scenario.name}"
            found[scenario.name] = scenario
    return found
