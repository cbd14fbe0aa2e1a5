"""CPU of one run whose text comes by HTTP: our loop and Dify's gateway against `Agent` and OpenAI's API.

As `bench.loops`, with a third process: each sample's upstream, whose CPU is not counted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.figures import Effort, Measurement, Reading
from bench.gateway_text import AT_ONCE, PACED
from bench.loops import ROOT, SAMPLE_SECONDS, spread

SIDES: Mapping[str, str] = {"openai_agent": "bench.openai_agent_side", "gateway": "bench.gateway_side"}
FIGURE_OF = {AT_ONCE: "{side}_ms_200_chunks", PACED: "{side}_ms_200_paced_chunks"}


@contextmanager
def _upstream() -> Iterator[str]:
    """The URL of a new upstream, good for one connection."""
    command = [sys.executable, "-m", "bench.upstream"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _sample(side: str, seconds: float) -> dict[str, float]:
    """CPU milliseconds per run by name of the figure, measured in a process of its own."""
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with _upstream() as url:
        command = [sys.executable, "-m", SIDES[side], url, str(seconds)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, timeout=SAMPLE_SECONDS, check=True
        )
    return {FIGURE_OF[pace].format(side=side): ms for pace, ms in json.loads(done.stdout).items()}


def measure_gateways(effort: Effort) -> dict[str, Reading]:
    """Both sides in turn, again and again."""
    found: dict[str, list[float]] = {}
    for _ in range(effort.samples):
        for side in SIDES:
            for key, ms in _sample(side, effort.loop_seconds).items():
                found.setdefault(key, []).append(ms)
    return {key: spread(values) for key, values in found.items()}


GATEWAYS = Measurement([name.format(side=side) for side in SIDES for name in FIGURE_OF.values()], measure_gateways)
