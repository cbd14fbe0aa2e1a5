"""TCP proxies in front of the store, one for each process, whose connections a test cuts or silences."""

import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from tests.chaos.record import Span

CHUNK: Final = 64 * 1024
_RESET: Final = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""SO_LINGER for so many seconds as none: closing sends a reset."""

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass
class Counts:
    """What was done to the connections of all wires."""

    cut: int = 0
    silenced: int = 0
    swallowed: int = 0
    """Bytes."""


@dataclass(eq=False)
class _Connection:
    """Once silenced it stays half open: its bytes are lost, so that nothing that follows them could be understood."""

    client: trio.SocketStream
    server: trio.SocketStream
    commands_lost: bool = False
    replies_lost: bool = False
    waiting: Span | None = None
    """From the first byte that was swallowed: somebody waits for an answer that will not come."""


class Wire:
    """Every connection between one process and the store. Made by `Wires.open`."""

    def __init__(self, target: str, listener: trio.SocketListener, troubles: list[Span], counts: Counts) -> None:
        self._target = target
        self._listener = listener
        self._connections: set[_Connection] = set()
        self._troubles = troubles
        self._counts = counts
        self._scope = trio.CancelScope()
        self._silence: bool | None = None
        """While it lasts: whether commands are lost as well."""
        self.port: int = listener.socket.getsockname()[1]

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`."""
        with self._scope:
            await trio.serve_listeners(self._accept, [self._listener], task_status=task_status)

    def close(self) -> None:
        self._scope.cancel(reason="its process has ended")

    async def _accept(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_unix_socket(self._target)
        except OSError:
            client.socket.close()  # the store is down: as if nobody listened
            return
        connection = _Connection(client, server)
        self._connections.add(connection)
        if self._silence is not None:
            self._make_silent(connection, commands=self._silence)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry_commands, connection, nursery.cancel_scope)
                nursery.start_soon(self._carry_replies, connection, nursery.cancel_scope)
        finally:
            self._connections.discard(connection)
            if connection.waiting is not None:
                connection.waiting.end = time.time()
            for stream in (client, server):
                stream.socket.close()

    async def _carry_commands(self, connection: _Connection, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            while data := await connection.client.receive_some(CHUNK):
                if connection.commands_lost:
                    self._swallow(connection, data)
                    continue
                try:
                    await connection.server.send_all(data)
                except _GONE:
                    if not connection.replies_lost:
                        break
                    self._swallow(connection, data)  # the store has gone, and its leaving was not heard
        scope.cancel(reason="the process has closed")

    async def _carry_replies(self, connection: _Connection, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            while data := await connection.server.receive_some(CHUNK):
                if connection.replies_lost:
                    self._swallow(connection, data)
                else:
                    await connection.client.send_all(data)
        if not connection.replies_lost:
            scope.cancel(reason="the store has closed")

    def _swallow(self, connection: _Connection, data: bytes | bytearray) -> None:
        self._counts.swallowed += len(data)
        if connection.waiting is None:
            connection.waiting = Span(time.time())
            self._troubles.append(connection.waiting)

    def cut(self, dice: random.Random, share: float) -> int:
        """Reset some of the connections, in the middle of whatever they carry; how many."""
        chosen = [connection for connection in self._connections if dice.random() < share]
        for connection in chosen:
            for stream in (connection.client, connection.server):
                with suppress(OSError):
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    stream.socket.shutdown(socket.SHUT_RDWR)
        self._counts.cut += len(chosen)
        return len(chosen)

    @contextmanager
    def silenced(self, *, commands: bool) -> Iterator[None]:
        """Nothing that the store says arrives, nor, if told so, any command; no connection is closed by that.

        Those that are open now, or opened meanwhile, stay silent until their process gives them up. Later ones work.
        """
        self._silence = commands
        for connection in self._connections:
            self._make_silent(connection, commands=commands)
        try:
            yield
        finally:
            self._silence = None

    def _make_silent(self, connection: _Connection, *, commands: bool) -> None:
        if not connection.replies_lost:
            self._counts.silenced += 1
        connection.commands_lost |= commands
        connection.replies_lost = True


@dataclass
class Wires:
    """All proxies to one store. Made by `open_wires`."""

    target: str
    nursery: trio.Nursery
    """Of `open_wires`, which ends it."""
    counts: Counts = field(default_factory=Counts)

    async def open(self, troubles: list[Span]) -> Wire:
        """A proxy on a free port. It adds the times in which its process waits for lost answers to ``troubles``."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        wire = Wire(self.target, listener, troubles, self.counts)
        await self.nursery.start(wire.serve)
        return wire


@asynccontextmanager
async def open_wires(unix_socket: str) -> AsyncIterator[Wires]:
    """Proxies to a unix socket."""
    async with trio.open_nursery() as nursery:
        yield Wires(unix_socket, nursery)
        nursery.cancel_scope.cancel(reason="the test is over")
