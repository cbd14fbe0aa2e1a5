"""Readers that are slow, that never read, and that vanish without a word: what each gets, and what it costs."""

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import outcome
import psutil
import pytest
import trio
from tests.server.bodies import run_of
from tests.server.clients import Api, EventStream, open_api
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving, settled, until
from tests.unit.http import ws

KIB, MIB = 1024, 1024 * 1024

UNMERGED = {"stream_text_delta_coalescing_enabled": "false"}
"""Every delta is an event of its own, so that a script decides how long a log is."""

SILENT_SECONDS = 10
SMALL_BUFFER = 16 * KIB
"""Of the client's socket: what the server has not written yet, it holds."""


def long_run(chunks: int, size: int) -> dict[str, Any]:
    """A run whose log is twice ``chunks`` times ``size`` long (an event repeats its text as the message's delta), and
    that then says nothing more."""
    return run_of({"hang": True, "after_chunks": chunks, "chunk": "x" * size})


async def connect(server: Server, source: str = "127.0.0.1", buffer: int | None = None) -> trio.SocketStream:
    """A connection from an address of the loopback network."""
    client = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    with trio.fail_after(BOUND_SECONDS):
        await client.bind((source, 0))
        await client.connect(("127.0.0.1", server.port))
    return trio.SocketStream(client)


async def open_websocket(stream: trio.SocketStream, run_id: str) -> ws.RawSocket:
    """A WebSocket that answers nothing."""
    head = b""
    with trio.fail_after(BOUND_SECONDS):
        await stream.send_all(ws.handshake(f"/runs/{run_id}/events/ws"))
        while b"\r\n\r\n" not in head:
            piece = await stream.receive_some(256)
            assert piece, head
            head += piece
    head, _, rest = head.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    return ws.RawSocket(stream, rest)


async def request_stream(stream: trio.SocketStream, run_id: str) -> None:
    await stream.send_all(f"GET /runs/{run_id}/events/sse HTTP/1.1\r\nHost: t\r\n\r\n".encode())


async def log_length(api: Api, run_id: str, events: int) -> int:
    """Wait until so many events are stored; their bytes."""
    size, count, cursor = 0, 0, "0-0"
    with trio.fail_after(4 * BOUND_SECONDS):
        while count < events:
            response = await api.client.get(f"/runs/{run_id}/events", params={"after": cursor, "wait": "5"})
            page = response.json()
            size += len(response.content)
            count += len(page["events"])
            cursor = page["next_cursor"]
    return size


# Slow


@pytest.mark.slow
@pytest.mark.full
async def test_a_reader_that_is_silent_for_ten_seconds_and_resumes_gets_everything(store: StoreServer):
    """On both transports, while the run goes on, and without a reconnect: the server has waited."""
    chunks = 300
    with serving(store.url, **UNMERGED) as server:
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_id = await api.create(long_run(chunks, 20 * KIB))
            streams = [await stack.enter_async_context(await connect(server, buffer=SMALL_BUFFER)) for _ in range(2)]
            events = EventStream(streams[0])
            await events.request(f"/runs/{run_id}/events/sse", [])
            socket_ = await open_websocket(streams[1], run_id)
            first = await events.frame()
            assert first is not None
            assert await log_length(api, run_id, chunks) > 11 * MIB
            await trio.sleep(SILENT_SECONDS)
            await api.cancel(run_id)
            from_stream, from_socket = [first.json], []
            with trio.fail_after(BOUND_SECONDS):
                from_stream += [frame.json for frame in await events.rest()]
                while (frame := await socket_.frame()) is not None and frame[0] != ws.CLOSE:
                    from_socket += [json.loads(frame[1])] if frame[0] == ws.TEXT else []
            assert frame is not None
            assert frame[1] == b"\x03\xe8"
            assert from_stream == from_socket
            numbers = [int(event["id"].split("-")[1]) for event in from_stream]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) > chunks
            assert [from_stream[0]["type"], from_stream[-1]["type"]] == ["run_started", "run_cancelled"]


# Readers that never read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("readers", "chunks", "size", "growth"),
    [
        pytest.param(10, 300, 20 * KIB, 16 * MIB, id="10-of-12-MB"),
        pytest.param(50, 500, 100 * KIB, 64 * MIB, id="50-of-100-MB", marks=pytest.mark.full),
    ],
)
async def test_readers_that_never_read_cost_bounded_memory_and_do_not_hold_up_the_exit(
    store: StoreServer, readers, chunks, size, growth
):
    """Half of them on each transport. Measured from a moment when the log has been read once: the run, the store's
    buffers and the allocator have had their share."""
    with serving(store.url, **UNMERGED) as server:
        memory = psutil.Process(server.pid).memory_info
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_id = await api.create(long_run(chunks, size))
            assert await log_length(api, run_id, chunks) > 1.9 * chunks * size
            before = await settled(lambda: memory().rss)
            for number in range(readers):
                stream = await stack.enter_async_context(await connect(server, buffer=SMALL_BUFFER))
                if number % 2:
                    await open_websocket(stream, run_id)
                else:
                    await request_stream(stream, run_id)
            with trio.fail_after(BOUND_SECONDS):
                peak = max(await settled(lambda: memory().rss), memory().rss)
            assert peak - before < growth, f"{(peak - before) / MIB:.1f} MiB for {readers} readers"
            assert (await api.status(run_id))["status"] == "running"

            began = trio.current_time()
            server.tell(signal.SIGTERM)
            assert await server.exit_status() == 0
            took = trio.current_time() - began
        drained = next(record["seconds"] for record in server.records() if record["event"] == "drained")
        assert took - drained < 2


# Readers that vanish

CLONE_NEWNET = 0x40000000
ENABLE_VANISHING = "needs Linux, root and iproute2 for a network of its own: sudo make test-all"
VANISHING_SOURCE = "127.0.0.2"
CONTROLS = 5


def in_a_network_of_its_own(main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` under Trio in a thread, sockets and child processes of which are in a new network namespace.

    Nothing that happens to its loopback device concerns anyone else. Skips where that is not possible.
    """
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip(ENABLE_VANISHING)

    def run() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            pytest.skip(f"{ENABLE_VANISHING} ({os.strerror(ctypes.get_errno())})")
        ip("link", "set", "lo", "up")
        trio.run(main)

    results: list[outcome.Maybe[None]] = []
    thread = threading.Thread(target=lambda: results.append(outcome.capture(run)))
    thread.start()
    thread.join()
    results[0].unwrap()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=BOUND_SECONDS)


@contextmanager
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("readers", "delay_ms", "stall_seconds", "bound_seconds"),
    [
        pytest.param(40, 500, 2, 5, id="while-events-come"),
        pytest.param(1000, None, 30, 32, id="two-heartbeat-periods", marks=pytest.mark.full),
    ],
)
def test_readers_that_vanish_without_a_word_are_gone_in_time(
    store: StoreServer, readers, delay_ms, stall_seconds, bound_seconds
):
    """From one moment on, no packet to or from them arrives: no FIN, no reset. Others on the same run read on.

    While events come, the kernel notices when one stays unacknowledged for the stall bound. On a silent run the server
    looks at each heartbeat whether the last one was acknowledged: two periods, and two seconds for a busy machine.
    """
    turn = {"hang": True} if delay_ms is None else {"chunks": 1000, "delay_ms": delay_ms}

    async def main() -> None:
        with serving(store.url, stream_stall_seconds=stall_seconds, **UNMERGED) as server:
            async with open_api(server) as api, AsyncExitStack() as stack:
                run_id = await api.create(run_of(turn))
                await api.events_until(run_id, "run_started")
                controls = []
                for _ in range(CONTROLS):
                    stream = EventStream(await stack.enter_async_context(await connect(server)))
                    await stream.request(f"/runs/{run_id}/events/sse", [])
                    controls.append(stream)
                before = descriptors(server)
                for number in range(readers):
                    await vanishing_reader(server, stack, run_id, number)
                assert descriptors(server) >= before + readers
                ip("route", "add", "blackhole", f"{VANISHING_SOURCE}/32", "table", "local")
                # Descriptors of the store's pool, of the API's connection.
                await until(lambda: descriptors(server) <= before + 5, "their connections end", bound_seconds)
                assert '"status":"running"' in (await api.client.get(f"/runs/{run_id}")).text
                await api.cancel(run_id)
                for each in controls:
                    assert (await each.rest())[-1].event == "run_cancelled"

    with many_descriptors():
        in_a_network_of_its_own(main)


async def vanishing_reader(server: Server, stack: AsyncExitStack, run_id: str, number: int) -> None:
    """Half of them on each transport, all with their first event."""
    stream = await connect(server, VANISHING_SOURCE)
    stack.callback(stream.socket.close)
    if number % 2:
        await open_websocket(stream, run_id)
    else:
        await request_stream(stream, run_id)
        with trio.fail_after(BOUND_SECONDS):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))
