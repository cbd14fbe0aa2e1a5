"""A replica with few descriptors and many clients: the surplus is told so, runs and open streams go on."""

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from tests.server.bodies import run_of, text_run
from tests.server.clients import Api, open_stream
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving, until

DESCRIPTORS = 256
SURPLUS = 40


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    with serving(store.url, descriptors=DESCRIPTORS) as started:
        yield started


def open_descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


async def answer_of(stream: trio.SocketStream) -> bytes:
    data = b""
    while piece := await stream.receive_some():
        data += piece
    return data


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc, which only Linux has")
async def test_connections_are_refused_before_descriptors_run_out(server, api: Api):
    slow = run_of({"chunks": 40, "delay_ms": 50})
    run_id = await api.create(slow)
    async with open_stream(server, run_id) as reader, AsyncExitStack() as held:
        idle = [await held.enter_async_context(await connect(server)) for _ in range(DESCRIPTORS // 2)]
        await until(lambda: "connections are refused" in server.log, "the server is full")
        full = open_descriptors(server)
        assert full < DESCRIPTORS - 60
        for _ in range(SURPLUS):
            async with await connect(server) as stream:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                with trio.fail_after(BOUND_SECONDS):
                    answer = await answer_of(stream)
            assert answer.startswith(b"HTTP/1.1 429 "), answer
            assert b"\r\nretry-after: 1\r\n" in answer
            assert answer.endswith(b'{"detail":"too many open connections"}')
        # Clients that were let in are served, also by new runs, which need the store.
        assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"
        assert [frame.event for frame in await reader.rest()][-1] == "run_succeeded"
        for stream in idle[:20]:
            await stream.aclose()
        await until(lambda: open_descriptors(server) < full - 15, "the closed connections are gone")
        async with await connect(server) as stream:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await answer_of(stream)).startswith(b"HTTP/1.1 200 ")
    refusals = [record for record in server.records() if "connections are refused" in record["event"]]
    assert {record["level"] for record in refusals} == {"warning"}
    assert len(refusals) <= 2, "one in ten seconds"


async def connect(server: Server) -> trio.SocketStream:
    with trio.fail_after(BOUND_SECONDS):
        return await trio.open_tcp_stream("127.0.0.1", server.port)
