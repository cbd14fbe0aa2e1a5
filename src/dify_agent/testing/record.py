"""What the fakes were asked: every request and how it ended, for instance by the client leaving. Bounded in memory."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import trio
from pydantic_core import from_json

KEPT_REQUESTS: Final = 10_000
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of request bodies. Enough for the tests of a day or the end of a load test; the oldest go first."""

SECRET_HEADERS: Final = frozenset({"x-inner-api-key", "x-api-key", "authorization", "proxy-authorization", "cookie"})
MASK: Final = "***"


class Outcome(StrEnum):
    """How a request stands."""

    OPEN = "open"
    """It is being answered, or hangs as its step says."""
    ANSWERED = "answered"
    """All of the answer was sent."""
    CUT = "cut"
    """The connection was closed or reset as the step says."""
    LEFT = "left"
    """The client left before the end of the answer."""
    STOPPED = "stopped"
    """The fakes were stopped before the end of the answer."""


@dataclass(eq=False)
class RecordedRequest:
    """A request and what became of it. Changed by the fakes only."""

    number: int
    """From 1, in order of arrival."""
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    """With lower-case names; keys included."""
    raw_body: bytes = field(repr=False)
    query: str = field(default="", repr=False)
    """As it came, without the question mark."""
    arrived: float = field(default_factory=time.time)
    """Unix time, seconds."""
    status: int | None = None
    """Of the answer; None while no head is sent."""
    outcome: Outcome = Outcome.OPEN
    sent_bytes: int = 0
    """Of the answer's body."""
    seconds: float | None = None
    """From the arrival to the end."""

    @property
    def left(self) -> bool:
        """Whether the client left before the end of the answer."""
        return self.outcome is Outcome.LEFT

    @property
    def body(self) -> Any:
        """The body, parsed at each look; its text where it is no JSON, or nested too deep; None where there is none."""
        if not self.raw_body:
            return None
        try:
            return from_json(self.raw_body)  # its limit of 200 levels is the same on every interpreter
        except ValueError:
            return self.raw_body.decode(errors="replace")

    def as_json(self) -> dict[str, Any]:
        """For another process: without the secrets of the headers."""
        return {
            "number": self.number,
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": {name: MASK if name in SECRET_HEADERS else value for name, value in self.headers.items()},
            "body": self.body,
            "arrived": self.arrived,
            "status": self.status,
            "outcome": self.outcome,
            "left": self.left,
            "sent_bytes": self.sent_bytes,
            "seconds": self.seconds,
        }


class Recorder(Sequence[RecordedRequest]):
    """The newest requests, oldest first."""

    def __init__(self, *, kept_requests: int = KEPT_REQUESTS, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: deque[RecordedRequest] = deque()
        self._kept_requests = kept_requests
        self._kept_bytes = kept_bytes
        self._bytes = 0
        self._changed = trio.lowlevel.ParkingLot()
        self.total = 0
        """Requests so far, those that are no longer kept included."""

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        return list(self._kept)[index] if isinstance(index, slice) else self._kept[index]

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(tuple(self._kept))

    def to(self, path: str) -> list[RecordedRequest]:
        """The kept requests whose path contains ``path``."""
        return [request for request in self._kept if path in request.path]

    def bodies(self, path: str) -> list[Any]:
        """Their bodies."""
        return [request.body for request in self.to(path)]

    def add(self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: str = "") -> RecordedRequest:
        """Keep a request, and drop the oldest ones beyond the bounds; the newest stays whatever its size."""
        self.total += 1
        request = RecordedRequest(self.total, method, path, headers, body, query)
        self._kept.append(request)
        self._bytes += len(body)
        while len(self._kept) > 1 and (len(self._kept) > self._kept_requests or self._bytes > self._kept_bytes):
            self._bytes -= len(self._kept.popleft().raw_body)
        self._changed.unpark_all()
        return request

    def end(self, request: RecordedRequest, outcome: Outcome) -> None:
        """Say how a request ended. The first word counts."""
        if request.outcome is Outcome.OPEN:
            request.outcome = outcome
            request.seconds = max(0.0, time.time() - request.arrived)
            self._changed.unpark_all()

    def clear(self) -> None:
        """Forget everything; numbers start again."""
        self._kept.clear()
        self._bytes = self.total = 0

    async def wait_for(self, condition: Callable[[RecordedRequest], bool]) -> RecordedRequest:
        """The first kept request with the condition, as soon as there is one; looked for at arrivals and ends.

        The caller sets the bound.
        """
        while True:
            for request in self:
                if condition(request):
                    return request
            await self._changed.park()
