"""How the time of work grows with its size."""

import gc
import time
from collections.abc import Callable

LINEAR = 8.0
"""Between 4 (linear) and 16 (a square)."""

_MIN_SECONDS = 0.005
_ROUNDS = 5


def growth(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """How many times longer work of size ``4 * size`` takes than work of ``size``, each at its best.

    ``prepare`` gives the work of a size; it must stand being done again.
    """
    gc.disable()  # the collector's share is not linear
    try:
        return _best(prepare(4 * size)) / _best(prepare(size))
    finally:
        gc.enable()


def _best(work: Callable[[], object]) -> float:
    """Seconds of processor time."""
    times = 1
    while (seconds := _seconds(work, times)) < _MIN_SECONDS:
        times *= 4
    rounds = _ROUNDS if seconds < 0.2 else 0
    return min([seconds, *(_seconds(work, times) for _ in range(rounds))]) / times


def _seconds(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - began
