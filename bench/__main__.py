"""``python -m bench [--quick] [--only KEY,KEY]``: measure, print a table, write ``build/bench.json``.

Ends with 0 whether targets are met or not, with 1 when something could not be measured.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Collection

from rich.console import Console

from bench.cold_start import COLD_START
from bench.commands import COMMANDS
from bench.connections import CONNECTIONS
from bench.delivery import DELIVERY
from bench.figures import FIGURES, FULL, QUICK, Effort, Reading, needed, with_ratios
from bench.gateways import GATEWAYS
from bench.latency import LATENCY
from bench.loops import LOOPS
from bench.memory import MEMORY
from bench.report import show, write
from bench.server_cpu import SERVER_CPU

FILE_WIDTH = 150
MEASUREMENTS = (LOOPS, GATEWAYS, SERVER_CPU, COMMANDS, MEMORY, DELIVERY, LATENCY, CONNECTIONS, COLD_START)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what runs cost.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples: to see that it works")
    parser.add_argument("--only", metavar="KEY,KEY", help="only these figures, and what they are computed from")
    return parser.parse_args()


def measure(console: Console, keys: Collection[str], effort: Effort) -> dict[str, Reading]:
    """What could be read of the figures; a measurement that fails is reported and left out."""
    readings: dict[str, Reading] = {}
    for measurement in MEASUREMENTS:
        if set(keys).isdisjoint(measurement.keys):
            continue
        console.print(f"measuring {', '.join(measurement.keys)}", style="dim", highlight=False)
        try:
            readings |= measurement.run(effort)
        except Exception:  # noqa: BLE001 - one that fails must not take the other figures with it
            traceback.print_exc()
    return with_ratios(readings)


def main() -> int:
    """Run the benchmark; returns the exit status."""
    given = _arguments()
    # Where nobody looks at a terminal, a table cut to 80 columns helps nobody.
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    try:
        keys = needed(given.only.split(",")) if given.only else {figure.key for figure in FIGURES}
    except ValueError as unknown:
        console.print(str(unknown), style="red")
        return 1
    began = time.monotonic()
    readings = measure(console, keys, QUICK if given.quick else FULL)
    show(console, readings, keys)
    console.print(f"wrote {write(readings, keys)} after {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if keys <= readings.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
