"""Bad input on the real process: the specified answer with a JSON body, never a 500, and memory that comes back."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import psutil
import pytest
import trio
from tests.server.bodies import text_run
from tests.server.clients import Api
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving

TOKEN = "s3cr3t"
RIGHT = ("Authorization", f"Bearer {TOKEN}")
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    with serving(store.url, api_token=TOKEN) as started:
        yield started


@asynccontextmanager
async def connection(server: Server) -> AsyncIterator[trio.SocketStream]:
    with trio.fail_after(BOUND_SECONDS):
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with stream:
            yield stream


async def answer(stream: trio.SocketStream) -> tuple[int, Any]:
    """Status and JSON of one answer."""
    parser, status, body = h11.Connection(h11.CLIENT), 0, b""
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, json.loads(body)


async def post(server: Server, body: bytes, *headers: tuple[str, str], path: str = "/runs") -> tuple[int, Any]:
    lines = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Host", "x"), *headers]
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    async with connection(server) as stream:
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await stream.send_all(head.encode("latin-1") + body)
                except trio.BrokenResourceError:
                    return  # refused and closed before all of it was taken

            nursery.start_soon(send)
            result = await answer(stream)
            nursery.cancel_scope.cancel()
        return result


def with_user(raw: bytes) -> bytes:
    body = json.dumps(text_run(prompt="@")).encode()
    return body.replace(b'"@"', raw)


BODIES = {
    "nan": (with_user(b"NaN"), "json_invalid"),
    "infinity": (with_user(b"-Infinity"), "json_invalid"),
    "double-overflow": (with_user(b"1e999"), "json_invalid"),
    "surrogate": (with_user(b'"\\ud800"'), "json_invalid"),
    "long-integer": (with_user(b"1" * 5000), "json_invalid"),
    "invalid-utf8": (with_user(b'"\xff"'), "json_invalid"),
    "100,000-arrays": (b"[" * 100_000 + b"]" * 100_000, "json_invalid"),
    "truncated": (with_user(b'"x"')[:-5], "json_invalid"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_what_is_no_json_is_422_without_an_echo(server: Server, name: str) -> None:
    body, kind = BODIES[name]
    status, detail = await post(server, body, RIGHT)
    assert status == 422
    (item,) = detail["detail"]
    assert (item["type"], item["input"]) == (kind, {})
    assert item["loc"][0] == "body"


async def test_nul_round_trips(server: Server, api: Api) -> None:
    status, created = await post(server, with_user(b'"a\\u0000b"'), RIGHT)
    assert status == 202
    assert created["status"] == "running"


async def test_a_body_of_65_mib_is_413_and_memory_comes_back(server: Server) -> None:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    for _ in range(5):
        status, detail = await post(server, b" " * (65 * MEBIBYTE), RIGHT)
        assert (status, detail) == (413, {"detail": f"request body exceeds {64 * MEBIBYTE} bytes"})
    assert process.memory_info().rss - before < 80 * MEBIBYTE


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ([], "missing authorization header"),
        ([("authorization", "Basic x")], "invalid authorization scheme"),
        ([("aUTHORIZATION", f"bEARER  {TOKEN}x")], "invalid bearer token"),
        ([("Authorization", "Bearer wrong"), RIGHT], "invalid bearer token"),
        ([("Authorization", "Bearer \xff")], "invalid bearer token"),
    ],
)
async def test_wrong_tokens(server: Server, headers: list[tuple[str, str]], detail: str) -> None:
    assert await post(server, json.dumps(text_run()).encode(), *headers) == (401, {"detail": detail})


async def test_the_right_token_in_odd_case_is_right(server: Server) -> None:
    status, _ = await post(server, json.dumps(text_run()).encode(), ("aUTHORIZATION", f"bEARER   {TOKEN}  "))
    assert status == 202


async def test_ten_thousand_headers_are_431(server: Server) -> None:
    status, detail = await post(server, b"{}", RIGHT, *((f"x-{n}", "y") for n in range(10_000)))
    assert status == 431
    assert isinstance(detail["detail"], str)


@pytest.mark.slow
async def test_bodies_that_drip_hold_up_nobody(server: Server, api: Api) -> None:
    async with trio.open_nursery() as nursery:
        dripping, all_drip = 0, trio.Event()

        async def drip() -> None:
            nonlocal dripping
            async with connection(server) as stream:
                head = "POST /runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
                await stream.send_all(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
                dripping += 1
                if dripping == 50:
                    all_drip.set()
                while True:
                    await stream.send_all(b" ")
                    await trio.sleep(0.01)

        for _ in range(50):
            nursery.start_soon(drip)
        await all_drip.wait()
        for _ in range(20):
            with trio.fail_after(2):
                assert (await api.client.get("/healthz")).status_code == 200
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cursor", ["-", "$", "abc", "1-2-3", "18446744073709551616", "1-18446744073709551616", "%00"])
async def test_bad_cursors_are_422_before_a_stream_starts(server: Server, cursor: str) -> None:
    _, created = await post(server, json.dumps(text_run()).encode(), RIGHT)
    for route in ("events", "events/sse"):
        async with connection(server) as stream:
            target = f"/runs/{created['run_id']}/{route}?after={cursor}"
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            status, detail = await answer(stream)
        assert status == 422
        assert detail["detail"][0]["loc"] == ["query", "after"]
