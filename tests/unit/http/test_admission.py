"""Connections for which there is no descriptor: they are told, others go on, and the log stays short."""

import errno
import json
import resource
from contextlib import asynccontextmanager

import pytest
import trio
from tests.unit.http.fakes import FakeRun, FakeService, event
from tests.unit.http.test_server import get, read_all, read_until, serving

from dify_agent.http import admission
from dify_agent.http.admission import REFUSED_AT_ONCE, RESERVED_DESCRIPTORS, Door, connection_bound


@pytest.mark.parametrize(
    ("soft", "bound"),
    [
        (65_536, 65_536 - RESERVED_DESCRIPTORS),
        (100, 50),
        (resource.RLIM_INFINITY, float("inf")),
    ],
)
def test_some_descriptors_are_kept(monkeypatch, soft, bound):
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, soft))
    assert connection_bound() == bound


@asynccontextmanager
async def full(monkeypatch, service=None):
    """A server that has no descriptors left for clients."""
    monkeypatch.setattr(admission, "connection_bound", lambda: 0)
    async with serving(service or FakeService()) as server:
        yield server


async def test_a_connection_too_many_gets_429_and_is_closed(monkeypatch):
    async with full(monkeypatch) as server, await server.connect() as stream:
        await stream.send_all(get("/healthz"))
        answer = await read_all(stream)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 429 too many requests"
    assert {b"retry-after: 1", b"connection: close", b"content-type: application/json"} <= set(lines)
    assert b"content-length: %d" % len(body) in lines
    assert json.loads(body) == {"detail": "too many open connections"}


async def test_the_refused_are_given_time_and_then_closed(monkeypatch, caplog):
    monkeypatch.setattr(admission, "FAREWELL_SECONDS", 0.05)
    async with full(monkeypatch) as server:
        streams = [await server.connect() for _ in range(REFUSED_AT_ONCE + 5)]
        answers = [await read_all(stream) for stream in streams]
        assert sum(answer.startswith(b"HTTP/1.1 429 ") for answer in answers) >= REFUSED_AT_ONCE
        for stream in streams:
            await stream.aclose()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Listener:
    """Fails to accept until told otherwise."""

    def __init__(self, error):
        self.error = error
        self.attempts = 0
        self.socket = trio.socket.socket()

    async def accept(self):
        await trio.lowlevel.checkpoint()
        self.attempts += 1
        raise OSError(self.error, "as the test says")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_shortage_is_waited_out_with_one_warning_in_a_while(autojump_clock, caplog, number):
    listener = Listener(number)
    async with trio.open_nursery() as connections:
        with trio.move_on_after(25):
            await Door(lambda _stream: None, connections).accept(listener)
    assert 200 < listener.attempts < 260
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)] * 3
    assert listener.socket.fileno() == -1


async def test_a_broken_listener_is_an_error():
    listener = Listener(errno.EINVAL)
    async with trio.open_nursery() as connections:
        with pytest.raises(OSError, match="as the test says"):
            await Door(lambda _stream: None, connections).accept(listener)
    assert listener.socket.fileno() == -1


async def test_streams_that_are_open_go_on(monkeypatch):
    run = FakeRun()
    async with serving(FakeService(R=run)) as server, await server.connect() as stream:
        await stream.send_all(get("/runs/R/events/sse"))
        await read_until(stream, b"\r\n\r\n")
        async with full(monkeypatch) as other, await other.connect() as refused:
            assert (await read_all(refused)).startswith(b"HTTP/1.1 429 ")
        run.add(event(1, "run_succeeded"))
        await read_until(stream, b"\r\n0\r\n\r\n")
