"""The life of a run as a pure state machine: no I/O, no clock, illegal moves are errors.

::

    admitted ──> entering ──> running ──> exiting ──> finalising ──> done
        │            │  └────────────────────┘ ▲           ▲
        │            └──────────────────────── │ ──────────┤   (a check failed before any layer was entered)
        └──────────────────────────────────────────────────┘   (stopped before it began)

Every phase has a bound; the actor looks it up with the phase it is in.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where a run is."""

    ADMITTED = "admitted"
    ENTERING = "entering"
    RUNNING = "running"
    EXITING = "exiting"
    FINALISING = "finalising"
    DONE = "done"


_MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.ADMITTED: frozenset({Phase.ENTERING, Phase.FINALISING}),
    Phase.ENTERING: frozenset({Phase.RUNNING, Phase.EXITING, Phase.FINALISING}),
    Phase.RUNNING: frozenset({Phase.EXITING, Phase.FINALISING}),
    Phase.EXITING: frozenset({Phase.FINALISING}),
    Phase.FINALISING: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}


class IllegalTransitionError(Exception):
    """A move the state machine does not have: a bug in the actor."""


class Lifecycle:
    """The current phase of one run. ``moved`` is told of each move: the phase before, and the phase after.

    None stands for before the first phase and behind the last one.
    """

    def __init__(self, moved: Callable[[Phase | None, Phase | None], None] = lambda _old, _new: None) -> None:
        self.phase = Phase.ADMITTED
        self._moved = moved
        self._over = False
        moved(None, self.phase)

    def move(self, phase: Phase) -> None:
        """Enter ``phase``.

        Raises:
            IllegalTransitionError: the machine has no such move.
        """
        if phase not in _MOVES[self.phase]:
            raise IllegalTransitionError(f"a run cannot go from {self.phase} to {phase}")
        self._moved(self.phase, phase)
        self.phase = phase

    def leave(self) -> None:
        """The run is over, whatever its phase: it is in none any more. May be called again."""
        if not self._over:
            self._over = True
            self._moved(self.phase, None)
