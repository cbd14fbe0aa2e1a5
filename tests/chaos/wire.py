"""A TCP proxy in front of the store whose connections a test cuts or silences."""

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

CHUNK = 64 * 1024


class Wire:
    """Every connection between the replicas and the store. Made by `open_wire`."""

    def __init__(self, target: str, nursery: trio.Nursery, listener: trio.SocketListener) -> None:
        self._target = target
        self._nursery = nursery
        self._pairs: set[tuple[trio.SocketStream, trio.SocketStream]] = set()
        self.port: int = listener.socket.getsockname()[1]

    async def accept(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_unix_socket(self._target)
        except OSError:
            client.socket.close()  # the store is down: as if nobody listened
            return
        pair = (client, server)
        self._pairs.add(pair)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, client, server, nursery.cancel_scope)
                nursery.start_soon(self._copy, server, client, nursery.cancel_scope)
        finally:
            self._pairs.discard(pair)
            for stream in pair:
                stream.socket.close()

    @staticmethod
    async def _copy(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(CHUNK):
                await sink.send_all(data)
        scope.cancel(reason="one side has closed")

    def cut(self, dice: random.Random, share: float) -> int:
        """Reset some of the connections, in the middle of whatever they carry; how many."""
        chosen = [pair for pair in self._pairs if dice.random() < share]
        for client, server in chosen:
            for stream in (client, server):
                with suppress(OSError):
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                    stream.socket.shutdown(socket.SHUT_RDWR)
        return len(chosen)


@asynccontextmanager
async def open_wire(unix_socket: str) -> AsyncIterator[Wire]:
    """A proxy to a unix socket, on a free port."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        wire = Wire(unix_socket, nursery, listener)
        await nursery.start(trio.serve_listeners, wire.accept, [listener])
        yield wire
        nursery.cancel_scope.cancel(reason="the test is over")
