"""The WebSocket of the real process: the third view of one log, cancel, browsers, the drain, and hostile clients."""

import base64
import json
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import psutil
import pytest
import trio
import trio_websocket
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run
from tests.server.clients import TERMINALS, Api, open_api, open_stream, stream_of
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, launched, serving, settled
from tests.unit.http import ws

TOKEN = "correct-horse-battery"
BYSTANDERS = 10
AT_ONCE = 20
MEBIBYTE = 2**20

Client = trio_websocket.WebSocketConnection


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    """Every delta is an event of its own, so that a script decides how long a log is."""
    with serving(store.url, stream_text_delta_coalescing_enabled="false") as started:
        yield started


def path_of(run_id: str, after: str = "") -> str:
    return f"/runs/{run_id}/events/ws" + (f"?after={after}" if after else "")


async def connect(server: Server) -> trio.SocketStream:
    with trio.fail_after(BOUND_SECONDS):
        return await trio.open_tcp_stream("127.0.0.1", server.port)


@asynccontextmanager
async def open_websocket(
    server: Server, target: str, **options: Any
) -> AsyncIterator[trio_websocket.WebSocketConnection]:
    """A real client. Leaving the block drops the connection, whatever the server is doing."""
    async with await connect(server) as stream, trio.open_nursery() as nursery:
        host = f"127.0.0.1:{server.port}"
        yield await trio_websocket.wrap_client_stream(nursery, stream, host, target, **options)
        nursery.cancel_scope.cancel()


async def rest_of(websocket: Client) -> tuple[list[Any], tuple[int, str]]:
    """All frames up to the close, and its code and reason."""
    texts = []
    with trio.fail_after(BOUND_SECONDS):
        try:
            while True:
                texts.append(json.loads(await websocket.get_message()))
        except trio_websocket.ConnectionClosed as closed:
            reason: Any = closed.reason
    return texts, (reason.code, reason.reason or "")


async def log_over_websocket(server: Server, run_id: str, after: str = "") -> list[Any]:
    async with open_websocket(server, path_of(run_id, after)) as websocket:
        events, reason = await rest_of(websocket)
    assert reason == (1000, "")
    return events


async def first_over_websocket(server: Server, run_id: str, after: str) -> Any:
    async with open_websocket(server, path_of(run_id, after)) as websocket:
        with trio.fail_after(BOUND_SECONDS):
            return json.loads(await websocket.get_message())


async def first_over_sse(server: Server, run_id: str, after: str) -> Any:
    async with open_stream(server, run_id, after=after) as stream:
        frame = await stream.frame()
    assert frame is not None
    return frame.json


async def log_by_pages(api: Api, run_id: str, limit: int) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1]["type"] not in TERMINALS:
        page = await api.page(run_id, after=events[-1]["id"] if events else "0-0", limit=limit, wait=5)
        events += page["events"]
    return events


async def log_by_reconnecting(server: Server, run_id: str, first: Any) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1]["type"] not in TERMINALS:
        events.append(await first(server, run_id, events[-1]["id"] if events else "0-0"))
    return events


# One log, three views


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", [8, 0], ids=["live", "stored"])
async def test_poll_event_stream_and_websocket_give_the_same_300_events_also_when_each_reconnects_after_every_one(
    server, api: Api, delay_ms
):
    run_id = await api.create(run_of({"chunks": 295, "chunk": 't \x85\u2028"ü', "delay_ms": delay_ms}))
    if not delay_ms:
        await api.finished(run_id)
    logs: dict[str, list[Any]] = {}

    async def collect(name: str, function: Any, *args: Any) -> None:
        logs[name] = await function(*args)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, "websocket", log_over_websocket, server, run_id)
            nursery.start_soon(
                collect, "websocket, reconnecting", log_by_reconnecting, server, run_id, first_over_websocket
            )
            nursery.start_soon(collect, "sse, reconnecting", log_by_reconnecting, server, run_id, first_over_sse)
            nursery.start_soon(collect, "pages of one", log_by_pages, api, run_id, 1)
            nursery.start_soon(collect, "pages", log_by_pages, api, run_id, 500)
    logs["sse"] = [frame.json for frame in await stream_of(server, run_id)]
    expected = logs.pop("pages")
    assert [int(event["id"].split("-")[1]) for event in expected] == list(range(1, 301))
    for name, events in logs.items():
        assert events == expected, name
    assert await log_over_websocket(server, run_id, expected[149]["id"]) == expected[150:]


async def test_a_finished_run_closes_at_once_behind_its_terminal(server, api: Api):
    run_id = await api.create(text_run())
    last = (await api.finished(run_id))[-1]["id"]
    for after in (last, "9999999999999-7"):
        assert await log_over_websocket(server, run_id, after) == []


async def test_refusals_before_the_handshake_are_http_answers(server, api: Api):
    run_id = await api.create(text_run())
    for target, status in ((path_of("nope"), 404), (path_of(run_id, "zzz"), 422)):
        async with await connect(server) as stream:
            await stream.send_all(ws.handshake(target))
            answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert "detail" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (await api.client.get(path_of(run_id))).status_code == 426


# Cancel


async def test_a_cancel_through_the_websocket(server, api: Api):
    run_id = await api.create(run_of(STREAM_THEN_HANG))
    await api.events_until(run_id, "part_delta")
    async with open_websocket(server, path_of(run_id)) as websocket:
        await websocket.send_message('{"type":"cancel","reason":"user","message":"No more"}')
        frames, reason = await rest_of(websocket)
    controls = [frame for frame in frames if "control" in frame]
    events = [frame for frame in frames if "control" not in frame]
    assert controls == [{"control": "cancel_accepted"}]
    assert events == await api.finished(run_id)
    assert events[-1]["type"] == "run_cancelled"
    assert (events[-1]["data"]["reason"], events[-1]["data"]["message"]) == ("user", "No more")
    assert reason == (1000, "")


# Browsers


@pytest.mark.slow
async def test_a_browser_authenticates_with_a_subprotocol_and_its_token_stays_out_of_the_log(store: StoreServer):
    encoded = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    offers = ["dify-agent.v1", f"bearer.{encoded}"]
    with serving(store.url, api_token=TOKEN, allowed_origins="https://console.example", log_level="DEBUG") as guarded:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=guarded.url, headers=headers) as client:
            api = Api(client)
            run_id = await api.create(text_run())
            expected = await api.finished(run_id)
        own = f"http://127.0.0.1:{guarded.port}"
        for origin in (own, "https://console.example", None):
            extra = [("Origin", origin)] if origin else []
            options = {"subprotocols": offers, "extra_headers": extra}
            async with open_websocket(guarded, path_of(run_id), **options) as websocket:
                assert websocket.subprotocol == "dify-agent.v1"
                assert await rest_of(websocket) == (expected, (1000, ""))
        refusals = [
            ([*offers[:1], "bearer.d3Jvbmc"], own, path_of(run_id), "invalid bearer token"),
            (offers, "https://evil.example", path_of(run_id), "origin is not allowed"),
            (offers, own, path_of("nope"), "run not found"),
        ]
        for subprotocols, origin, target, reason in refusals:
            options = {"subprotocols": subprotocols, "extra_headers": [("Origin", origin)]}
            async with open_websocket(guarded, target, **options) as websocket:
                assert await rest_of(websocket) == ([], (1008, reason))
        async with await connect(guarded) as stream:
            await stream.send_all(ws.handshake(path_of(run_id), f"Authorization: Bearer {TOKEN}x"))
            assert (await read_all(stream)).startswith(b"HTTP/1.1 401")
        log = guarded.log
    assert TOKEN not in log
    assert encoded not in log


# Drain


@pytest.mark.slow
async def test_the_drain_closes_with_1000_behind_a_terminal_and_with_1001_without_one(store: StoreServer):
    """A run of this process ends with it and says so; one of another process goes on, and its readers go elsewhere."""
    with serving(store.url) as home, serving(store.url, prefix=home.prefix) as server:
        async with open_api(home) as abroad, open_api(server) as api:
            remote, local = await abroad.create(run_of(HANG)), await api.create(run_of(HANG))
            for run_id in (remote, local):
                await api.events_until(run_id, "run_started")
            async with (
                open_websocket(server, path_of(remote)) as leaving,
                open_websocket(server, path_of(local)) as ending,
            ):
                assert json.loads(await leaving.get_message())["type"] == "run_started"
                server.tell(signal.SIGTERM)
                events, reason = await rest_of(ending)
                assert (events[-1]["type"], events[-1]["data"]["reason"]) == ("run_failed", "shutdown")
                assert reason == (1000, "")
                assert await rest_of(leaving) == ([], (1001, "the server is shutting down"))
                assert await server.exit_status(within=5) == 0
            assert (await abroad.status(remote))["status"] == "running"
            await abroad.cancel(remote)


@pytest.mark.slow
async def test_a_hundred_idle_websockets_that_answer_nothing_do_not_hold_up_the_exit(store: StoreServer):
    with launched(store.url) as server:
        server.wait_listening()
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_id = await api.create(run_of(HANG))
            streams = [await stack.enter_async_context(await connect(server)) for _ in range(100)]
            for stream in streams:
                await stream.send_all(ws.handshake(path_of(run_id)))
            for stream in streams:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 101")
            began = trio.current_time()
            server.tell(signal.SIGTERM)
            assert await server.exit_status() == 0
            assert trio.current_time() - began < 2
            for stream in streams:
                assert struct.pack("!BBH", 0x88, 2, 1000) in await read_all(stream)
        server.check_log()


# Pings


@pytest.mark.full
async def test_a_peer_that_answers_no_ping_for_45_seconds_is_closed_and_one_that_does_is_not(server, api: Api):
    run_id = await api.create(run_of(HANG))
    async with open_websocket(server, path_of(run_id)) as answering, await connect(server) as silent:
        began = trio.current_time()
        await silent.send_all(ws.handshake(path_of(run_id, "9999999999999-7")))
        with trio.fail_after(60):
            received = await read_all(silent)
        assert 44 < trio.current_time() - began < 55
        frames = received.partition(b"\r\n\r\n")[2]
        assert frames.startswith(b"\x89\x00" * 2), "a ping every 15 s"
        assert frames.endswith(b"pings were not answered")
        await api.cancel(run_id)
        events, reason = await rest_of(answering)
    assert (events[-1]["type"], reason) == ("run_cancelled", (1000, ""))


# Hostile clients

CANCEL = ws.text({"type": "cancel", "reason": 7})  # refused: no bystander's run may end


async def read_all(stream: trio.SocketStream) -> bytes:
    data = b""
    try:
        while piece := await stream.receive_some(65536):
            data += piece
    except trio.BrokenResourceError:
        pass
    return data


def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def exchanges(run_id: str) -> list[tuple[bytes, bytes, str]]:
    """What is sent at once, what follows the answer, and how the client leaves."""
    hello = ws.handshake(path_of(run_id))
    after_hello = [
        ws.frame(ws.TEXT, length=2**30),
        ws.frame(ws.TEXT, length=2**30) + b"x" * 100_000,
        ws.frame(ws.BINARY, b"\0" * 100),
        ws.text(b"\xff\xfe\xfd"),
        ws.frame(ws.TEXT, b"\xf0\x9f", fin=False) + ws.frame(0, b"\x41"),
        ws.text(b"{}", masked=False),
        ws.text(b"{}", rsv=7),
        ws.frame(5, b"?"),
        ws.frame(0, b"no beginning"),
        ws.frame(ws.PING, b"x" * 126),
        ws.frame(ws.PING, b"x") * 200,
        ws.frame(ws.TEXT, fin=False) + ws.frame(0, fin=False) * 2000,
        *(ws.close(code) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)),
        ws.close(1000, b"\xff"),
        ws.frame(ws.CLOSE, b"\x03"),
        ws.close(1000) + CANCEL * 50 + ws.close(1001),
        CANCEL * 50,
        ws.text(b"not json") + ws.text(b"") + ws.text(b"[" * 3000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 1000,
        b"",
    ]
    return [
        *((hello, data, leaving) for data in after_hello for leaving in ("eof", "reset", "read")),
        *((hello + data, b"", "read") for data in (CANCEL, b"x", b"\xff" * 10_000, ws.close(1000))),
        *((hello[:cut], b"", leaving) for cut in (1, 20, 80, len(hello) - 1) for leaving in ("eof", "reset")),
        (ws.handshake(path_of("nope")) + CANCEL * 1000, b"", "read"),
        (ws.handshake(path_of(run_id, "zzz")), CANCEL, "read"),
        (ws.handshake(path_of(run_id), "Sec-WebSocket-Protocol: \xff"), b"", "read"),
        (ws.handshake(path_of(run_id), "Sec-WebSocket-Extensions: permessage-deflate"), ws.text(b"{}", rsv=4), "read"),
        (ws.handshake(path_of(run_id), "Content-Length: 5"), b"12345", "read"),
        (ws.handshake(path_of(run_id), drop=("Sec-WebSocket-Key",)), b"", "read"),
    ]


async def exchange(server: Server, first: bytes, second: bytes, leaving: str) -> None:
    """One of them. Whatever the server does is fine as long as it does it soon."""
    with trio.fail_after(BOUND_SECONDS):
        async with await connect(server) as stream:
            try:
                await stream.send_all(first)
                if second:
                    assert (await stream.receive_some()).startswith(b"HTTP/1.1 ")
                    await stream.send_all(second)
                if leaving == "read" and second not in (b"", CANCEL * 50):
                    with trio.move_on_after(0.05):
                        await read_all(stream)
            except trio.BrokenResourceError:
                return
            if leaving == "reset":
                reset(stream)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.full)])
async def test_hostile_exchanges_leave_the_process_and_ten_bystanders_unharmed(store: StoreServer, count):
    with serving(store.url, stream_text_delta_coalescing_enabled="false") as server:
        process = psutil.Process(server.pid)
        async with open_api(server) as api, AsyncExitStack() as stack:
            victim = await api.create(run_of(STREAM_THEN_HANG))
            watched = await api.create(run_of({"chunks": 200, "chunk": "t ", "delay_ms": 25}))
            sse = [await stack.enter_async_context(open_stream(server, watched)) for _ in range(BYSTANDERS // 2)]
            sockets = [
                await stack.enter_async_context(open_websocket(server, path_of(watched)))
                for _ in range(BYSTANDERS // 2)
            ]
            logs: list[list[Any]] = []

            async def follow_sse(stream: Any) -> None:
                logs.append([frame.json for frame in await stream.rest()])

            async def follow_websocket(websocket: Any) -> None:
                events, reason = await rest_of(websocket)
                assert reason == (1000, "")
                logs.append(events)

            # Once round first, so that what is allocated once is there.
            kinds = exchanges(victim)
            limiter = trio.CapacityLimiter(AT_ONCE)

            async def one(number: int) -> None:
                async with limiter:
                    await exchange(server, *kinds[number % len(kinds)])

            async with trio.open_nursery() as nursery:
                for stream in sse:
                    nursery.start_soon(follow_sse, stream)
                for websocket in sockets:
                    nursery.start_soon(follow_websocket, websocket)
                async with trio.open_nursery() as attackers:
                    for number in range(len(kinds)):
                        attackers.start_soon(one, number)
                descriptors = await settled(process.num_fds)
                memory = process.memory_info().rss
                async with trio.open_nursery() as attackers:
                    for number in range(count):
                        attackers.start_soon(one, number)
            assert logs == [await api.finished(watched)] * BYSTANDERS
            assert (await api.status(victim))["status"] == "running"
            await api.cancel(victim)
            await api.finished(victim)
        assert await settled(process.num_fds) <= descriptors
        if sys.platform == "linux":
            assert process.memory_info().rss - memory < 32 * MEBIBYTE
