"""Starts both sides on a list of scenarios and compares their answers."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.compare import differences
from tests.oracle.scenario import Scenario

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 900


Answers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Side:
    """A module of this package that answers scenarios, with its arguments."""

    module: str
    arguments: Sequence[str] = ()

    def start(self, given: Path, out: Path) -> subprocess.Popen[bytes]:
        """A process that reads ``given``; stdout and stderr go to files beside ``out``."""
        command = [sys.executable, "-m", f"tests.oracle.{self.module}", *self.arguments]
        with given.open("rb") as source, out.open("wb") as answers, out.with_suffix(".err").open("wb") as err:
            return subprocess.Popen(command, stdin=source, stdout=answers, stderr=err, cwd=ROOT)


AGENT = Side("agent_side")
LOOP = Side("loop_side")


def play(scenarios: Sequence[Scenario], *sides: Side) -> list[tuple[Answers, str]]:
    """Each side's answers by scenario, and its stderr. All sides run at once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = folder / "scenarios"
        given.write_text("".join(f"{scenario.model_dump_json()}\n" for scenario in scenarios))
        outputs = [folder / f"{position}.out" for position in range(len(sides))]
        processes = [side.start(given, out) for side, out in zip(sides, outputs, strict=True)]
        try:
            for process in processes:
                process.wait(TIMEOUT_SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [_read(out) for out in outputs]


def _read(out: Path) -> tuple[Answers, str]:
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    return {answer["name"]: answer for answer in answers}, out.with_suffix(".err").read_text()


def _compare(name: str, before: str, played: list[tuple[Answers, str]]) -> list[str]:
    for answers, err in played:
        if name not in answers:
            died_here = not before or before in answers
            return [f"a side ended here; its stderr:\n{err[-2000:]}" if died_here else "not played"]
    return differences(name, *(answers[name] for answers, _ in played))


def judge(scenarios: Sequence[Scenario], played: list[tuple[Answers, str]]) -> dict[str, list[str]]:
    """The differences of each scenario, given what `Agent` and the loop made of it: none for those that agree."""
    names = [scenario.name for scenario in scenarios]
    return {name: _compare(name, before, played) for before, name in zip(["", *names], names, strict=False)}


def verdicts(scenarios: Sequence[Scenario], loop: Side = LOOP, agent: Side = AGENT) -> dict[str, list[str]]:
    """Play the scenarios on both sides and judge them."""
    return judge(scenarios, play(scenarios, agent, loop))
