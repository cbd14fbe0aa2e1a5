"""Beginnings of explorations that together meet every transition and outcome; their traces are replayed."""

from collections.abc import Iterator
from functools import cache

from tests.model.explore import Exploration, explore
from tests.model.state import EVERY_KIND, Bounds, Label, Rules

EVERYTHING = Bounds(events=2, late=EVERY_KIND, cut=True, ghost=True, expiry=True, thaw=True)
BEGINNINGS = (
    (EVERYTHING, 20_000),
    (Bounds(events=1, late=EVERY_KIND), 34_000),
    (Bounds(events=1), 40_000),
    (Bounds(events=0, late=("finish-cancel",), expiry=True), 21_000),
    (Bounds(events=0, partial=True), 2_000),
)
"""Bounds, and how many states are visited, breadth first. Rare outcomes come late where much else can happen."""


def explorations() -> Iterator[Exploration]:
    """Each of the beginnings."""
    for bounds, most in BEGINNINGS:
        yield explore(Rules(), bounds, most=most)


@cache
def labels() -> frozenset[Label]:
    """All that the beginnings meet."""
    return frozenset(label for found in explorations() for label in found.edges)
