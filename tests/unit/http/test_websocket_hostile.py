"""Bytes that no honest client sends: each ends its own connection at most, with the code that fits, and no log line."""

import socket
import struct
import tracemalloc

import pytest
import trio
import trio.testing
from hypercorn.protocol.events import Data
from hypercorn.protocol.ws_stream import ASGIWebsocketState
from tests.unit.http import ws
from tests.unit.http.fakes import FakeRun, FakeService, event
from tests.unit.http.test_server import get, read_all, read_until, serving, until
from wsproto.connection import Connection, ConnectionType

from dify_agent.http.server import ServerConfig
from dify_agent.http.settings import HttpSettings
from dify_agent.http.websocket_frames import InboundPolicy
from dify_agent.http.websocket_stream import WebSocketStream

PATH = "/runs/R/events/ws"
CANCEL = ws.text({"type": "cancel"})
ACCEPTED = {"control": "cancel_accepted"}
MEBIBYTE = 2**20


def reset(stream):
    """Close so that the other side gets a reset."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def send_for_ever(websocket, data):
    while True:
        await websocket.send(data)


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (ws.frame(ws.TEXT, length=2**30), 1009, "a message may have 64 KiB"),
        (ws.frame(ws.TEXT, length=65537), 1009, "a message may have 64 KiB"),
        (ws.frame(ws.TEXT, length=2**63 - 1), 1009, "a message may have 64 KiB"),
        (ws.frame(ws.TEXT, length=2**63), 1002, "protocol error"),
        (ws.frame(ws.TEXT, b"x" * 40_000, fin=False) + ws.frame(0, b"x" * 40_000), 1009, "a message may have 64 KiB"),
        (ws.text(b"\xff\xfe"), 1007, "text must be UTF-8"),
        (ws.text(b"\xed\xa0\x80"), 1007, "text must be UTF-8"),
        (ws.frame(ws.TEXT, b"\xc3", fin=False) + ws.frame(0, b"\x28"), 1007, "text must be UTF-8"),
        (ws.text(b"\xc3"), 1007, "text must be UTF-8"),
        (ws.frame(ws.BINARY, b"\0"), 1003, "only text is understood"),
        (ws.frame(ws.BINARY, length=2**30), 1003, "only text is understood"),
        (ws.text(b"{}", masked=False), 1002, "protocol error"),
        (ws.text(b"{}", rsv=4), 1002, "protocol error"),
        (ws.frame(3), 1002, "protocol error"),
        (ws.frame(11), 1002, "protocol error"),
        (ws.frame(0, b"{}"), 1002, "protocol error"),
        (ws.frame(ws.TEXT, b"{", fin=False) + ws.text(b"{}"), 1002, "protocol error"),
        (ws.frame(ws.PING, b"x" * 126), 1002, "protocol error"),
        (ws.frame(ws.PING, fin=False), 1002, "protocol error"),
        (ws.frame(ws.CLOSE, b"\x03"), 1002, "protocol error"),
        (ws.close(999), 1002, "protocol error"),
        (ws.close(1004), 1002, "protocol error"),
        (ws.close(1005), 1002, "protocol error"),
        (ws.close(1006), 1002, "protocol error"),
        (ws.close(1015), 1002, "protocol error"),
        (ws.close(1016), 1002, "protocol error"),
        (ws.close(2999), 1002, "protocol error"),
        (ws.close(5000), 1002, "protocol error"),
        (ws.close(1000, b"\xff"), 1007, "text must be UTF-8"),
        (ws.close(1000, b"bye"), 1000, "bye"),
        (ws.close(3000), 3000, ""),
        (ws.close(4999, b"x" * 123), 4999, "x" * 123),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1002, "protocol error"),
    ],
    ids=range(33),
)
async def test_frames_that_end_the_connection(data, code, reason, caplog):
    service = FakeService(R=FakeRun())
    async with serving(service) as server, ws.raw_socket(server, PATH) as websocket:
        await websocket.send(data)
        assert await websocket.closed() == (code, reason)
        await until(lambda: service.tails[0].closed)
    assert not caplog.records
    assert not service.cancels


async def test_a_close_without_a_code_is_answered_in_kind():
    async with serving(FakeService(R=FakeRun())) as server, ws.raw_socket(server, PATH) as websocket:
        await websocket.send(ws.frame(ws.CLOSE))
        assert await websocket.closed() is None


async def test_what_comes_after_a_close_is_ignored(caplog):
    service = FakeService(R=FakeRun())
    async with serving(service) as server, ws.raw_socket(server, PATH) as websocket:
        await websocket.send(ws.close(1000) + CANCEL + ws.close(1000) + b"\xff" * 1000)
        assert await websocket.frame() == (ws.CLOSE, struct.pack("!H", 1000))
        await until(lambda: service.tails[0].closed)
    assert not service.cancels
    assert not caplog.records


async def test_events_after_the_client_has_closed_are_not_an_error(caplog):
    """pgjones/hypercorn#177."""
    run = FakeRun()
    service = FakeService(R=run)
    async with serving(service) as server:
        for number in range(1, 21):
            async with ws.raw_socket(server, PATH) as websocket:
                await websocket.send(ws.close(1000))
                run.add(event(number))
        async with ws.raw_socket(server, PATH + "?after=1000-20") as websocket:
            run.add(event(21, "run_succeeded"))
            assert (await websocket.json())["id"] == "1000-21"
    assert not caplog.records


async def test_frames_right_behind_the_handshake_are_read_after_it(caplog):
    service = FakeService(R=FakeRun())
    async with serving(service) as server:
        async with ws.raw_socket(server, PATH, early=CANCEL + CANCEL) as websocket:
            assert await websocket.json() == ACCEPTED
            assert await websocket.json() == ACCEPTED
    assert len(service.cancels) == 2
    assert not caplog.records


@pytest.mark.parametrize("early", [b"x", CANCEL, b"\0" * MEBIBYTE], ids=["byte", "frame", "much"])
async def test_bytes_behind_a_handshake_that_is_refused_are_dropped(early, caplog):
    async with serving(FakeService()) as server, await server.connect() as stream:
        await stream.send_all(ws.handshake(PATH) + early)
        data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 404")
    assert data.endswith(b'{"detail":"run not found"}')
    assert not caplog.records


@pytest.mark.slow
async def test_a_message_that_was_refused_is_not_kept_however_long_it_goes_on():
    async with serving(FakeService(R=FakeRun())) as server, ws.raw_socket(server, PATH) as websocket:
        await websocket.send(ws.frame(ws.TEXT, length=2**30))
        assert await websocket.frame() == (ws.CLOSE, struct.pack("!H", 1009) + b"a message may have 64 KiB")
        tracemalloc.start()
        try:
            with pytest.raises(trio.BrokenResourceError):
                await send_for_ever(websocket, b"x" * MEBIBYTE)
            assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
        finally:
            tracemalloc.stop()


@pytest.mark.slow
async def test_a_flood_of_empty_fragments_costs_no_memory_and_lets_others_run():
    service = FakeService(R=FakeRun())
    async with serving(service) as server, ws.raw_socket(server, PATH) as websocket:
        flood = ws.frame(ws.TEXT, fin=False) + ws.frame(0, fin=False) * 100_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.send, flood)
            tracemalloc.start()
            try:
                for _ in range(20):
                    async with await server.connect() as stream:
                        await stream.send_all(get("/runs/R", "Connection: close"))
                        assert (await read_all(stream)).startswith(b"HTTP/1.1 200")
                assert tracemalloc.get_traced_memory()[1] < 4 * MEBIBYTE
            finally:
                tracemalloc.stop()
        await websocket.send(ws.frame(0, b'{"type":"cancel"}'))
        assert await websocket.json() == ACCEPTED


@pytest.mark.slow
async def test_a_flood_of_messages_is_read_only_as_fast_as_it_is_answered():
    """Nothing queues up in the server; the client's own buffers fill."""
    gate = trio.Event()

    class Service(FakeService):
        async def cancel(self, run_id, request):
            self.cancels.append(request)
            await gate.wait()

    service = Service(R=FakeRun())
    async with serving(service, heartbeat_seconds=0.1) as server, ws.raw_socket(server, PATH) as websocket:
        message = ws.text({"type": "cancel", "reason": "x" * 60_000})
        sent = 0
        with trio.move_on_after(0.8):  # eight intervals: it is not the client's fault that its pongs are not read
            for _ in range(1000):
                await websocket.send(message)
                sent += 1
        assert sent < 1000
        assert len(service.cancels) == 1
        gate.set()
        await until(lambda: len(service.cancels) > 10)


@pytest.mark.slow
async def test_messages_that_nobody_takes_any_more_do_not_keep_the_connection():
    """The handler is stuck in the first, more wait than hypercorn queues, and then the stream ends."""

    class Service(FakeService):
        async def cancel(self, run_id, request):
            self.cancels.append(request)
            await trio.sleep_forever()

    run = FakeRun()
    service = Service(R=run)
    async with serving(service, graceful_seconds=9) as server:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        async with ws.raw_socket(server, PATH) as websocket:
            await websocket.send(CANCEL * 50)
            await until(lambda: service.cancels)
            run.add(event(1, "run_succeeded"))
            assert (await websocket.json())["type"] == "run_succeeded"
            assert await websocket.closed() == (1000, "")
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


@pytest.mark.slow
async def test_a_client_that_sends_on_after_the_end_does_not_keep_its_connection():
    """The app has ended and takes nothing any more; what hypercorn hands to it must not wait."""
    run = FakeRun()
    service = FakeService(R=run)
    async with serving(service, graceful_seconds=9) as server:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        async with ws.raw_socket(server, PATH) as websocket:
            run.add(event(1, "run_succeeded"))
            with pytest.raises(trio.BrokenResourceError):
                await send_for_ever(websocket, CANCEL * 100)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


@pytest.mark.parametrize("cut", [0, 1, 17, 60, 150, None])
async def test_a_reset_at_any_point_ends_only_that_connection(cut, caplog):
    run = FakeRun()
    service = FakeService(R=run)
    whole = ws.handshake(PATH) + CANCEL
    async with serving(service) as server, ws.raw_socket(server, PATH) as bystander:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(5):
            stream = await server.connect()
            await stream.send_all(whole[:cut])
            if cut is None:
                await read_until(stream, b"\r\n\r\n")
            reset(stream)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)
        run.add(event(1, "run_succeeded"))
        assert (await bystander.json())["type"] == "run_succeeded"
        assert await bystander.closed() == (1000, "")
    assert not caplog.records


async def test_a_client_that_leaves_without_a_word_is_a_normal_end(caplog):
    service = FakeService(R=FakeRun())
    async with serving(service) as server:
        async with ws.raw_socket(server, PATH):
            await until(lambda: service.tails and service.tails[0].waits)
        await until(lambda: service.tails[0].closed)
    assert not caplog.records


def bare_stream():
    """A stream whose handshake is done, and what it sends."""
    sent = []

    async def send(message):
        await trio.lowlevel.checkpoint()
        sent.append(message)

    async def app_put(message):
        await trio.lowlevel.checkpoint()

    config = ServerConfig(HttpSettings())
    stream = WebSocketStream(None, config, None, None, False, None, None, send, 1)
    stream.state = ASGIWebsocketState.CONNECTED
    stream.connection = Connection(ConnectionType.SERVER, [InboundPolicy()])
    stream.app_put = app_put
    return stream, sent


async def test_what_an_app_sends_after_its_close_is_dropped():
    stream, sent = bare_stream()
    await stream.app_send({"type": "websocket.send", "texts": (b"{}", b"{}")})
    await stream.app_send({"type": "websocket.close", "code": 1000})
    for message in ({"type": "websocket.send", "texts": (b"{}",)}, {"type": "websocket.close", "code": 1011}):
        await stream.app_send(message)
    assert [message.data for message in sent] == [b"\x81\x02{}" * 2, b"\x88\x02\x03\xe8"]


async def test_a_segment_full_of_frames_lets_other_tasks_run_in_between():
    stream, _ = bare_stream()
    turns = 0

    async def other():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        stream._decided.set()
        await stream.handle(Data(1, ws.frame(ws.TEXT, fin=False) + ws.frame(0, fin=False) * 10_000))
        nursery.cancel_scope.cancel()
    assert turns > 100


def test_hypercorn_is_told_the_limits():
    config = ServerConfig(HttpSettings())
    assert (config.websocket_max_message_size, config.websocket_ping_interval) == (65536, 15.0)
