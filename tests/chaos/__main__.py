"""``python -m tests.chaos --seconds 60``: prints what happened; status 1 when a rule was broken."""

import argparse
import random
import sys

import trio

from tests.chaos.play import perform

RUNS_PER_SECOND = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, help=f"default: {RUNS_PER_SECOND:g} a second")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    runs = given.runs or round(given.seconds * RUNS_PER_SECOND)
    print(f"seed {given.seed}, {given.seconds:g} s, {runs} runs")
    performance = trio.run(lambda: perform(seconds=given.seconds, runs=runs, seed=given.seed))
    print(performance.report)
    return 1 if performance.audit.findings else 0


if __name__ == "__main__":
    sys.exit(main())
