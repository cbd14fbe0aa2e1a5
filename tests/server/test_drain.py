"""SIGTERM under open connections of every kind: who is told what, and how long the process takes.

Runs and exit statuses are in `test_shutdown`, the watchdog in `test_limits` and `tests/unit/test_main.py`.
"""

import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx2
import pytest
import trio
from tests.server.bodies import HANG, run_of, text_run
from tests.server.clients import EventStream, Frame, open_api, open_stream
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving, until
from tests.unit.http import ws

IDLE_STREAMS = 50
"""Of each transport, on each of two runs."""
IDLE_CONNECTIONS = 10

GOING_AWAY = (1001, "the server is shutting down")


class Ended(NamedTuple):
    """How a WebSocket went: its frames, then the code and reason of the close frame."""

    events: list[Any]
    close: tuple[int, str]


async def connected(server: Server) -> trio.SocketStream:
    with trio.fail_after(BOUND_SECONDS):
        return await trio.open_tcp_stream("127.0.0.1", server.port)


async def exchange(stream: trio.SocketStream, request: bytes) -> bytes:
    """The answer to a request that has a short one."""
    with trio.fail_after(BOUND_SECONDS):
        await stream.send_all(request)
        return bytes(await stream.receive_some())


async def open_websocket(server: Server, stack: AsyncExitStack, run_id: str) -> ws.RawSocket:
    """A WebSocket that answers nothing, neither pings nor a close."""
    stream = await stack.enter_async_context(await connected(server))
    answer = await exchange(stream, ws.handshake(f"/runs/{run_id}/events/ws"))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    return ws.RawSocket(stream, rest)


async def rest_of(socket_: ws.RawSocket) -> Ended:
    """All frames up to the end of file, the last of which must be a close."""
    frames = []
    while (frame := await socket_.frame()) is not None:
        frames.append(frame)
    opcode, payload = frames.pop()
    assert opcode == ws.CLOSE
    assert {opcode for opcode, _ in frames} <= {ws.TEXT}
    close = (int.from_bytes(payload[:2], "big"), payload[2:].decode())
    return Ended([json.loads(text) for _, text in frames], close)


async def gather(*waits: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The results of all, in order."""
    results: list[Any] = [None] * len(waits)

    async def one(number: int, wait: Callable[[], Awaitable[Any]]) -> None:
        results[number] = await wait()

    with trio.fail_after(BOUND_SECONDS):
        async with trio.open_nursery() as nursery:
            for number, wait in enumerate(waits):
                nursery.start_soon(one, number, wait)
    return results


@pytest.mark.slow
async def test_two_hundred_idle_streams_and_ten_idle_connections_are_told_and_do_not_hold_up_the_exit(
    store: StoreServer,
):
    """Half of the streams show a run of this process, which ends with it; half one of another process, which goes on.

    The bound is grace + listening + 1 s; no client here answers anything.
    """
    grace, listen = 1.0, 0.5
    with (
        serving(store.url) as home,
        serving(store.url, prefix=home.prefix, shutdown_grace_seconds=grace, drain_listen_seconds=listen) as server,
    ):
        async with open_api(home) as abroad, open_api(server) as api, AsyncExitStack() as stack:
            local, remote = await api.create(run_of(HANG)), await abroad.create(run_of(HANG))
            for run_id in (local, remote):
                await api.events_until(run_id, "run_started")
            streams: dict[str, list[EventStream]] = {}
            sockets: dict[str, list[ws.RawSocket]] = {}
            for run_id in (local, remote):
                opened = [open_stream(server, run_id) for _ in range(IDLE_STREAMS)]
                streams[run_id] = [await stack.enter_async_context(each) for each in opened]
                sockets[run_id] = [await open_websocket(server, stack, run_id) for _ in range(IDLE_STREAMS)]
            idle = [await stack.enter_async_context(await connected(server)) for _ in range(IDLE_CONNECTIONS)]
            for each in idle:
                assert (await exchange(each, b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")).startswith(b"HTTP/1.1 200")
            for each in streams[local] + streams[remote]:
                frame = await each.frame()
                assert frame is not None
                assert frame.event == "run_started"

            cursor = (await api.page(remote))["next_cursor"]
            began = trio.current_time()
            server.tell(signal.SIGTERM)
            # A poll that waits for a run of another process is answered as soon as streams end.
            page, status = await gather(lambda: api.page(remote, after=cursor, wait=20), server.exit_status)
            took = trio.current_time() - began
            assert status == 0
            assert page == {"run_id": remote, "events": [], "next_cursor": cursor}
            assert grace <= took < grace + listen + 1

            local_rests: list[list[Frame]] = await gather(*(each.rest for each in streams[local]))
            for rest in local_rests:
                assert [frame.event for frame in rest] == ["run_failed"]
                assert rest[-1].json["data"]["reason"] == "shutdown"
            assert await gather(*(each.rest for each in streams[remote])) == [[]] * IDLE_STREAMS
            for ended in await gather(*(lambda s=each: rest_of(s) for each in sockets[local])):
                assert [event["type"] for event in ended.events] == ["run_started", "run_failed"]
                assert ended.close == (1000, "")
            for ended in await gather(*(lambda s=each: rest_of(s) for each in sockets[remote])):
                assert [event["type"] for event in ended.events] == ["run_started"]
                assert ended.close == GOING_AWAY
            for each in idle:
                assert await each.receive_some() == b""
            assert (await abroad.status(remote))["status"] == "running"
            await abroad.cancel(remote)
        assert "were cut" not in server.log


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "ending"), [(10, "run_succeeded"), (1, "run_failed")])
async def test_a_run_that_needs_three_seconds_ends_on_its_open_streams(store: StoreServer, grace, ending):
    with serving(store.url, shutdown_grace_seconds=grace) as server:
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_id = await api.create(run_of({"chunks": 30, "delay_ms": 100}))
            stream = await stack.enter_async_context(open_stream(server, run_id))
            socket_ = await open_websocket(server, stack, run_id)
            assert await stream.frame() is not None
            began = trio.current_time()
            server.tell(signal.SIGTERM)
            frames, ended = await gather(stream.rest, lambda: rest_of(socket_))
            assert await server.exit_status(within=3) == 0
            assert min(grace, 2.5) <= trio.current_time() - began < min(grace, 3) + 2
        assert frames[-1].event == ending
        assert frames[-1].json["data"].get("reason") == ("shutdown" if ending == "run_failed" else None)
        assert ended.events[-1] == frames[-1].json
        assert ended.close == (1000, "")


REQUESTS: list[tuple[str, str, int]] = [
    ("GET", "/healthz", 200),
    ("HEAD", "/readyz", 503),
    ("GET", "/readyz", 503),
    ("GET", "/openapi.json", 200),
    ("GET", "/docs", 200),
    ("GET", "/runs/{run_id}", 200),
    ("GET", "/runs/{run_id}/", 307),
    ("GET", "/runs/{run_id}/events", 200),
    ("GET", "/runs/{run_id}/events?limit=0", 422),
    ("GET", "/runs/{run_id}/events/sse", 200),
    ("GET", "/runs/{run_id}/events/ws", 426),
    ("GET", "/runs/unknown", 404),
    ("GET", "/nowhere", 404),
    ("DELETE", "/runs", 405),
    ("POST", "/runs", 503),
    ("POST", "/runs/{run_id}/cancel", 409),
    ("POST", "/runs/unknown/cancel", 404),
]


@pytest.mark.slow
async def test_an_idle_replica_keeps_answering_for_its_time_and_every_answer_closes_its_connection(store: StoreServer):
    listen = 3.0
    with serving(store.url, drain_listen_seconds=listen) as server:
        async with open_api(server) as api, await connected(server) as kept:
            run_id = await api.create(text_run())
            await api.finished(run_id)
            health = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"
            assert b"connection: close" not in (await exchange(kept, health)).lower()
            began = trio.current_time()
            server.tell(signal.SIGTERM)
            await until(lambda: '"draining"' in server.log, "the drain begins")
            for method, path, status in REQUESTS:
                body = {"json": text_run() if path == "/runs" else {}} if method == "POST" else {}
                response = await api.client.request(method, path.format(run_id=run_id), **body)
                assert (path, response.status_code) == (path, status), response.text
                assert response.headers.get_list("connection", split_commas=True)[-1:] == ["close"], path
                if path == "/readyz" and method == "GET":
                    assert response.json() == {"status": "draining"}
                if (method, path) == ("POST", "/runs"):
                    assert response.json() == {"detail": "run scheduler is shutting down"}
                if status == 503 and path == "/runs":
                    assert response.headers["retry-after"] == "1"

            # A connection from before the signal gets its answer, and the end.
            answer = await exchange(kept, health)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            with trio.fail_after(1):
                assert await kept.receive_some() == b""
            async with AsyncExitStack() as stack:
                ended = await rest_of(await open_websocket(server, stack, run_id))
                assert ended.events[-1]["type"] == "run_succeeded"
                assert ended.close == (1000, "")

            # Until the end of its time, not only at its beginning; then nobody listens.
            assert trio.current_time() - began < listen - 0.5, "too slow to tell"
            await trio.sleep_until(began + listen - 0.5)
            assert (await api.client.get("/readyz")).status_code == 503
            assert server.process.poll() is None
            assert await server.exit_status() == 0
            assert listen <= trio.current_time() - began < listen + 1
            with pytest.raises((httpx2.ConnectError, OSError)):
                await api.client.get("/healthz")


@pytest.mark.slow
async def test_the_log_names_each_step_with_its_counts(store: StoreServer):
    with serving(store.url, shutdown_grace_seconds=0.3) as server:
        async with open_api(server) as api:
            for _ in range(3):
                await api.events_until(await api.create(run_of(HANG)), "run_started")
        server.tell(signal.SIGTERM)
        assert await server.exit_status() == 0
        records = {record["event"]: record for record in server.records()}
    assert records["stopping"]["why"] == "signal"
    assert (records["draining"]["active_runs"], records["draining"]["grace_seconds"]) == (3, 0.3)
    assert records["grace is over, runs are stopped"]["active_runs"] == 3
    assert 0.3 <= records["drained"]["seconds"] < 3
    assert any(event.startswith("listener closed, connections open: ") for event in records)
    steps = ["stopping", "draining", "grace is over, runs are stopped", "drained", "stopped"]
    assert [event for event in records if event in steps] == steps
