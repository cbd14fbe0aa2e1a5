"""``python -m tests.oracle --hand | --random N [--seed S] | --name X… | --json FILE``."""

import argparse
import sys
from pathlib import Path

from tests.oracle.generate import generate
from tests.oracle.hand import hand
from tests.oracle.runner import LOOP, Side, verdicts
from tests.oracle.scenario import Scenario

SHOWN = 12


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--hand", action="store_true", help="all hand-written scenarios")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N random scenarios")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random ones")
    parser.add_argument("--name", nargs="+", default=[], help="these scenarios: hand-written, or random-SEED-NUMBER")
    parser.add_argument("--json", type=Path, help="scenarios in a file, one per line")
    parser.add_argument("--mutant", help="break the loop in this way first")
    return parser.parse_args()


def by_name(name: str) -> Scenario:
    """A hand-written or a random scenario."""
    if name.startswith("random-"):
        _, seed, number = name.split("-")
        return generate(int(seed), int(number))
    return hand()[name]


def _chosen(given: argparse.Namespace) -> list[Scenario]:
    chosen = list(hand().values()) if given.hand else []
    chosen += [generate(given.seed, number) for number in range(given.random)]
    chosen += [by_name(name) for name in given.name]
    if given.json:
        chosen += [Scenario.model_validate_json(line) for line in given.json.read_text().splitlines()]
    return chosen


def main() -> int:
    """Play, print what differs, and return the exit status."""
    given = _arguments()
    chosen = _chosen(given)
    found = verdicts(chosen, Side("loop_side", ["--mutant", given.mutant]) if given.mutant else LOOP)
    differing = {name: lines for name, lines in found.items() if lines}
    for scenario in chosen:
        lines = differing.get(scenario.name)
        if lines:
            print(f"== {scenario.name}")
            print(*(f"  {line}" for line in lines[:SHOWN]), sep="\n")
            if scenario.name.startswith("random-"):
                print(f"  {scenario.model_dump_json(exclude_defaults=True)}")
                print(f"  again: python -m tests.oracle --name {scenario.name}")
    print(f"{len(found) - len(differing)} of {len(found)} scenarios agree")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
