"""Handshakes of the WebSocket: what is refused and how, browsers and their tokens, origins."""

import base64
import json

import pytest
from tests.unit.http import ws
from tests.unit.http.fakes import FakeRun, FakeService, call, event, make_app
from tests.unit.http.test_server import read_all, read_until, serving

from dify_agent.http.websocket import is_origin_allowed

PATH = "/runs/R/events/ws"
TOKEN = "s3cret-ü"


def bearer(token=TOKEN):
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def finished(count=3):
    run = FakeRun()
    run.add(*(event(n) for n in range(1, count)), event(count, "run_succeeded"))
    return run


# Handshakes


@pytest.mark.parametrize(
    ("target", "headers", "service", "status", "detail"),
    [
        (PATH, {}, "guarded", 401, "missing authorization header"),
        (PATH, {"Authorization": "Basic x"}, "guarded", 401, "invalid authorization scheme"),
        (PATH, {"Authorization": "Bearer x"}, "guarded", 401, "invalid bearer token"),
        ("/runs/X/events/ws", {}, "", 404, "run not found"),
        ("/runs/R/events/nope", {}, "", 404, "Not Found"),
        ("/runs/R/events/ws/", {}, "", 404, "Not Found"),
        (PATH + "?after=x", {}, "", 422, None),
        (PATH, {"Last-Event-ID": "x"}, "", 422, None),
        (PATH, {}, "down", 503, "run store is unavailable"),
    ],
)
async def test_refusals_are_http_answers_in_json(target, headers, service, status, detail):
    settings = {"api_token": TOKEN} if service == "guarded" else {}
    fake = FakeService(R=FakeRun())
    fake.down = service == "down"
    async with serving(fake, **settings) as server, await server.connect() as stream:
        await stream.send_all(ws.handshake(target, *(f"{name}: {value}" for name, value in headers.items())))
        data = await read_all(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\ncontent-type: application/json" in head.lower()
    assert b"\r\nconnection: close" in head.lower()
    assert detail is None or json.loads(body) == {"detail": detail}
    for code, name in ((401, b"www-authenticate: bearer"), (503, b"retry-after: 1")):
        assert (name in head.lower()) == (status == code)


async def test_a_handler_that_fails_before_it_accepts_is_a_500(caplog):
    service = FakeService(R=FakeRun())
    service.error = RuntimeError("planted")
    async with serving(service) as server, await server.connect() as stream:
        await stream.send_all(ws.handshake(PATH))
        data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 500")
    assert data.endswith(b"Internal Server Error")
    assert "planted" in caplog.text


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (ws.handshake(PATH, drop=("Sec-WebSocket-Key",)), 400),
        (ws.handshake(PATH, "Sec-WebSocket-Key: short", drop=("Sec-WebSocket-Key",)), 400),
        (ws.handshake(PATH, "Sec-WebSocket-Key: ***", drop=("Sec-WebSocket-Key",)), 400),
        (ws.handshake(PATH, "Sec-WebSocket-Version: 8", drop=("Sec-WebSocket-Version",)), 426),
        (ws.handshake(PATH, drop=("Sec-WebSocket-Version",)), 426),
        (ws.handshake(PATH, "Sec-WebSocket-Protocol: caf\xe9"), 400),
        (ws.handshake(PATH, "Sec-WebSocket-Extensions: \xff\xfe"), 400),
        (ws.handshake(PATH, "Connection: \xff"), 400),
        (ws.handshake(PATH, "Content-Length: 3") + b"abc", 400),
        (ws.handshake(PATH, "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (ws.handshake(PATH).replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (ws.handshake("/runs/R"), 400),
        (ws.handshake("//runs/R/events/ws"), 404),
        (ws.handshake("/runs/%00/events/ws"), 404),
        (ws.handshake("/runs/R%2fevents/ws"), 404),
        (ws.handshake("*"), 404),
    ],
)
async def test_what_is_no_handshake_is_refused_in_json_and_closed(request_text, status, caplog):
    async with serving(FakeService(R=FakeRun())) as server, await server.connect() as stream:
        await stream.send_all(request_text)
        data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 %d" % status), data
    assert "detail" in json.loads(data.partition(b"\r\n\r\n")[2])
    assert (b"sec-websocket-version: 13" in data) == (status == 426)
    assert not caplog.records


async def test_an_absolute_target_and_lists_of_tokens_are_fine():
    async with serving(FakeService(R=finished())) as server, await server.connect() as stream:
        await stream.send_all(
            ws.handshake(f"http://server.test{PATH}", "Connection: keep-alive, upgrade", drop=("Connection",))
        )
        assert b"HTTP/1.1 101" in await read_until(stream, b"run_succeeded")


@pytest.mark.parametrize(("settings", "status"), [({}, 426), ({"api_token": TOKEN}, 401)])
async def test_a_request_that_wants_no_websocket_is_told_so(settings, status):
    answer = await call(make_app(FakeService(R=FakeRun()), **settings), "GET", PATH)
    assert answer.status == status
    assert (answer.headers.get("upgrade") == "websocket") == (status == 426)


async def test_compression_is_not_accepted():
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99"
    async with serving(FakeService(R=finished())) as server, await server.connect() as stream:
        await stream.send_all(ws.handshake(PATH, offer))
        assert b"extensions" not in (await read_until(stream, b"\r\n\r\n")).lower()


# Browsers


async def test_a_browser_authenticates_with_a_subprotocol_and_gets_the_other_one_back():
    async with serving(FakeService(R=finished()), api_token=TOKEN) as server:
        for offered in (["dify-agent.v1", bearer()], [bearer(), "dify-agent.v1"]):
            async with ws.client(server, PATH, subprotocols=offered) as websocket:
                assert websocket.subprotocol == "dify-agent.v1"
                assert (await ws.messages(websocket))[1] == (1000, "")


@pytest.mark.parametrize(
    ("token", "target", "down", "detail"),
    [
        ("bearer.", PATH, False, "invalid bearer token"),
        ("bearer.!!!", PATH, False, "invalid bearer token"),
        ("bearer.A", PATH, False, "invalid bearer token"),
        (bearer("wrong"), PATH, False, "invalid bearer token"),
        (bearer(), "/runs/X/events/ws", False, "run not found"),
        (bearer(), PATH + "?after=x", False, None),
        (bearer(), PATH, True, "run store is unavailable"),
    ],
)
async def test_a_browser_is_refused_with_a_close_frame(token, target, down, detail):
    service = FakeService(R=FakeRun())
    service.down = down
    async with serving(service, api_token=TOKEN) as server:
        async with ws.client(server, target, subprotocols=["dify-agent.v1", token]) as websocket:
            got, (code, reason) = await ws.messages(websocket)
    assert (got, code) == ([], 1008)
    assert reason
    assert len(reason.encode()) <= 123
    assert detail in (None, reason)


async def test_a_header_wins_over_a_subprotocol():
    async with serving(FakeService(R=finished()), api_token=TOKEN) as server, await server.connect() as stream:
        await stream.send_all(
            ws.handshake(PATH, "Authorization: Bearer no", f"Sec-WebSocket-Protocol: dify-agent.v1, {bearer()}")
        )
        assert (await read_all(stream)).startswith(b"HTTP/1.1 401")


async def test_subprotocols_may_come_in_several_headers_and_unknown_ones_are_not_selected():
    async with serving(FakeService(R=finished())) as server:
        for headers, selected in (
            (("Sec-WebSocket-Protocol: x", "Sec-WebSocket-Protocol: dify-agent.v1", "Sec-WebSocket-Protocol: y"), True),
            (("Sec-WebSocket-Protocol: x",), False),
        ):
            async with await server.connect() as stream:
                await stream.send_all(ws.handshake(PATH, *headers))
                head = (await read_until(stream, b"\r\n\r\n")).lower()
                assert head.startswith(b"http/1.1 101")
                assert (b"sec-websocket-protocol: dify-agent.v1" in head) == selected


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://agent.example", "agent.example", True),
        ("https://agent.example", "agent.example:443", True),
        ("http://agent.example:80", "Agent.Example", True),
        ("http://agent.example:5050", "agent.example:5050", True),
        ("http://[::1]:5050", "[::1]:5050", True),
        ("HTTPS://Console.Example", "agent.example", True),
        ("https://console.example:444", "agent.example", False),
        ("http://console.example", "agent.example", False),
        ("https://agent.example:444", "agent.example", False),
        ("https://agent.example", "agent.example:80", False),
        ("https://agent.example.evil", "agent.example", False),
        ("null", "agent.example", False),
        ("", "", False),
        ("https://", "", False),
        ("http://[", "agent.example", False),
        ("http://agent.example:x", "agent.example", False),
        ("file://agent.example", "agent.example", False),
        ("https://agent.example", None, False),
    ],
)
def test_origins(origin, host, allowed):
    assert is_origin_allowed(origin, host, {"https://console.example"}) is allowed


async def test_a_foreign_page_is_refused_whatever_its_token():
    settings = {"api_token": TOKEN, "allowed_origins": ("https://Console.example/",)}
    async with serving(FakeService(R=finished()), **settings) as server:
        for origin, code in (("https://evil.example", 1008), ("https://console.example", 1000)):
            options = {"subprotocols": ["dify-agent.v1", bearer()], "extra_headers": [("Origin", origin)]}
            async with ws.client(server, PATH, **options) as websocket:
                assert (await ws.messages(websocket))[1][0] == code
        async with await server.connect() as stream:
            await stream.send_all(ws.handshake(PATH, "Origin: https://evil.example", "Authorization: Bearer x"))
            data = await read_all(stream)
    assert data.startswith(b"HTTP/1.1 401")
    assert data.endswith(b'{"detail":"origin is not allowed"}')


async def test_without_a_token_any_page_may_connect():
    async with serving(FakeService(R=finished())) as server:
        async with ws.client(server, PATH, extra_headers=[("Origin", "https://evil.example")]) as websocket:
            assert (await ws.messages(websocket))[1] == (1000, "")


async def test_the_token_is_in_no_log(caplog):
    caplog.set_level("DEBUG")
    service = FakeService(R=FakeRun())
    service.error = RuntimeError("planted")
    async with serving(service, api_token=TOKEN) as server:
        async with await server.connect() as stream:
            await stream.send_all(ws.handshake(PATH, f"Sec-WebSocket-Protocol: dify-agent.v1, {bearer()}"))
            assert (await read_all(stream)).startswith(b"HTTP/1.1 500")
    assert "planted" in caplog.text
    assert TOKEN not in caplog.text
    assert bearer()[7:] not in caplog.text
