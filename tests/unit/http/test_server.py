"""The app behind real sockets: connections, disconnects, stalled readers, refused bodies, the stop (style 3.2, 3.3).

Every time limit is an absolute bound on a wait, never a way to synchronise.
"""

import re
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx2
import pytest
import trio
import trio.testing
from tests.unit.http.fakes import PROMPT, FakeRun, FakeService, event, make_app

from dify_agent.http.server import ServerConfig, serve_http
from dify_agent.http.settings import HttpSettings
from dify_agent.http.transport import Connection

LIMIT = 10.0
"""No test may take longer; each takes well under a second unless it measures a time."""


@dataclass
class Server:
    address: tuple[str, int]
    stop: trio.Event
    nursery: trio.Nursery

    async def connect(self, *, receive_buffer=None):
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(self.address)
        return trio.SocketStream(sock)

    async def ended(self):
        await until(lambda: not self.nursery.child_tasks)

    @property
    def url(self):
        return f"http://{self.address[0]}:{self.address[1]}"


@asynccontextmanager
async def serving(service, **settings):
    app = make_app(service, **settings)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            serve = partial(serve_http, app, settings=app.settings, shutdown_trigger=stop.wait)
            (address,) = await nursery.start(serve)
            yield Server(address, stop, nursery)
            stop.set()


async def read_until(stream, mark):
    data = b""
    while mark not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    return data


async def read_all(stream):
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        data += b"<reset>"
    return data


def get(target, *headers):
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: server.test", *headers, "", ""]).encode()


async def until(condition):
    """Let other tasks run, sockets included, until something holds."""
    while not condition():  # noqa: ASYNC110 - the condition lies in the server, which has no event for it
        await trio.sleep(0.001)


async def test_a_run_from_create_to_its_last_event_with_a_real_client():
    service = FakeService()
    async with serving(service) as server, httpx2.AsyncClient(base_url=server.url, timeout=LIMIT) as client:
        answer = await client.post("/runs", json=PROMPT)
        assert (answer.status_code, answer.json()) == (202, {"run_id": "new", "status": "running"})
        run = service.runs["new"]
        async with client.stream("GET", "/runs/new/events/sse") as stream:
            lines = stream.aiter_lines()
            for n in (1, 2):
                run.add(event(n))
                assert await anext(lines) == f"id: 1000-{n}"
                assert [await anext(lines), (await anext(lines))[:5], await anext(lines)] == [
                    "event: pydantic_ai_event",
                    "data:",
                    "",
                ]
            run.add(event(3, "run_succeeded"))
            rest = [line async for line in lines]
        assert rest[:2] == ["id: 1000-3", "event: run_succeeded"]
        assert (await client.get("/runs/new")).json()["status"] == "succeeded"
        assert (await client.get("/runs/new/events/sse", headers={"Last-Event-ID": "1000-3"})).content == b""


async def test_headers_of_a_stream_are_sent_before_its_first_event():
    async with serving(FakeService(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            head = (await read_until(stream, b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200")
    assert b"\r\ntransfer-encoding: chunked\r\n" in head
    assert b"\r\ncontent-type: text/event-stream; charset=utf-8\r\n" in head
    assert b"server:" not in head


async def test_events_that_are_ready_together_are_one_chunk():
    run = FakeRun()
    run.add(*(event(n) for n in range(1, 20)), event(20, "run_succeeded"))
    async with serving(FakeService(R=run)) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            data = await read_until(stream, b"\r\n0\r\n\r\n")
    body = data.partition(b"\r\n\r\n")[2]
    assert len(re.findall(rb"^[0-9a-f]+\r\n", body, re.MULTILINE)) == 2  # the frames, and the end
    assert body.count(b"\nevent: ") == 20


async def test_heartbeats_reach_a_reader_of_a_silent_run():
    async with serving(FakeService(R=FakeRun()), heartbeat_seconds=0.01) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            data = await read_until(stream, b": keepalive\n\n\r\nd\r\n: keepalive\n\n")
    assert b"id:" not in data


async def test_a_connection_serves_several_requests_and_then_idles_out():
    async with serving(FakeService(R=FakeRun()), keep_alive_seconds=0.2) as server:
        async with await server.connect() as stream:
            for _ in range(3):
                await stream.send_all(get("/runs/R"))
                assert b"connection" not in (await read_until(stream, b"}")).lower()
            start = trio.current_time()
            assert await stream.receive_some() == b""
            assert 0.1 < trio.current_time() - start < 2


async def test_pipelined_requests_are_answered_in_order():
    async with serving(FakeService(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R") + get("/nope") + get("/healthz", "Connection: close"))
            data = await read_all(stream)
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"404", b"200"]


async def test_a_connection_that_sends_no_request_is_closed():
    async with serving(FakeService(), keep_alive_seconds=0.05) as server:
        async with await server.connect() as stream:
            assert await stream.receive_some() == b""


async def test_headers_that_trickle_in_do_not_hold_a_connection():
    async with serving(FakeService(), keep_alive_seconds=0.2) as server:
        async with await server.connect() as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: ")
            await stream.send_all(b"x")
            assert await stream.receive_some() == b""


async def test_a_disconnect_ends_only_its_reader():
    run = FakeRun()
    service = FakeService(R=run)
    async with serving(service) as server:
        leaver, stayer = await server.connect(), await server.connect()
        async with stayer:
            for stream in (leaver, stayer):
                await stream.send_all(get("/runs/R/events/sse"))
                await read_until(stream, b"\r\n\r\n")
            await until(lambda: [tail.waits for tail in service.tails] == [1, 1])
            await leaver.aclose()
            await until(lambda: sum(tail.cancelled for tail in service.tails) == 1)
            run.add(event(1), event(2, "run_succeeded"))
            assert b"event: run_succeeded" in await read_until(stayer, b"\r\n0\r\n\r\n")
    assert run.status == "succeeded"


async def test_a_disconnect_ends_a_waiting_poll():
    service = FakeService(R=FakeRun())
    async with serving(service) as server:
        stream = await server.connect()
        await stream.send_all(get("/runs/R/events?wait=30"))
        await until(lambda: service.tails and service.tails[0].waits)
        await stream.aclose()
        await until(lambda: service.tails[0].cancelled)


async def test_stop_with_an_idle_connection_takes_no_grace():
    async with serving(FakeService(R=FakeRun()), graceful_seconds=9) as server:
        async with await server.connect() as stream, await server.connect() as silent:
            await stream.send_all(get("/runs/R"))
            await read_until(stream, b"}")
            start = trio.current_time()
            server.stop.set()
            await server.ended()
            assert trio.current_time() - start < 2
            assert await stream.receive_some() == b""
            assert await read_all(silent) in (b"", b"<reset>")


async def test_stop_lets_a_response_end_within_the_grace():
    run = FakeRun()
    async with serving(FakeService(R=run), graceful_seconds=9) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            await read_until(stream, b"\r\n\r\n")
            server.stop.set()
            await until(lambda: not can_connect(server.address))
            run.add(event(1, "run_succeeded"))
            assert (await read_all(stream)).endswith(b"\r\n0\r\n\r\n")
        await server.ended()


async def test_stop_cuts_a_response_that_outlasts_the_grace():
    async with serving(FakeService(R=FakeRun()), graceful_seconds=0.1) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            await read_until(stream, b"\r\n\r\n")
            server.stop.set()
            await server.ended()
            assert not (await read_all(stream)).endswith(b"0\r\n\r\n")


async def stalled_reader(server, service):
    """A reader of an endless stream who has stopped reading, with every buffer in between full."""
    stream = await server.connect(receive_buffer=4096)
    await stream.send_all(get("/runs/R/events/sse"))
    await until(lambda: service.tails and service.tails[-1].cursor.n)
    return stream


def flood():
    """More than the socket buffers of both sides hold, in one write."""
    return FakeRun(events=[event(1, data='"' + "x" * 16 * 2**20 + '"')])


async def test_a_stalled_reader_does_not_keep_the_server_from_stopping():
    service = FakeService(R=flood())
    async with serving(service, graceful_seconds=0.2) as server:
        async with await stalled_reader(server, service):
            start = trio.current_time()
            server.stop.set()
            await server.ended()
            assert trio.current_time() - start < 3


@pytest.mark.slow
async def test_a_slow_reader_does_not_keep_the_server_from_stopping():
    """It takes a piece again and again, so it never stalls; the grace bounds it all the same."""
    service = FakeService(R=flood())
    async with serving(service, graceful_seconds=0.6) as server:
        async with await server.connect(receive_buffer=65536) as stream, trio.open_nursery() as nursery:
            await stream.send_all(get("/runs/R/events/sse"))
            await until(lambda: service.tails and service.tails[-1].cursor.n)

            async def sip():
                while True:
                    await stream.receive_some(32768)
                    await trio.sleep(0.02)

            nursery.start_soon(sip)
            start = trio.current_time()
            server.stop.set()
            await server.ended()
            assert trio.current_time() - start < 3
            nursery.cancel_scope.cancel()


async def test_a_stalled_reader_is_cut_in_normal_life_too():
    service = FakeService(R=flood())
    async with serving(service, stream_stall_seconds=0.2) as server:
        async with await stalled_reader(server, service) as stream:
            await until(lambda: service.tails[0].closed)
            data = await read_all(stream)
    assert not data.endswith(b"0\r\n\r\n")


async def test_a_slow_reader_is_not_a_stalled_one():
    run = flood()
    run.add(event(2, "run_succeeded"))
    async with serving(FakeService(R=run), stream_stall_seconds=0.5) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse", "Connection: close"))
            size, start, last = 0, trio.current_time(), b""
            while piece := await stream.receive_some(256 * 1024):
                size, last = size + len(piece), (last + piece)[-8:]
                if trio.current_time() - start < 1.0:
                    await trio.sleep(0.05)
    assert size > 16 * 2**20
    assert last.endswith(b"0\r\n\r\n")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_listening_sockets_carry_the_user_timeout():
    (sock,) = ServerConfig(HttpSettings(stream_stall_seconds=7.5)).create_sockets().insecure_sockets
    with sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500


async def test_sockets_of_the_caller_are_served_and_closed():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        shared = sock.dup()
        app, stop = make_app(FakeService()), trio.Event()
        serve = partial(serve_http, app, settings=app.settings, sockets=[shared], shutdown_trigger=stop.wait)
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                addresses = await nursery.start(serve)
                assert addresses == [sock.getsockname()]
                async with httpx2.AsyncClient() as client:
                    assert (await client.get(f"http://127.0.0.1:{addresses[0][1]}/healthz")).status_code == 200
                stop.set()
        assert shared.fileno() == -1


@pytest.mark.parametrize("framing", ["Content-Length: 50000000", "Transfer-Encoding: chunked"])
async def test_a_refused_body_is_answered_although_the_client_is_still_sending(framing):
    """Without reading on for a while the kernel would reset the connection, and the answer would be lost."""
    async with serving(FakeService(), max_request_body_bytes=1000) as server:
        async with await server.connect() as stream:
            await stream.send_all(
                f"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode()
            )
            piece = b"x" * 65536
            for _ in range(40):
                await stream.send_all(piece if "Length" in framing else b"10000\r\n" + piece + b"\r\n")
            data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 413")
    assert b"\r\nconnection: close\r\n" in data.lower()
    assert data.endswith(b'{"detail":"request body exceeds 1000 bytes"}')


async def test_an_unread_body_of_a_get_does_not_hurt():
    async with serving(FakeService(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R", "Content-Length: 3") + b"abc" + get("/healthz", "Connection: close"))
            data = await read_all(stream)
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"200"]


@pytest.mark.parametrize(
    ("request_text", "status", "detail"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, b"Bad Request"),
        (b"rubbish\r\n\r\n", 400, b"Bad Request"),
        (b"GET /%s HTTP/1.1\r\n" % (b"x" * 40000), 431, b"Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 10000, 431, b"Request Header Fields Too Large"),
        (b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: z\r\n\r\n", 400, b"Bad Request"),
    ],
    ids=["no-host", "rubbish", "long-target", "many-headers", "bad-length"],
)
async def test_what_is_no_request_gets_json_and_is_closed(request_text, status, detail):
    async with serving(FakeService()) as server:
        async with await server.connect() as stream:
            await stream.send_all(request_text)
            data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 %d" % status)
    assert b'{"detail":"%b"}' % detail in data


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://server.test/runs/R", 200),
        ("HTTP://server.test", 404),
        ("http://[bad/runs/R", 200),
        ("*", 404),
        ("?x", 404),
        ("/runs/R?%ff", 200),
        ("//runs/", 404),
    ],
)
async def test_unusual_targets(target, status):
    async with serving(FakeService(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(get(target, "Connection: close"))
            data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 %d" % status), data


@pytest.mark.parametrize("target", ["/nope", "/nope/"])
async def test_a_websocket_handshake_without_a_route_is_404(target):
    handshake = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    async with serving(FakeService()) as server:
        async with await server.connect() as stream:
            await stream.send_all(get(target, "Connection: Upgrade", *handshake))
            data = await read_until(stream, b"}")
    assert data.startswith(b"HTTP/1.1 404")
    assert data.endswith(b'{"detail":"Not Found"}')


async def test_a_fault_in_a_stream_truncates_it_and_is_logged(caplog):
    """An end that looks regular would tell the reader that the run is over."""

    class BrokenTail:
        async def next(self):
            await trio.lowlevel.checkpoint()
            raise RuntimeError("planted")

    class Service(FakeService):
        async def open_tail(self, run_id, after):
            await trio.lowlevel.checkpoint()
            return BrokenTail()

    async with serving(Service(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse"))
            data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 200")
    assert not data.endswith(b"0\r\n\r\n")
    assert "planted" in caplog.text


async def test_an_offer_of_http_2_is_ignored():
    async with serving(FakeService(R=FakeRun())) as server:
        async with await server.connect() as stream:
            await stream.send_all(
                get("/runs/R", "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
            )
            assert (await read_all(stream)).startswith(b"HTTP/1.1 200")


async def test_a_fault_in_one_connection_stays_there(monkeypatch, caplog):
    service = FakeService(R=FakeRun())
    async with serving(service) as server:
        broken = await server.connect()
        with monkeypatch.context() as patch:

            async def fail(self, event):
                await trio.lowlevel.checkpoint()
                raise RuntimeError("planted")

            patch.setattr(Connection, "_handle", fail)
            await broken.send_all(get("/runs/R"))
            await read_all(broken)
        await broken.aclose()
        async with httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/runs/R")).status_code == 200
    assert "planted" in caplog.text


async def test_nothing_is_left_behind_by_many_readers_who_leave():
    service = FakeService(R=FakeRun())
    async with serving(service) as server:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        streams = [await server.connect() for _ in range(20)]
        for stream in streams:
            await stream.send_all(get("/runs/R/events/sse"))
        await until(lambda: sum(tail.waits for tail in service.tails) == 20)
        assert trio.lowlevel.current_statistics().tasks_living > before
        for stream in streams:
            await stream.aclose()
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


def can_connect(address):
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(address) == 0
