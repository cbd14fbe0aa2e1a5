"""CPU of one run: our loop against `Agent`, each sample in a new process, the sides taking turns."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.figures import Effort, Measurement, Reading
from bench.sampling import DELTAS

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 60
"""A side that takes longer is stuck."""

SIDES: Mapping[str, tuple[str, ...]] = {
    "agent": ("bench.agent_side",),
    "loop": ("bench.loop_side", "pieces"),
    "lean_loop": ("bench.loop_side", "lean"),
}


def sample_side(side: str, seconds: float) -> dict[int, float]:
    """CPU milliseconds per run by number of deltas, measured in a process of its own."""
    command = [sys.executable, "-m", *SIDES[side], str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=SAMPLE_SECONDS, check=True)
    return {int(deltas): ms for deltas, ms in json.loads(done.stdout).items()}


def spread(values: list[float]) -> Reading:
    """The median, with the lowest and the highest beside it."""
    return Reading(median(values), f"{min(values):.3g}–{max(values):.3g}" if len(values) > 1 else "")


def measure_loops(effort: Effort) -> dict[str, Reading]:
    """All sides in turn, again and again, so that what else the machine does meets them alike."""
    found: dict[str, list[float]] = {}
    for _ in range(effort.samples):
        for side in SIDES:
            for deltas, ms in sample_side(side, effort.loop_seconds).items():
                found.setdefault(f"{side}_ms_{deltas}_deltas", []).append(ms)
    return {key: spread(values) for key, values in found.items()}


LOOPS = Measurement([f"{side}_ms_{deltas}_deltas" for side in SIDES for deltas in DELTAS], measure_loops)
