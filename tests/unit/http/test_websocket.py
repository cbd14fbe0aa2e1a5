"""The WebSocket of a run, with a real client and a fake service: frames, messages, closes, pings, slow readers."""

import json

import pytest
import trio
import trio.testing
from tests.unit.http import ws
from tests.unit.http.fakes import FakeRun, FakeService, event
from tests.unit.http.test_server import get, read_all, read_until, serving, until
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from dify_agent.errors import RunCancellationConflictError
from dify_agent.http.websocket_frames import text_frame
from dify_agent.http.websocket_stream import WebSocketStream
from dify_agent.supervisor.handle import TailBatch

PATH = "/runs/R/events/ws"


def finished(count=3):
    run = FakeRun()
    run.add(*(event(n) for n in range(1, count)), event(count, "run_succeeded"))
    return run


class Tail:
    """Hands out prepared batches, or raises, and then waits for ever."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.closed = 0

    async def next(self):
        await trio.lowlevel.checkpoint()
        if not self.steps:
            await trio.sleep_forever()
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self):
        self.closed += 1


class TailService(FakeService):
    def __init__(self, *steps):
        super().__init__(R=FakeRun())
        self.tail = Tail(*steps)

    async def open_tail(self, run_id, after):
        await super().open_tail(run_id, after)
        return self.tail


# Frames out


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
def test_text_frames_are_what_a_parser_expects(size):
    connection = Connection(ConnectionType.CLIENT)
    connection.receive_data(text_frame(b"x" * size))
    pieces = list(connection.events())
    assert all(isinstance(piece, TextMessage) for piece in pieces)
    assert sum(len(piece.data) for piece in pieces) == size
    assert pieces[-1].message_finished


async def test_events_come_one_a_frame_with_the_json_of_the_event_stream_and_the_terminal_closes_with_1000():
    service = FakeService(R=finished())
    async with serving(service) as server:
        async with ws.client(server, PATH) as websocket:
            got, reason = await ws.messages(websocket)
        async with await server.connect() as stream:
            await stream.send_all(get("/runs/R/events/sse", "Connection: close"))
            body = (await read_all(stream)).decode()
    assert reason == (1000, "")
    assert got == [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
    assert [item["id"] for item in got] == ["1000-1", "1000-2", "1000-3"]


async def test_events_that_are_ready_together_leave_in_one_write():
    async with serving(FakeService(R=finished(20))) as server:
        async with ws.raw_socket(server, PATH) as websocket:
            piece = websocket.buffer or await websocket.stream.receive_some(65536)
    assert piece.count(b"pydantic_ai_event") == 19
    assert b"run_succeeded" in piece


async def test_a_long_batch_leaves_in_pieces_of_several_events(monkeypatch):
    writes = []
    write_texts = WebSocketStream._write_texts

    async def note(self, texts):
        writes.append(len(texts))
        await write_texts(self, texts)

    monkeypatch.setattr(WebSocketStream, "_write_texts", note)
    run = FakeRun()
    run.add(*(event(n, data='"' + "x" * 60_000 + '"') for n in range(1, 11)), event(11, "run_succeeded"))
    async with serving(FakeService(R=run)) as server, ws.client(server, PATH) as websocket:
        got, _ = await ws.messages(websocket)
    assert len(got) == 11
    assert writes == [4, 4, 3]


async def test_live_events_arrive_and_a_leaver_ends_only_its_own_stream():
    run = FakeRun()
    service = FakeService(R=run)
    async with serving(service) as server:
        async with ws.client(server, PATH) as stayer:
            async with ws.client(server, PATH):
                await until(lambda: [tail.waits for tail in service.tails] == [1, 1])
            await until(lambda: sum(tail.cancelled for tail in service.tails) == 1)
            run.add(event(1))
            assert json.loads(await stayer.get_message())["id"] == "1000-1"
            run.add(event(2, "run_cancelled"))
            assert (await ws.messages(stayer))[1] == (1000, "")
    assert [tail.closed for tail in service.tails] == [True, True]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (TailBatch(end="terminal"), (1000, "")),
        (TailBatch(end="expired"), (1000, "expired")),
        (TailBatch(end="drain"), (1001, "the server is shutting down")),
    ],
)
async def test_the_close_says_why_the_stream_ended(batch, reason):
    service = TailService(batch)
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        assert await ws.messages(websocket) == ([], reason)
    assert service.tail.closed == 1


async def test_missing_events_are_announced_in_front_of_what_follows_them():
    service = TailService(TailBatch((event(8),), trimmed=7), TailBatch(end="terminal"))
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        got, _ = await ws.messages(websocket)
    assert got[0] == {"control": "trimmed", "count": 7}
    assert got[1]["id"] == "1000-8"


@pytest.mark.parametrize(
    ("target", "headers", "first"),
    [
        ("?after=1000-1", [], 2),
        ("?after=", [], 1),
        ("?after=1000-2", [("Last-Event-ID", "1000-1")], 3),
        ("", [("Last-Event-ID", "1000-1")], 2),
        ("?after=999-9", [], 1),
    ],
)
async def test_the_cursor_is_that_of_the_event_stream(target, headers, first):
    async with serving(FakeService(R=finished())) as server:
        async with ws.client(server, PATH + target, extra_headers=headers) as websocket:
            got, _ = await ws.messages(websocket)
    assert got[0]["id"] == f"1000-{first}"


async def test_a_cursor_at_the_terminal_event_closes_at_once():
    """D5."""
    async with serving(FakeService(R=finished())) as server:
        async with ws.client(server, PATH + "?after=1000-3") as websocket:
            assert await ws.messages(websocket) == ([], (1000, ""))


async def test_a_fault_in_a_stream_closes_with_1011_and_is_logged(caplog):
    service = TailService(TailBatch((event(1),)), RuntimeError("planted"))
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        got, reason = await ws.messages(websocket)
    assert (len(got), reason) == (1, (1011, ""))
    assert service.tail.closed == 1
    assert "planted" in caplog.text


# Messages in


async def test_a_cancel_reaches_the_service_and_is_acknowledged():
    service = FakeService(R=FakeRun())
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        await websocket.send_message('{"type":"cancel","reason":"user","message":"Stop"}')
        assert json.loads(await websocket.get_message()) == {"control": "cancel_accepted"}
        assert service.cancels[0].model_dump() == {"reason": "user", "message": "Stop"}
        service.runs["R"].add(event(1, "run_cancelled"))
        assert (await ws.messages(websocket))[1] == (1000, "")


async def test_the_close_waits_for_the_answer_to_a_cancel_that_ends_the_stream():
    class Service(FakeService):
        async def cancel(self, run_id, request):
            self.runs["R"].add(event(1, "run_cancelled"))
            await trio.testing.wait_all_tasks_blocked(0.05)

    async with serving(Service(R=FakeRun())) as server, ws.client(server, PATH) as websocket:
        await websocket.send_message('{"type":"cancel"}')
        got, reason = await ws.messages(websocket)
    assert [item.get("control", item.get("type")) for item in got] == ["run_cancelled", "cancel_accepted"]
    assert reason == (1000, "")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("", "missing"),
        ("nonsense", "json_invalid"),
        ('{"type":"cancel","reason":NaN}', "json_invalid"),
        ("[" * 300 + "]" * 300, "json_invalid"),
        ("[]", "model_attributes_type"),
        ("{}", "missing"),
        ('{"type":"pause"}', "literal_error"),
        ('{"type":"cancel","reason":7}', "string_type"),
        ('{"type":"cancel","why":"x"}', "extra_forbidden"),
    ],
)
async def test_a_message_that_is_no_cancel_is_an_error_but_not_the_end(message, kind):
    service = FakeService(R=FakeRun())
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        await websocket.send_message(message)
        answer = json.loads(await websocket.get_message())
        assert answer["control"] == "error"
        assert answer["detail"][0]["type"] == kind
        await websocket.send_message('{"type":"cancel"}')
        assert json.loads(await websocket.get_message()) == {"control": "cancel_accepted"}
    assert len(service.cancels) == 1


async def test_a_cancel_that_is_refused_is_an_error_with_the_detail_of_the_http_answer():
    class Service(FakeService):
        async def cancel(self, run_id, request):
            await super().cancel(run_id, request)
            raise RunCancellationConflictError(run_id, "succeeded")

    service = Service(R=FakeRun())
    async with serving(service) as server, ws.client(server, PATH) as websocket:
        for expected in ("run already finished with status 'succeeded'", "run store is unavailable"):
            await websocket.send_message('{"type":"cancel"}')
            assert json.loads(await websocket.get_message()) == {"control": "error", "detail": expected}
            service.down = True


async def test_a_message_of_64_kib_is_taken_and_fragments_make_one_message():
    async with serving(FakeService(R=FakeRun())) as server, ws.raw_socket(server, PATH) as websocket:
        message = b'{"type":"cancel","reason":"%b"}' % (b"x" * (65536 - 29))
        assert len(message) == 65536
        pieces = [message[:1], message[1:40_000], b"", message[40_000:]]
        await websocket.send(ws.frame(ws.TEXT, pieces[0], fin=False) + ws.frame(0, pieces[1], fin=False))
        await websocket.send(ws.frame(ws.PING, b"between") + ws.frame(0, pieces[2], fin=False) + ws.frame(0, pieces[3]))
        assert await websocket.frame() == (ws.PONG, b"between")
        assert await websocket.json() == {"control": "cancel_accepted"}


# Pings, readers that stall, the stop


@pytest.mark.slow
async def test_a_silent_stream_is_pinged_and_a_peer_that_answers_lives_on():
    service = FakeService(R=FakeRun())
    async with serving(service, heartbeat_seconds=0.05) as server, ws.raw_socket(server, PATH) as websocket:
        for _ in range(8):
            opcode, payload = await websocket.frame()
            assert opcode == ws.PING
            await websocket.send(ws.frame(ws.PONG, payload))
        service.runs["R"].add(event(1, "run_succeeded"))
        while (got := await websocket.frame())[0] == ws.PING:
            pass
        assert b"run_succeeded" in got[1]


@pytest.mark.slow
async def test_a_peer_that_answers_no_ping_for_three_intervals_is_closed():
    service = FakeService(R=FakeRun())
    async with serving(service, heartbeat_seconds=0.1) as server, ws.raw_socket(server, PATH) as websocket:
        start = trio.current_time()
        code, reason = await websocket.closed()
        assert (code, reason) == (1002, "pings were not answered")
        assert 0.25 < trio.current_time() - start < 2
        await until(lambda: service.tails[0].cancelled)


async def test_an_ended_websocket_leaves_no_pinger_behind():
    async with serving(FakeService(R=finished()), graceful_seconds=9) as server:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        async with ws.raw_socket(server, PATH) as websocket:
            await websocket.frame(), await websocket.frame(), await websocket.frame()
            assert await websocket.closed() == (1000, "")
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


@pytest.mark.slow
async def test_a_client_that_does_not_answer_the_close_is_waited_for_briefly():
    async with serving(FakeService(R=finished()), graceful_seconds=9) as server:
        async with ws.raw_socket(server, PATH) as websocket:
            while (await websocket.frame())[0] != ws.CLOSE:
                pass
            start = trio.current_time()
            server.stop.set()
            await server.ended()
            assert trio.current_time() - start < 1.5


def flood():
    return FakeRun(events=[event(1, data='"' + "x" * 16 * 2**20 + '"')])


@pytest.mark.slow
async def test_a_stalled_reader_is_cut_as_on_the_event_stream():
    service = FakeService(R=flood())
    async with serving(service, stream_stall_seconds=0.2) as server:
        stream = await server.connect(receive_buffer=4096)
        async with stream:
            await stream.send_all(ws.handshake(PATH))
            await until(lambda: service.tails and service.tails[0].cursor.n)
            await until(lambda: not server_tasks(service))
            assert len(await read_all(stream)) < 16 * 2**20


def server_tasks(service):
    """Whether the only stream is still being served: a tail is closed when it ends."""
    return not service.tails[0].closed


@pytest.mark.slow
async def test_pings_are_answered_and_a_close_is_heard_while_a_slow_reader_is_written_to():
    run = flood()
    service = FakeService(R=run)
    async with serving(service, heartbeat_seconds=0.2) as server:
        stream = await server.connect(receive_buffer=65536)
        async with stream:
            await stream.send_all(ws.handshake(PATH))
            await until(lambda: service.tails and service.tails[0].cursor.n)
            for number in range(100):
                await stream.send_all(ws.frame(ws.PING, b"%d" % number))
            await trio.sleep(1.0)  # five intervals: a write in progress is no unanswered ping
            rest = (await read_until(stream, b"\r\n\r\n")).partition(b"\r\n\r\n")[2]
            websocket = ws.RawSocket(stream, rest)
            opcode, payload = await read_big_frame(websocket)
            assert (opcode, len(payload) > 16 * 2**20) == (ws.TEXT, True)
            pongs = []
            while not pongs or pongs[-1] != b"99":
                opcode, payload = await websocket.frame()
                assert opcode in (ws.PONG, ws.PING)
                if opcode == ws.PONG:
                    pongs.append(payload)
            assert len(pongs) <= 2, "only the newest ping is owed an answer"
            await stream.send_all(ws.text({"type": "cancel"}))
            while (got := await websocket.frame())[0] != ws.TEXT:
                assert got[0] == ws.PING
            await stream.send_all(ws.close(1000))
            await until(lambda: service.tails[0].cancelled)


async def read_big_frame(websocket):
    """Without copying the buffer for each piece, as `RawSocket.frame` does."""
    pieces, size = [websocket.buffer], len(websocket.buffer)
    while size < 16 * 2**20:
        piece = await websocket.stream.receive_some(2**20)
        pieces.append(piece)
        size += len(piece)
    websocket.buffer = b"".join(pieces)
    return await websocket.frame()
