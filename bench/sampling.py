"""One sample of a side's CPU time, taken inside the side's own process."""

import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

from bench.gateway_text import AT_ONCE, PACED, PACED_SHARE, PACES
from bench.model import EVENTS_AROUND_DELTAS

DELTAS = (20, 200)
WARM_UP_SHARE = 0.3
"""Of the sample's CPU time. The first runs build validators and fill caches."""

Once = Callable[[], Awaitable[object]]
"""One run. Ends the process when it did not do what is measured."""
OnceOf = Callable[[int], Awaitable[int]]
"""One run with so many deltas; gives the number of events it saw."""


async def sample(once: OnceOf, seconds: float) -> None:
    """Print the CPU milliseconds per run for each number of deltas, as a JSON object."""
    print(json.dumps({str(deltas): await _cpu_ms(partial(_checked, once, deltas), seconds) for deltas in DELTAS}))


async def sample_paces(once: Callable[[str], Awaitable[object]], seconds: float) -> None:
    """Print the CPU milliseconds per run for each of `PACES`, as a JSON object."""
    shares = {AT_ONCE: 1.0, PACED: PACED_SHARE}
    print(json.dumps({name: await _cpu_ms(partial(once, name), seconds * shares[name]) for name in PACES}))


async def _cpu_ms(once: Once, seconds: float) -> float:
    await _spend(once, seconds * WARM_UP_SHARE)
    gc.collect()
    runs, spent = await _spend(once, seconds)
    return 1000 * spent / runs


async def _checked(once: OnceOf, deltas: int) -> None:
    if (events := await once(deltas)) != deltas + EVENTS_AROUND_DELTAS:
        sys.exit(f"a run of {deltas} deltas gave {events} events")


async def _spend(once: Once, seconds: float) -> tuple[int, float]:
    began = time.process_time()
    runs = 0
    while (spent := time.process_time() - began) < seconds or not runs:
        await once()
        runs += 1
    return runs, spent
