"""Shared parts of the store's contract suite: records, events, the TTL check, and a proxy that loses replies."""

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import trio

from dify_agent.protocol.event_id import START, EventId
from dify_agent.protocol.schemas import RunStatus, RunStatusResponse
from dify_agent.store.base import AppendBatch, CancelIntent, Owner, RunStore, StoredEvent, Terminal

CREATED = datetime(2026, 11, 30, 9, 0, 0, 120001, tzinfo=UTC)
OWNER = Owner("replica-1", 7)
MS = 1_796_041_234_881


@dataclass(frozen=True)
class StoreServer:
    """What the suite runs on."""

    url: str
    nowhere: str
    """A URL of the same kind at which nobody answers."""
    witness: Any
    """redis-py's client, or something that looks like it."""

    def proxy(self) -> "AbstractAsyncContextManager[LossyProxy]":
        """A way to the same data that can lose replies."""
        raise AssertionError("each kind of server has its own")

    def store_clients(self) -> set[str]:
        """Ids of the stores' connections, as the server sees them."""
        own = str(self.witness.client_id())  # older servers do not say which library a client uses
        return {client["id"] for client in self.witness.client_list() if client["id"] != own}

    def run_ids(self, count: int) -> list[str]:
        """Ids of new runs that share a server, so also a round trip."""
        return [run_id() for _ in range(count)]

    async def recovered(self, store: RunStore) -> None:
        """Return when a store has noticed that its servers answer again: at once where it does not keep account."""


@dataclass(frozen=True)
class OneServer(StoreServer):
    """One server on a unix socket."""

    socket: Path

    def proxy(self) -> "AbstractAsyncContextManager[LossyProxy]":
        return lossy_proxy(self.socket)


ONE_SERVER = pytest.mark.parametrize(
    "store_server", ["valkey", pytest.param("redis", marks=pytest.mark.real_redis)], indirect=True
)
"""For tests of what only one server can do, or of how it is reached."""


class CheckedStore:
    """Passes every operation on and then looks at all keys: each must have a TTL no longer than the retention."""

    def __init__(self, inner: RunStore, witness: redis.Redis, prefix: str, *, retention_seconds: int) -> None:
        self._inner = inner
        self._witness = witness
        self._prefix = prefix
        self._retention_seconds = retention_seconds

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        operation = getattr(self._inner, name)

        async def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return await operation(*args, **kwargs)
            finally:
                for key, ttl in ttls(self._witness, self._prefix).items():
                    assert 0 < ttl <= self._retention_seconds * 1000, f"{key} has TTL {ttl} ms after {name}"

        return checked


def ttls(witness: redis.Redis, prefix: str) -> dict[str, int]:
    """TTL in milliseconds of every key under the prefix; -1 for none. Keys that expire while we look are left out."""
    found = {key.decode(): witness.pttl(key) for key in witness.scan_iter(match=f"{prefix}:*", count=1000)}
    return {key: ttl for key, ttl in found.items() if ttl != -2}


def run_id() -> str:
    return str(uuid.uuid4())


def running(run: str) -> RunStatusResponse:
    return RunStatusResponse(run_id=run, status="running", created_at=CREATED, updated_at=CREATED)


def event(n: int, *, ms: int = MS, text: str = "x") -> StoredEvent:
    return StoredEvent(EventId(ms, n), f'{{"type":"pydantic_ai_event","data":[],"t":"{text}{n}"}}'.encode())


def events(first: int, last: int, *, ms: int = MS) -> tuple[StoredEvent, ...]:
    return tuple(event(n, ms=ms) for n in range(first, last + 1))


def batch(run: str, expected: EventId, *items: StoredEvent) -> AppendBatch:
    return AppendBatch(run, expected, items)


def terminal(run: str, status: RunStatus, *, error: str | None = None, ms: int = MS, later: int = 1) -> Terminal:
    """A terminal transition. ``later`` tells two of the same kind apart, as the time of the event does."""
    updated = CREATED + timedelta(seconds=later)
    record = RunStatusResponse(run_id=run, status=status, created_at=CREATED, updated_at=updated, error=error)
    return Terminal(run, record, f'{{"type":"run_{status}","data":{{"later":{later}}}}}'.encode(), ms)


def intent(reason: str | None = "user", message: str | None = "stop") -> CancelIntent:
    return CancelIntent(reason, message, CREATED)


async def finish(store: RunStore, item: Terminal, last: AppendBatch | None = None) -> Any:
    """Finalize by the script that the status calls for."""
    if item.record.status == "cancelled":
        return await store.finalize_cancel(item, last)
    return await store.finalize(item, last)


async def whole_log(store: RunStore, run: str, *, page: int = 100) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    after = START
    while events_page := (await store.read_events(run, after, page)).events:
        found += events_page
        after = found[-1].id
    return found


def texts(log: Sequence[StoredEvent]) -> list[tuple[str, bytes]]:
    return [(str(item.id), item.payload) for item in log]


class LossyProxy:
    """Stands between client and server on a unix socket and cuts a connection at a chosen reply.

    Armed with ``k``, it forwards every request and the next ``k`` replies, then drops the reply after those and cuts:
    the server has carried out everything. ``stall`` makes it swallow replies without cutting; ``arm`` can do that, too.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.cuts = 0
        self.stall = False
        self._left: int | None = None
        self._cut = True

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def arm(self, replies: int, *, cut: bool = True) -> None:
        self._left = replies
        self._cut = cut

    def disarm(self) -> None:
        self._left = None

    def outgoing(self, reply: bytes) -> bytes:
        """The reply as the client gets it."""
        return reply

    async def serve(self, upstream: Path, client: trio.SocketStream) -> None:
        with trio.CancelScope() as both:
            async with client, await trio.open_unix_socket(str(upstream)) as server, trio.open_nursery() as nursery:
                nursery.start_soon(self._forward_requests, client, server, both)
                nursery.start_soon(self._forward_replies, server, client, both)

    async def _forward_requests(
        self, client: trio.SocketStream, server: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        try:
            async for data in client:
                await server.send_all(data)
        except trio.BrokenResourceError:
            pass
        both.cancel(reason="client left")

    async def _forward_replies(
        self, server: trio.SocketStream, client: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        pending = b""
        try:
            async for data in server:
                pending += data
                while (end := reply_end(pending)) is not None:
                    reply, pending = pending[:end], pending[end:]
                    if self._left == 0:
                        self._left = None
                        if not self._cut:
                            self.stall = True
                            continue
                        self.cuts += 1
                        both.cancel(reason="reply lost")
                        return
                    if self._left is not None:
                        self._left -= 1
                    if not self.stall:
                        await client.send_all(self.outgoing(reply))
        except trio.BrokenResourceError:
            pass
        both.cancel(reason="server left")


@asynccontextmanager
async def lossy_proxy(upstream: Path) -> AsyncIterator[LossyProxy]:
    proxy = LossyProxy(upstream.with_name(f"p{next(_numbers)}"))
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(proxy.socket))
    listener.listen()
    async with trio.open_nursery() as nursery:
        serve = lambda client: proxy.serve(upstream, client)  # noqa: E731
        await nursery.start(trio.serve_listeners, serve, [trio.SocketListener(listener)])
        yield proxy
        nursery.cancel_scope.cancel(reason="test over")


_numbers = itertools.count()


def reply_end(data: bytes, start: int = 0) -> int | None:
    """Where the RESP reply at ``start`` ends, or None while it is incomplete."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    kind, head, position = data[start : start + 1], data[start + 1 : line], line + 2
    if kind in b"$=!" and head != b"-1":
        end = position + int(head) + 2
        return end if end <= len(data) else None
    if kind in b"*~>%" and head != b"-1":
        for _ in range(int(head) * (2 if kind == b"%" else 1)):
            inner = reply_end(data, position)
            if inner is None:
                return None
            position = inner
    return position
