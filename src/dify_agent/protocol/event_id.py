"""Event ids: ``<ms>-<n>``, where ``n`` is the ordinal of the event in its run from 1 (decision R2).

Opaque to callers. Inside, the ordinal tells a reader how many events were trimmed between two that it sees.
"""

import re
from typing import NamedTuple, Self

_PATTERN = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", re.ASCII)
_LIMIT = 1 << 64


class EventId(NamedTuple):
    """A position in a run's log. Ordered as Redis orders stream ids: by ``ms``, then by ``n``."""

    ms: int
    n: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.n}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cursor: ``N`` (meaning ``N-0``) or ``N-M``, both below 2^64 (decision R3).

        Raises:
            ValueError: for anything else, with a text that does not repeat the input.
        """
        match = _PATTERN.fullmatch(text)
        if match is not None:
            ms, n = int(match[1]), int(match[2] or 0)
            if ms < _LIMIT and n < _LIMIT:
                return cls(ms, n)
        raise ValueError("a cursor must be '<number>' or '<number>-<number>', both below 2^64")


START = EventId(0, 0)
"""The cursor before the first event."""


def missing_between(after: EventId, first: EventId) -> int:
    """How many events of the run lie between a reader's position and its next event, so were trimmed (decision R4).

    Zero for a cursor that is no event's id of this server (ordinal 0, but not the start): nothing is known about it.
    """
    if after != START and after.n == 0:
        return 0
    return max(0, first.n - after.n - 1)
