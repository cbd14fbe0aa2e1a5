"""Explores every reachable state, breadth first, and asks of each what must hold."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, compress

from tests.model import owner, reaping, world
from tests.model.invariants import violated
from tests.model.state import Bounds, Label, Rules, State
from tests.model.world import Move, is_fair


def moves(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    """Every transition out of a state."""
    return chain(owner.moves(s, rules, bounds), reaping.moves(s, rules, bounds), world.moves(s, rules, bounds))


@dataclass
class Exploration:
    """What was found. Traces are the shortest ones."""

    states: list[State]
    cause: list[tuple[int, Label] | None]
    """How each state was first reached."""
    edges: dict[Label, tuple[int, State]] = field(default_factory=dict)
    """The first occurrence of each label: state it left, state it reached."""
    broken: dict[str, int] = field(default_factory=dict)
    """Invariants that failed, each with the first state in which it did."""
    transitions: int = 0

    def trace(self, number: int) -> list[tuple[Label, State]]:
        """The way to a state: labels, and the state after each."""
        steps = []
        while (cause := self.cause[number]) is not None:
            steps.append((cause[1], self.states[number]))
            number = cause[0]
        return steps[::-1]

    def story(self, name: str) -> str:
        """The way to a failed invariant, one line per step."""
        steps = self.trace(self.broken[name])
        return f"{name}:\n" + "\n".join(f"  {label}" for label, _ in steps)


STUCK = "every run is finally terminal if any replica lives"


def explore(rules: Rules, bounds: Bounds, *, until: str = "", most: float = math.inf) -> Exploration:
    """All states that can be reached.

    ``until`` names an invariant: its first failure ends the search. ``most`` ends it after so many states; then nothing
    is said about `STUCK`.
    """
    start = [State()] + ([State(ghost=True)] if bounds.ghost else [])
    found = Exploration(list(start), [None] * len(start))
    numbers = {state: number for number, state in enumerate(start)}
    sources, targets = array("L"), array("L")
    number = 0
    while number < len(found.states):
        s = found.states[number]
        for name in violated(s):
            found.broken.setdefault(name, number)
        if until in found.broken or number >= most:
            return found
        for label, after in moves(s, rules, bounds):
            found.transitions += 1
            if label not in found.edges:
                found.edges[label] = (number, after)
            target = numbers.get(after)
            if target is None:
                target = numbers[after] = len(found.states)
                found.states.append(after)
                found.cause.append((number, label))
            if target != number and is_fair(label):
                sources.append(number)
                targets.append(target)
        number += 1
    stuck = _stuck(found.states, sources, targets)
    if stuck:
        found.broken[STUCK] = stuck[0]
    return found


def _stuck(states: list[State], sources: array, targets: array) -> list[int]:
    """States with a running run, a living replica and a store, from which no way without a fault leads to an end.

    An end stays one (that is another invariant), so with strong fairness a way that exists is taken in the end.
    """
    ends = bytearray(state.record != "running" for state in states)
    heads, following = _grouped(sources, targets, len(states))
    waiting = list(compress(range(len(states)), ends))
    while waiting:
        number = waiting.pop()
        for position in range(heads[number], heads[number + 1]):
            before = following[position]
            if not ends[before]:
                ends[before] = True
                waiting.append(before)
    return [n for n, s in enumerate(states) if not ends[n] and s.up and (s.life == "up" or s.watching)]


def _grouped(sources: array, targets: array, count: int) -> tuple[array, array]:
    """The edges by target: where each target's sources begin, and the sources."""
    heads = array("L", bytes(array("L").itemsize * (count + 1)))
    for target in targets:
        heads[target + 1] += 1
    for number in range(count):
        heads[number + 1] += heads[number]
    place, grouped = array("L", heads), array("L", bytes(array("L").itemsize * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        grouped[place[target]] = source
        place[target] += 1
    return heads, grouped
