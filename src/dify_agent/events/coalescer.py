"""Merging of text deltas (protocol 4.2): a pure state machine without clock or I/O.

A buffer holds at most one text delta and has a deadline only while it is not empty. Who owns the clock calls `flush`
when the deadline passes while the source is waiting; a source that is always ready merges until the size limit or a
barrier.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Final

from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, TextPartDelta


class Coalescer:
    """The merge buffer of one run's event stream.

    ``deadline`` (seconds on the caller's clock, None while the buffer is empty) does not move when text is added.
    ``generation`` counts pushes, so that a caller can tell whether the source has moved since it last looked.
    """

    __slots__ = ("_buffered", "_enabled", "_interval", "_length", "_max_chars", "_pieces", "deadline", "generation")

    def __init__(self, *, enabled: bool, interval_seconds: float, max_chars: int) -> None:
        """Take the settings; ``max_chars`` counts code points of the merged text.

        Raises:
            ValueError: the interval or the size is not positive, also when merging is off.
        """
        if not interval_seconds > 0:
            raise ValueError("the coalescing interval must be positive")
        if max_chars <= 0:
            raise ValueError("the coalescing size must be positive")
        self._enabled: Final = enabled
        self._interval: Final = interval_seconds
        self._max_chars: Final = max_chars
        self._buffered: PartDeltaEvent | None = None
        self._pieces: list[str] = []
        self._length = 0
        self.deadline: float | None = None
        self.generation = 0

    def push(self, event: AgentStreamEvent, now: float) -> tuple[AgentStreamEvent, ...]:
        """Take the source's next event; return what is to be published now, in order."""
        self.generation += 1
        if not self._enabled:
            return (event,)
        if not (isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta)):
            return (*self._flushed(), event)
        due: tuple[AgentStreamEvent, ...] = ()
        if self._buffered is None or not _compatible(self._buffered, event):
            due = self._flushed()
            self._start(event, now)
        self._pieces.append(event.delta.content_delta)
        self._length += len(event.delta.content_delta)
        if self._length >= self._max_chars:
            due = (*due, *self._flushed())
        return due

    def flush(self) -> PartDeltaEvent | None:
        """Take the buffered text out as one event and clear the deadline; None when there is none."""
        first = self._buffered
        if first is None:
            return None
        delta = first.delta
        assert isinstance(delta, TextPartDelta)
        merged = replace(first, delta=replace(delta, content_delta="".join(self._pieces)))
        self._buffered = self.deadline = None
        self._pieces = []
        self._length = 0
        return merged

    def _flushed(self) -> tuple[PartDeltaEvent, ...]:
        merged = self.flush()
        return () if merged is None else (merged,)

    def _start(self, event: PartDeltaEvent, now: float) -> None:
        # The stream may use its delta object again, so the buffer keeps none of the caller's.
        delta = event.delta
        assert isinstance(delta, TextPartDelta)
        details = delta.provider_details and deepcopy(delta.provider_details)
        self._buffered = replace(event, delta=replace(delta, content_delta="", provider_details=details))
        self.deadline = now + self._interval


def _compatible(buffered: PartDeltaEvent, event: PartDeltaEvent) -> bool:
    """Whether two text deltas may become one: same part, same provider members.

    Citations belong to a place in the text, so a delta that carries some is never merged.
    """
    one, other = buffered.delta, event.delta
    assert isinstance(one, TextPartDelta)
    assert isinstance(other, TextPartDelta)
    return (
        buffered.index == event.index
        and one.provider_name == other.provider_name
        and one.provider_details == other.provider_details
        and one.citations_delta is None
        and other.citations_delta is None
    )
