"""A publisher over the fake store, without any actor: what the publisher's own tests stand on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import StopKind
from dify_agent.actors.publisher import Publisher
from dify_agent.actors.run_log import ENDABLE, LogLostError, RunLog
from dify_agent.protocol.event_id import EventId
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.base import Owner, StoredEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(run_id: str) -> RunStatusResponse:
    """A running run's record."""
    return RunStatusResponse(run_id=run_id, status="running", created_at=NOW, updated_at=NOW)


def payload(kind: str = "pydantic_ai_event", filler: str = "") -> bytes:
    """What an event's text needs for the parts under test to read it."""
    return b'{"run_id":"r","created_at":"t","type":"%b","data":"%b"}' % (kind.encode(), filler.encode())


def event(n: int, kind: str = "pydantic_ai_event", *, ms: int = 1, filler: str = "") -> StoredEvent:
    """The run's n-th event."""
    return StoredEvent(EventId(ms, n), payload(kind, filler))


async def flushed(log: RunLog) -> None:
    """Return when every offered event is stored, or was dropped and the run can still be ended.

    Raises:
        LogLostError: it cannot.
    """
    while log.lost is None and not log.idle:
        await log.settled()
    if log.lost is not None and log.lost not in ENDABLE:
        raise LogLostError(log.lost)


@dataclass
class OpenLog:
    """One run's log, and what its actor was told."""

    log: RunLog
    live: LiveLog
    told: list[tuple[StopKind, str]] = field(default_factory=list)

    def offer(self, *fillers: str) -> None:
        for filler in fillers:
            self.log.offer(payload(filler=filler))


@dataclass
class Desk:
    """A store, a publisher over it, and the nursery in which ``serve`` runs."""

    store: FakeStore
    publisher: Publisher
    nursery: trio.Nursery

    def open(self, run_id: str) -> OpenLog:
        self.store.runs[run_id] = FakeRun(record(run_id), Owner("me", 1))
        live = LiveLog()
        told: list[tuple[StopKind, str]] = []
        log = self.publisher.open_log(run_id, live, lambda kind, detail: told.append((kind, detail)))
        return OpenLog(log, live, told)

    def texts(self, run_id: str) -> list[str]:
        return [e.payload.split(b'"data":"')[1][:-2].decode() for e in self.store.runs[run_id].events]


@asynccontextmanager
async def desk(
    *, queue_bytes: int = 1 << 20, outage_seconds: float = 60, linger_seconds: float = 30, serve: bool = True
) -> AsyncIterator[Desk]:
    """A publisher at work; leaving cancels it."""
    store = FakeStore()
    publisher = Publisher(store, queue_bytes=queue_bytes, outage_seconds=outage_seconds, linger_seconds=linger_seconds)
    async with trio.open_nursery() as nursery:
        if serve:
            await nursery.start(publisher.serve)
        yield Desk(store, publisher, nursery)
        nursery.cancel_scope.cancel()
