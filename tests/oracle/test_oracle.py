"""The loop agrees with ``pydantic_ai.Agent``; and the comparison itself can fail."""

import copy
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.compare import DIFFERENCES, differences
from tests.oracle.generate import generate
from tests.oracle.hand import hand
from tests.oracle.runner import AGENT, LOOP, Answers, Side, judge, play, verdicts

HAND = hand()
RANDOM_ORDINARY = 100
RANDOM_FULL = 2000
FULL_SEED = 20_000


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a test session see."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def _played_once(folder: Path, side: Side) -> tuple[Answers, str]:
    """What a side made of all hand-written scenarios; the first worker to ask plays them."""
    kept = folder / f"oracle-{side.module}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(play(list(HAND.values()), side)))
        [(answers, err)] = json.loads(kept.read_text())
        return answers, err


@pytest.fixture(scope="session")
def agent_played(shared_folder: Path) -> tuple[Answers, str]:
    return _played_once(shared_folder, AGENT)


@pytest.fixture(scope="session")
def hand_verdicts(shared_folder: Path, agent_played: tuple[Answers, str]) -> dict[str, list[str]]:
    return judge(list(HAND.values()), [agent_played, _played_once(shared_folder, LOOP)])


def _report(name: str, lines: list[str]) -> str:
    return "\n".join([f"{name} differs; again: python -m tests.oracle --name {name}", *lines])


def _assert_all_agree(found: dict[str, list[str]]) -> None:
    reports = [_report(name, lines) for name, lines in found.items() if lines]
    assert not reports, f"{len(reports)} of {len(found)} scenarios differ\n" + "\n".join(reports[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", HAND)
def test_hand_written_scenario_agrees(name: str, hand_verdicts: dict[str, list[str]]) -> None:
    assert not hand_verdicts[name], _report(name, hand_verdicts[name])


@pytest.mark.slow
def test_random_scenarios_agree() -> None:
    _assert_all_agree(verdicts([generate(1, number) for number in range(RANDOM_ORDINARY)]))


@pytest.mark.full
@pytest.mark.timeout(600)  # a minute of work on an idle core
def test_many_random_scenarios_agree() -> None:
    _assert_all_agree(verdicts([generate(FULL_SEED, number) for number in range(RANDOM_FULL)]))


@pytest.mark.full
@pytest.mark.parametrize("repetition", range(5))
def test_hand_written_scenarios_agree_every_time(repetition: int) -> None:
    """Trio starts the tasks of a batch in an order it draws by lot: what depends on it shows only sometimes."""
    _assert_all_agree(verdicts(list(HAND.values())))


@pytest.mark.slow
def test_agent_agrees_with_itself_in_another_process(agent_played: tuple[Answers, str]) -> None:
    """Clocks, generated ids and set orders are normalised; nothing else moves between processes."""
    scenarios = [scenario for name, scenario in HAND.items() if name not in {row.scenario for row in DIFFERENCES}]
    _assert_all_agree(judge(scenarios, [agent_played, *play(scenarios, AGENT)]))


@pytest.mark.slow
def test_a_loop_that_only_speaks_is_noticed(agent_played: tuple[Answers, str]) -> None:
    scenarios = list(HAND.values())
    found = judge(scenarios, [agent_played, *play(scenarios, Side("stub_side"))])
    noticed = [name for name, lines in found.items() if lines]
    assert len(noticed) > len(HAND) * 0.9, sorted(found.keys() - noticed)


@pytest.fixture
def record(agent_played: tuple[Answers, str]) -> dict[str, Any]:
    """What `Agent` made of a scenario with a retried and a successful call."""
    return agent_played[0]["invalid_and_valid_same_turn"]


def _lose_last_event(run: dict[str, Any]) -> None:
    run["events"].pop()


def _swap_results(run: dict[str, Any]) -> None:
    places = [n for n, event in enumerate(run["events"]) if event["event_kind"] == "function_tool_result"]
    first, second = places
    run["events"][first], run["events"][second] = run["events"][second], run["events"][first]


def _mark_interrupted(run: dict[str, Any]) -> None:
    run["messages"][-1]["state"] = "interrupted"


def _count_a_call(run: dict[str, Any]) -> None:
    run["usage"]["tool_calls"] += 1


def _reword_feedback(run: dict[str, Any]) -> None:
    run["requests"][-1]["messages"][-1]["parts"][-1]["retry"]["cause"] = "model_retry"


def _forget_a_tool(run: dict[str, Any]) -> None:
    run["requests"][0]["parameters"]["function_tools"].pop()


def _share_a_run_id(run: dict[str, Any]) -> None:
    run["messages"][0]["run_id"] = None


def _end_otherwise(run: dict[str, Any]) -> None:
    run["outcome"] = {"cancelled": True}


def _change_order_of_starts(run: dict[str, Any]) -> None:
    run["tools"].append(["a", {"x": 1}])


BREAKAGES = (
    _lose_last_event,
    _swap_results,
    _mark_interrupted,
    _count_a_call,
    _reword_feedback,
    _forget_a_tool,
    _share_a_run_id,
    _end_otherwise,
    _change_order_of_starts,
)


@pytest.mark.slow
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_small_change_is_a_difference(breakage: Any, record: dict[str, Any]) -> None:
    assert not differences("x", record, record)
    broken = copy.deepcopy(record)
    breakage(broken["runs"][0])
    assert differences("x", record, broken)


def test_a_scenario_survives_json() -> None:
    for scenario in (*HAND.values(), *(generate(1, number) for number in range(20))):
        assert type(scenario).model_validate_json(scenario.model_dump_json()) == scenario


def test_deliberate_differences_name_scenarios_that_exist() -> None:
    assert {row.scenario for row in DIFFERENCES if row.scenario} <= HAND.keys()
