"""Many readers of one replica: what they cost the runs, and what they leave behind."""

import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import redis
import trio
from tests.server.bodies import STREAM_THEN_HANG, run_of
from tests.server.clients import TERMINALS, open_api, open_stream
from tests.server.endings import moment
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving, settled, until
from tests.server.test_inside import client_of, inside, tasks
from tests.server.test_leaks import holdings
from tests.server.test_readers import KIB, MIB, UNMERGED, connect, log_length, long_run, open_websocket, request_stream
from tests.unit.http import ws

from dify_agent.store.embedded import running_server, valkey_binary

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    """A store that only the servers of one test are connected to."""
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield StoreServer(process.url, witness)


# A crowd that waits


DELAY_SECONDS = 1.0
"""How long after the model's end the terminal event may be made, and may arrive at a reader."""
CROWDED_RUNS = 5
CHUNKS = 10
"""Of each run of the crowd. Each piece of text wakes a fifth of it."""
APART_SECONDS = 1.0
"""Between the ends of the crowd's runs."""
QUICK_RUN = {"chunks": 10, "delay_ms": 50}
QUICK_RUNS = 5
COMPLETE_SECONDS = 60.0


class Delays(NamedTuple):
    """In seconds after the last event of the model."""

    written: float
    arrived: float


async def delays_of(server: Server, run_id: str) -> Delays:
    """Read a run to its end, on a connection of its own."""
    ended = 0.0
    async with open_stream(server, run_id) as stream:
        events: list[dict[str, Any]] = []
        while not ended:
            frame = await stream.frame(within=COMPLETE_SECONDS)
            assert frame is not None
            events.append(frame.json)
            if frame.event in TERMINALS:
                ended = datetime.now(UTC).timestamp()
    assert events[-1]["type"] == "run_succeeded"
    model = moment(events[-2]).timestamp()
    return Delays(moment(events[-1]).timestamp() - model, ended - model)


@asynccontextmanager
async def crowd(server: Server, pollers: int, streams: int, run_ids: list[str]) -> AsyncIterator[Callable[[], bool]]:
    """A process with so many readers; the body runs when all wait. Leaving waits until all are complete."""
    command = [sys.executable, "-m", "tests.server.crowd", str(server.port), str(pollers), str(streams), *run_ids]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        assert await trio.to_thread.run_sync(process.stdout.readline) == b"attached\n"
        yield lambda: process.poll() is None
        await until(lambda: process.poll() is not None, "the crowd has had everything", COMPLETE_SECONDS)
        assert process.stdout.read() == b"complete\n"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pollers", "streams", "seconds"),
    [
        pytest.param(50, 50, 8, id="100-readers"),
        pytest.param(500, 500, 30, id="1000-readers", marks=[pytest.mark.full, pytest.mark.timeout(600)]),
    ],
)
async def test_readers_that_wait_do_not_hold_up_the_end_of_a_run(
    store: StoreServer, pollers: int, streams: int, seconds: int
) -> None:
    """Neither of runs that nobody of them reads, nor of their own, each of which wakes a fifth of them when it ends.

    ``seconds`` is how long these runs go on: time enough for the crowd to come.
    """
    with serving(store.url) as server:
        async with open_api(server) as api:
            crowded = []
            for _ in range(CROWDED_RUNS):
                crowded.append(await api.create(run_of({"chunks": CHUNKS, "delay_ms": seconds / CHUNKS * 1000})))
                await trio.sleep(APART_SECONDS)
            results: dict[str, list[Delays]] = {"others": [], "own": []}

            async def measure(kind: str, run_id: str) -> None:
                results[kind].append(await delays_of(server, run_id))

            async with trio.open_nursery() as nursery:
                for run_id in crowded:
                    nursery.start_soon(measure, "own", run_id)
                async with crowd(server, pollers, streams, crowded):
                    for run_id in crowded:
                        assert (await api.status(run_id))["status"] == "running", "the crowd came too late"
                    for _ in range(QUICK_RUNS):
                        await measure("others", await api.create(run_of(QUICK_RUN)))
    for kind, delays in results.items():
        worst = Delays(max(each.written for each in delays), max(each.arrived for each in delays))
        print(f"\n{pollers} pollers, {streams} streams, {kind}: {worst}")
    for delays in results.values():
        assert len(delays) == 5
        assert max(max(each) for each in delays) < DELAY_SECONDS, results


# Crowds that come and go


AT_ONCE = 50
WARM_UP = 400
"""As many as make the allocator and the pools as big as they get."""


async def leave_after_an_event(server: Server, run_id: str) -> None:
    stream = await connect(server)
    await request_stream(stream, run_id)
    seen = b""
    with trio.fail_after(BOUND_SECONDS):
        while b"run_started" not in seen:
            seen += await stream.receive_some()
    stream.socket.close()


async def leave_by_reset(server: Server, run_id: str) -> None:
    stream = await connect(server)
    await request_stream(stream, run_id)
    with trio.fail_after(BOUND_SECONDS):
        assert (await stream.receive_some(16)).startswith(b"HTTP/1.1 200")
    reset(stream)


async def leave_at_once(server: Server, run_id: str) -> None:
    stream = await connect(server)
    await request_stream(stream, run_id)
    stream.socket.close()


async def leave_amid_the_request(server: Server, run_id: str) -> None:
    stream = await connect(server)
    await stream.send_all(f"GET /runs/{run_id}/events/sse HTTP/1.1\r\nHo".encode())
    stream.socket.close()


async def leave_half_open(server: Server, run_id: str) -> None:
    """An end of file in the direction of the server, which goes on sending; then gone."""
    stream = await connect(server)
    await request_stream(stream, run_id)
    await stream.send_eof()
    with trio.move_on_after(0.1):
        await stream.receive_some(16)
    reset(stream)


async def leave_a_page(server: Server, run_id: str) -> None:
    """It waits for an event that does not come."""
    target = f"/runs/{run_id}/events?after=9999999999999-9&wait=30"
    stream = await connect(server)
    await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
    await trio.sleep(0.01)
    stream.socket.close()


async def close_a_websocket(server: Server, run_id: str) -> None:
    socket_ = await open_websocket(await connect(server), run_id)
    with trio.fail_after(BOUND_SECONDS):
        assert await socket_.frame() is not None
        await socket_.send(ws.close(1000))
        while await socket_.frame() is not None:
            pass
    await socket_.stream.aclose()


async def drop_a_websocket(server: Server, run_id: str) -> None:
    socket_ = await open_websocket(await connect(server), run_id)
    reset(socket_.stream)


async def half_read(server: Server, run_id: str) -> None:
    """Of a long log: most of it is in buffers on the way, or not written yet."""
    stream = await connect(server, buffer=16 * KIB)
    await request_stream(stream, run_id)
    with trio.fail_after(BOUND_SECONDS):
        assert await stream.receive_some(8 * KIB)
    stream.socket.close()


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


WAYS: list[Callable[[Server, str], Awaitable[None]]] = [
    leave_after_an_event,
    leave_by_reset,
    leave_at_once,
    leave_amid_the_request,
    leave_half_open,
    leave_a_page,
    close_a_websocket,
    drop_a_websocket,
    half_read,
]


async def come_and_go(server: Any, run_id: str, long_run_id: str, count: int) -> None:
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(way: Callable[[Server, str], Awaitable[None]]) -> None:
        async with limit:
            await way(server, long_run_id if way is half_read else run_id)

    async with trio.open_nursery() as nursery:
        for way in islice(cycle(WAYS), count):
            nursery.start_soon(one, way)


@pytest.mark.parametrize(
    ("readers", "growth"),
    [
        pytest.param(2000, 4 * MIB, id="2000", marks=pytest.mark.full),
        pytest.param(20_000, 8 * MIB, id="20000", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
async def test_short_readers_leave_nothing_behind(store: StoreServer, readers: int, growth: int) -> None:
    with serving(store.url, **UNMERGED) as server:
        memory = psutil.Process(server.pid).memory_info
        async with open_api(server) as api:
            run_id, long_run_id = await api.create(run_of(STREAM_THEN_HANG)), await api.create(long_run(50, 20 * KIB))
            await api.events_until(run_id, "part_delta")
            await log_length(api, long_run_id, 50)
            await come_and_go(server, run_id, long_run_id, WARM_UP)
            before, rss = await settled(lambda: holdings(store, server)), await settled(lambda: memory().rss)
            await come_and_go(server, run_id, long_run_id, readers)
            await until(lambda: holdings(store, server) <= before, f"the process holds {before} again")
            grown = await settled(lambda: memory().rss) - rss
            assert grown < growth, f"{grown / MIB:.1f} MiB after {readers} readers"
            for each in (run_id, long_run_id):
                assert (await api.status(each))["status"] == "running"
                await api.cancel(each)
    print(f"\n{readers} readers: {before}, grown by {grown / MIB:.2f} MiB")


@pytest.mark.slow
async def test_short_readers_take_their_tasks_along(store: StoreServer) -> None:
    async with inside(store, "inside-readers") as replica, client_of(replica) as api:
        run_id, long_run_id = await api.create(run_of(STREAM_THEN_HANG)), await api.create(long_run(50, 20 * KIB))
        await api.events_until(run_id, "part_delta")
        await log_length(api, long_run_id, 1)
        await come_and_go(replica, run_id, long_run_id, len(WAYS))
        before = await settled(tasks)
        await come_and_go(replica, run_id, long_run_id, 20 * len(WAYS))
        await until(lambda: tasks() == before, f"the tasks are again {before}")
