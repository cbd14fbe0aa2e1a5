"""How the time of work grows with its size."""

import gc
import time
from collections.abc import Callable
from typing import Final

FACTOR: Final = 8
"""Between the two sizes that are compared."""
LINEAR: Final = 24.0
"""Between 8 (linear) and 64 (a square). Caches and neighbours on the machine make a linear one look like up to 17."""

_MIN_SECONDS: Final = 0.005
_ROUNDS: Final = range(5, 26)
"""At least, and at most where the growth still looks more than linear."""


def growth(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """How many times longer work of size ``FACTOR * size`` takes than work of ``size``, each at its best.

    The two are measured in turn, so that a slow moment of the machine meets both. ``prepare`` gives the work of a size;
    it must stand being done again.
    """
    small, large = prepare(size), prepare(FACTOR * size)
    gc.disable()  # the collector's share is not linear
    try:
        times = _enough(small)
        of_small, of_large = _seconds(small, times) / times, _seconds(large, 1)
        for done in range(1, _ROUNDS.stop):
            if done >= _ROUNDS.start and of_large / of_small < LINEAR:
                break
            of_small = min(of_small, _seconds(small, times) / times)
            of_large = min(of_large, _seconds(large, 1))
        return of_large / of_small
    finally:
        gc.enable()


def _enough(work: Callable[[], object]) -> int:
    """How often to do it for a time that the clock can measure."""
    times = 1
    while _seconds(work, times) < _MIN_SECONDS:
        times *= 4
    return times


def _seconds(work: Callable[[], object], times: int) -> float:
    """Of processor time."""
    began = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - began
