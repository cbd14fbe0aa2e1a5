"""What both sides of `bench.gateways` ask, what they are answered, and whether they have got it. Light to import."""

import sys

PROMPT = "Hello."
PIECES = tuple(f"{number:03} " for number in range(200))
"""All different, so that one lost or out of place is seen."""
TEXT = "".join(PIECES)
DELTAS = len(PIECES) - 1
"""The first piece begins the part."""

AT_ONCE, PACED = "at-once", "paced"
PACES = {AT_ONCE: 0.0, PACED: 0.002}
"""Seconds before each write, by the name of the model that is asked. Slower than either side reads, so that each piece
is a wake-up of its own."""
PACED_SHARE = 0.2
"""Of the CPU time that a sample of the unpaced runs takes: paced ones are mostly waiting."""


def check_run(text: object, deltas: int) -> None:
    """End the process when a run has not said all of the text, or not piece by piece."""
    if text != TEXT or deltas != DELTAS:
        sys.exit(f"a run gave {deltas} text deltas in place of {DELTAS}, and the text {text!r}")
