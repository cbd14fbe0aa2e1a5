"""One sample of a side's CPU time, taken inside the side's own process."""

import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable

from bench.model import EVENTS_AROUND_DELTAS

DELTAS = (20, 200)
WARM_UP_SHARE = 0.3
"""Of the sample's CPU time. The first runs build validators and fill caches."""

Once = Callable[[int], Awaitable[int]]
"""One run with so many deltas; gives the number of events it saw."""


async def sample(once: Once, seconds: float) -> None:
    """Print the CPU milliseconds per run for each number of deltas, as a JSON object."""
    print(json.dumps({str(deltas): await _cpu_ms(once, deltas, seconds) for deltas in DELTAS}))


async def _cpu_ms(once: Once, deltas: int, seconds: float) -> float:
    await _spend(once, deltas, seconds * WARM_UP_SHARE)
    gc.collect()
    runs, spent = await _spend(once, deltas, seconds)
    return 1000 * spent / runs


async def _spend(once: Once, deltas: int, seconds: float) -> tuple[int, float]:
    began = time.process_time()
    runs = 0
    while (spent := time.process_time() - began) < seconds or not runs:
        if (events := await once(deltas)) != deltas + EVENTS_AROUND_DELTAS:
            sys.exit(f"a run of {deltas} deltas gave {events} events")
        runs += 1
    return runs, spent
