"""A wire between a server and its store that a test may silence or slow down."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Final

import trio
from tests.server.harness import BOUND_SECONDS

CHUNK: Final = 64 * 1024
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class StoreWire:
    """Connections from a port to the store's unix socket. Made by `store_wire`, which runs it in a thread."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._age = 0
        self.delay = 0.0
        """Seconds by which each reply is late."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def silence(self) -> None:
        """On the connections that are open now nothing arrives any more, and none is closed: they are half open. Later
        ones work."""
        self._age += 1

    async def serve(self, client: trio.SocketStream) -> None:
        age = self._age
        async with client, await trio.open_unix_socket(self._target) as store, trio.open_nursery() as nursery:
            # Bounded by what a client has in flight; a delay must not hold up what comes behind.
            late, due = trio.open_memory_channel[tuple[float, bytes]](inf)
            nursery.start_soon(self._read_replies, store, late, age)
            nursery.start_soon(self._send_replies, client, due)
            with suppress(*GONE):
                async for data in client:
                    if age == self._age:
                        await store.send_all(data)
            nursery.cancel_scope.cancel()

    async def _read_replies(
        self, store: trio.SocketStream, late: trio.MemorySendChannel[tuple[float, bytes]], age: int
    ) -> None:
        with late, suppress(*GONE):
            async for data in store:
                if age == self._age:
                    late.send_nowait((trio.current_time() + self.delay, bytes(data)))

    async def _send_replies(
        self, client: trio.SocketStream, due: trio.MemoryReceiveChannel[tuple[float, bytes]]
    ) -> None:
        with due, suppress(*GONE):
            async for at, data in due:
                await trio.sleep_until(at)
                await client.send_all(data)


@contextmanager
def store_wire(unix_socket: str) -> Iterator[StoreWire]:
    """In a thread of its own, whatever the test's does meanwhile."""
    wire = StoreWire(unix_socket)
    started, scope = threading.Event(), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def listen() -> None:
        with scope:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            wire.port = listener.socket.getsockname()[1]
            tokens.append(trio.lowlevel.current_trio_token())
            started.set()
            await trio.serve_listeners(wire.serve, [listener])

    thread = threading.Thread(target=trio.run, args=(listen,))
    thread.start()
    try:
        assert started.wait(BOUND_SECONDS)
        yield wire
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join()
