"""What silencing is, at both ends of a connection: nothing arrives, and nothing is closed."""

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.chaos.record import Span
from tests.chaos.wire import Wire, open_wires

SECONDS = 5.0
QUIET_SECONDS = 0.03


@dataclass
class Echo:
    """A server that says what it hears."""

    heard: list[bytes] = field(default_factory=list)
    streams: list[trio.SocketStream] = field(default_factory=list)
    left: int = 0
    """Connections that are over for it."""

    async def handle(self, stream: trio.SocketStream) -> None:
        self.streams.append(stream)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                self.heard.append(bytes(data))
                await stream.send_all(data)
        self.left += 1


@asynccontextmanager
async def wired(folder: Path) -> AsyncIterator[tuple[Echo, Wire, list[Span]]]:
    """A server behind a wire."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        echo, troubles = Echo(), list[Span]()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, echo.handle, [listener])
            async with open_wires(str(folder / "s")) as wires:
                yield echo, await wires.open(troubles), troubles
            nursery.cancel_scope.cancel(reason="the test is over")


async def said(stream: trio.SocketStream, data: bytes) -> bytes | None:
    """The answer, None when none comes."""
    await stream.send_all(data)
    with trio.move_on_after(QUIET_SECONDS):
        return bytes(await stream.receive_some())
    return None


@pytest.mark.parametrize("commands", [False, True])
async def test_a_silent_connection_loses_what_is_said_and_stays_open(tmp_path: Path, commands: bool) -> None:
    with trio.fail_after(SECONDS):
        async with wired(tmp_path) as (echo, wire, troubles):
            early = await trio.open_tcp_stream("127.0.0.1", wire.port)
            assert await said(early, b"one") == b"one"
            with wire.silenced(commands=commands):
                late = await trio.open_tcp_stream("127.0.0.1", wire.port)
                assert await said(early, b"two") is None
                assert await said(late, b"three") is None
                await echo.streams[0].aclose()
            assert await said(late, b"four") is None, "half open until it is given up"
            assert await said(early, b"five") is None, "the other end has gone, and that is not told"
            assert echo.heard == ([b"one"] if commands else [b"one", b"two", b"three", b"four"])
            new = await trio.open_tcp_stream("127.0.0.1", wire.port)
            assert await said(new, b"six") == b"six"
            assert [span.end for span in troubles] == [float("inf")] * 2
            for stream in (early, late):
                await stream.aclose()
            await wait_all_tasks_blocked(0.01)
            assert all(span.start < span.end < float("inf") for span in troubles)
            await new.aclose()


async def test_a_connection_that_nobody_uses_is_no_trouble(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS):
        async with wired(tmp_path) as (_, wire, troubles):
            async with await trio.open_tcp_stream("127.0.0.1", wire.port) as stream:
                assert await said(stream, b"one") == b"one"
                with wire.silenced(commands=True):
                    await wait_all_tasks_blocked(0.01)
                assert troubles == []


async def test_a_cut_connection_is_closed_at_both_ends(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS):
        async with wired(tmp_path) as (echo, wire, troubles):
            stream = await trio.open_tcp_stream("127.0.0.1", wire.port)
            assert await said(stream, b"one") == b"one"
            assert wire.cut(random.Random(0), 1.0) == 1
            with suppress(trio.BrokenResourceError):
                assert not await stream.receive_some()
            await wait_all_tasks_blocked(0.01)
            assert echo.left == 1
            assert troubles == []
            await stream.aclose()
