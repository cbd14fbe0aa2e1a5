"""What was done to whom, and when: what the audit needs to tell an explained ending from one that is a bug.

Times are those of the wall clock, in seconds: replicas stamp their events by the same one.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dify_agent.actors.heartbeat import BEATS_PER_LEASE, RETRY_SECONDS

LEASE: Final = 2.0
OUTAGE: Final = 15.0
VERDICT_SECONDS: Final = LEASE + 5
"""The documented bound of a verdict while the store is up (operations.md)."""
_BUSY: Final = 0.25
"""What a beat may take on a machine that does other things as well."""
MISSED_SECONDS: Final = LEASE - LEASE / BEATS_PER_LEASE - _BUSY
"""An owner that is kept from the store for longer may lose its lease: the last beat may be a whole interval old."""
SOON: Final = RETRY_SECONDS + _BUSY
"""Troubles that follow each other so closely are one: a beat may fail in the first and be tried again in the next."""
STALL_SECONDS: Final = 0.4


@dataclass
class Span:
    """A time; it lasts while ``end`` is not known."""

    start: float
    end: float = math.inf


@dataclass
class Life:
    """One process, which is one owner."""

    number: int
    """Of the replica's place."""
    began: float
    owner: str = ""
    """Its id in the store, known when it listens."""
    told: float | None = None
    """When it got its first SIGTERM."""
    killed: float | None = None
    ended: float | None = None
    """When its end was seen, told or killed or not."""
    frozen: list[Span] = field(default_factory=list)
    waiting: list[Span] = field(default_factory=list)
    """Times in which it waited for an answer that the wire had swallowed."""
    cuts: list[float] = field(default_factory=list)
    """When connections of it were reset."""

    @property
    def long_troubles(self) -> list[Span]:
        """What kept it from the store for a while."""
        return [*self.frozen, *self.waiting]

    @property
    def troubles(self) -> list[Span]:
        """What kept it from the store; a reset connection until a beat is tried again."""
        return [*self.long_troubles, *(Span(at, at + RETRY_SECONDS) for at in self.cuts)]

    @contextmanager
    def freezing(self) -> Iterator[None]:
        """It does nothing within the body."""
        span = Span(time.time())
        self.frozen.append(span)
        try:
            yield
        finally:
            span.end = time.time()


@dataclass
class Record:
    """All processes, and what befell everybody."""

    lives: list[Life] = field(default_factory=list)
    away: list[Span] = field(default_factory=list)
    """When the store was killed or frozen."""
    stalls: list[Span] = field(default_factory=list)
    """When this very process was not scheduled either."""

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """The store answers nobody within the body."""
        span = Span(time.time())
        self.away.append(span)
        try:
            yield
        finally:
            span.end = time.time()

    def life_of(self, owner: str) -> Life | None:
        return next((life for life in self.lives if life.owner == owner), None)

    def why_lost(self, life: Life, at: float) -> str | None:
        """How an owner came to be judged at that time; None: nothing that was done to it explains it.

        The store's being away is no reason by itself: reapers watch it for a whole lease before they judge.
        """
        if life.killed is not None and at >= life.killed:
            return "killed"
        if life.told is not None and life.ended is not None and at >= life.ended and self._drained_in_trouble(life):
            return "told to stop while the store was out of reach"
        if any(_covers(chain, at, MISSED_SECONDS) for chain in self._chains(life)):
            return "kept from the store"
        return None

    def _chains(self, life: Life) -> list[Span]:
        """Times in which it was kept from the store. Resets alone are none: beats pass between them."""
        longer = [*life.long_troubles, *self.stalls]
        chains = joined([*life.troubles, *self.stalls])
        return [chain for chain in chains if any(_overlap(chain, span) for span in longer)]

    def _drained_in_trouble(self, life: Life) -> bool:
        assert life.told is not None
        drain = Span(life.told, life.ended or math.inf)
        return any(_overlap(drain, span) for span in (*self.away, *self.stalls, *life.troubles))

    def was_out_of_reach(self, life: Life, at: float, seconds: float) -> bool:
        """Whether the store had given that process no answer for so long at that time."""
        chains = joined([*self.away, *self.stalls, *life.troubles])
        return any(_covers(chain, at, seconds) for chain in chains)

    def verdict_due(self, lost: Life, since: float) -> float:
        """Until when a run of an owner that is lost since then must have its verdict.

        The bound counts while the store is up: from the beginning of a time in which one other process lived, and
        neither it nor the store had any trouble.
        """
        others = (life for life in self.lives if life is not lost and life.owner)
        return min((self._quiet(life, since) + VERDICT_SECONDS for life in others), default=math.inf)

    def _quiet(self, life: Life, since: float) -> float:
        """From when on nothing kept a process from the store for as long as a verdict may take."""
        until = min((each for each in (life.told, life.killed, life.ended) if each is not None), default=math.inf)
        start = max(since, life.began)
        for span in joined([*self.away, *self.stalls, *life.troubles], soon=0):
            if span.start - start >= VERDICT_SECONDS:
                break
            start = max(start, span.end)
        return start if until - start >= VERDICT_SECONDS else math.inf

    def last_trouble(self) -> float:
        """When the last of everything was over; ``inf`` while something lasts."""
        spans = [*self.away, *self.stalls, *(span for life in self.lives for span in life.troubles)]
        ends = [moment for life in self.lives for moment in (life.began, life.killed, life.ended) if moment is not None]
        return max([*(span.end for span in spans), *ends], default=0)


def joined(spans: Iterable[Span], soon: float = SOON) -> list[Span]:
    """Spans that overlap, or follow each other within ``soon`` seconds, as one; in order."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if result and span.start <= result[-1].end + soon:
            result[-1].end = max(result[-1].end, span.end)
        else:
            result.append(Span(span.start, span.end))
    return result


def _overlap(one: Span, other: Span) -> bool:
    return one.start <= other.end and other.start <= one.end


def _covers(chain: Span, at: float, seconds: float) -> bool:
    """Whether at that time the chain had lasted for so long, and was not over for longer than a verdict may take."""
    return min(at, chain.end) - chain.start >= seconds and at <= chain.end + VERDICT_SECONDS
