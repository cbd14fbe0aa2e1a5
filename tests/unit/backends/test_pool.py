"""The pool against peers that send what nobody asked for, on real sockets."""

import gzip
import os
import shutil
import ssl
import subprocess

import pytest
import trio
import trio.testing
from pydantic import BaseModel
from tests.unit.backends.peer import END, HEAD, Peer, clients, connected, headers, http_chunk, plain

from dify_agent.backends.pool import PIECES_PER_TURN, READ_BYTES, EncodedAnswerError, PacedStream
from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import DIFY_API, TransportReason, transport_failure
from dify_agent.errors import RunFailedError
from dify_agent.layers.dify_plugin.tools_client import ForeignReplyError, invoke_tool
from dify_agent.layers.inner_api import INVALID_RESPONSE, InnerCallError, post_inner
from dify_agent.model.dify.answer import open_answer

FIRST = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst"
CLIENTS = ("daemon", "dify_api", "models")


def whole(body):
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def chunked(body):
    return HEAD + http_chunk(body) + END


class Leftover:
    """A program: the first answer goes out in one write with what follows it, each later one is ``own``."""

    def __init__(self, first=FIRST, more=b""):
        self._first = first + more
        self.streams = []
        """One of each request."""

    @property
    def connections(self):
        return len(set(map(id, self.streams)))

    async def __call__(self, _peer, stream, _request):
        self.streams.append(stream)
        await stream.send_all(self._first if len(self.streams) == 1 else whole(b"own"))
        return True


async def texts(outbound, url, names):
    return [(await getattr(outbound, name).get(url)).text for name in names]


@pytest.mark.parametrize("second", CLIENTS)
@pytest.mark.parametrize("first", CLIENTS)
async def test_what_follows_an_answer_answers_nobody(first, second):
    program = Leftover(more=whole(b"of somebody else"))
    async with connected(program) as (peer, outbound):
        assert await texts(outbound, peer.url, (first, second)) == ["first", "own"]
        assert program.connections == 2


@pytest.mark.parametrize("framed", [whole, chunked])
@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n", b"\r\n", b"garbage\r\n\r\n", b"x"])
async def test_a_connection_with_a_rest_is_closed_at_once(framed, more):
    program = Leftover(framed(b"first"), more)
    async with connected(program) as (peer, outbound):
        assert await texts(outbound, peer.url, ["dify_api"]) == ["first"]
        await peer.until(lambda: peer.open == 0)
        assert await texts(outbound, peer.url, ["dify_api"]) == ["own"]


@pytest.mark.parametrize("framed", [whole, chunked])
async def test_connections_of_honest_peers_are_kept(framed):
    program = Leftover(framed(b"first"))
    async with connected(program) as (peer, outbound):
        assert await texts(outbound, peer.url, CLIENTS * 2) == ["first", *["own"] * 5]
        assert program.connections == 1


async def test_what_comes_while_a_connection_is_idle():
    program = Leftover()
    async with connected(program) as (peer, outbound):
        await texts(outbound, peer.url, ["daemon"])
        await program.streams[0].send_all(whole(b"of somebody else"))
        assert await texts(outbound, peer.url, ["dify_api"]) == ["own"]
        assert program.connections == 2


async def test_what_comes_when_the_next_request_has_the_connection_and_has_not_been_sent():
    program = Leftover()
    async with connected(program, max_connections=1) as (peer, outbound), trio.open_nursery() as nursery:
        answers = []

        async def ask_next():
            answers.extend(await texts(outbound, peer.url, ["dify_api"]))

        async with outbound.daemon.stream("GET", peer.url) as response:
            nursery.start_soon(ask_next)
            await trio.testing.wait_all_tasks_blocked()
            assert await response.aread() == b"first"
            # Nothing has run since the pool gave the connection to the one that waits.
            os.write(program.streams[0].socket.fileno(), whole(b"of somebody else"))
        with trio.fail_after(5):
            while not answers:
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert answers == ["own"]
    assert program.connections == 2


class TlsStream:
    """What `Peer` needs of a stream."""

    def __init__(self, inner):
        self.receive_some = inner.receive_some
        self.send_all = inner.send_all
        self.socket = inner.transport_stream.socket
        self.inner = inner


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """A certificate for 127.0.0.1 that this process trusts, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH; to run this test: apt-get install openssl")
    key, made = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test -addext subjectAltName=IP:127.0.0.1 -keyout"
    subprocess.run(["openssl", *make.split(), str(key), "-out", str(made)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    return made, key


@pytest.mark.parametrize("more", [whole(b"of somebody else"), None])
async def test_what_tls_still_holds(certificate, more):
    """Two records that come in one read: the second is neither in the socket nor in the parser."""
    streams = []

    async def program(_peer, stream, _request):
        streams.append(stream)
        if len(streams) == 2 and more is not None:
            # Records of one write, as `send_all` of both would make one record of them. Not on the first request: the
            # library has not sent all of the handshake yet.
            tls = stream.inner
            tls._ssl_object.write(whole(b"second"))
            tls._ssl_object.write(more)
            await tls.transport_stream.send_all(tls._outgoing.read())
        else:
            await stream.send_all(whole(b"own"))
        return True

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    peer = Peer(program)

    async def serve(stream):
        await peer.serve_client(TlsStream(stream))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: trio.serve_ssl_over_tcp(serve, 0, context, host="127.0.0.1", task_status=task_status)
        )
        url = f"https://127.0.0.1:{listener.transport_listener.socket.getsockname()[1]}"
        async with clients(url) as outbound:
            expected = ["own", "own" if more is None else "second", "own"]
            assert await texts(outbound, url, CLIENTS) == expected
        assert len(set(map(id, streams))) == (1 if more is None else 2)
        nursery.cancel_scope.cancel(reason="the test is over")


BOMB = gzip.compress(gzip.compress(b"\n" * (32 << 20)))


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("encoding", [b"gzip", b"gzip, gzip", b"GZIP", b"br", b"unheard-of", b"identity, deflate"])
async def test_a_compressed_answer_is_refused(name, status, encoding):
    async with connected(plain(status, BOMB, b"content-encoding: " + encoding)) as (peer, outbound):
        with pytest.raises(EncodedAnswerError) as caught:
            await getattr(outbound, name).get(f"{peer.url}/x?sign=secret")
        await peer.until(lambda: peer.open == 0)
        assert headers(peer.requests[0])["accept-encoding"] == "identity"
    failed = transport_failure(caught.value, DIFY_API)
    assert (failed.reason, failed.timed_out) == (TransportReason.ENCODED, False)
    assert f"HTTP {status} with a Content-Encoding" in failed.message
    assert "secret" not in failed.message
    assert failed.setting == "DIFY_AGENT_INNER_API_URL"


async def test_the_body_of_a_compressed_answer_is_not_waited_for():
    async def program(peer, stream, _request):
        await stream.send_all(HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
        await peer.until_left(stream)
        return False

    async with connected(program) as (peer, outbound):
        with pytest.raises(EncodedAnswerError), trio.fail_after(5):
            await outbound.models.get(peer.url)
        await peer.until(lambda: peer.left == 1)


async def test_who_asked_calls_it_a_malformed_answer():
    packed = plain(200, BOMB, b"content-encoding: gzip, gzip")
    async with connected(packed) as (peer, outbound):
        model = open_answer(
            outbound.dify_api,
            outbound.dify_api.build_request("POST", peer.url),
            peer=DIFY_API,
            redactor=Redactor([]),
            model_name="m",
            max_line_bytes=1000,
        )
        with pytest.raises(RunFailedError, match="a Content-Encoding") as failed:
            await model.__aenter__()
        assert (failed.value.reason, failed.value.setting) == ("upstream_malformed_answer", DIFY_API.url_setting)
        with pytest.raises(ForeignReplyError, match="a Content-Encoding"):
            await invoke_tool(outbound, tenant_id="t", plugin_id="p", content=b"{}", redactor=Redactor([]))
        with pytest.raises(InnerCallError, match="a Content-Encoding") as refused:
            await post_inner(outbound, "/x", {}, BaseModel)
        assert (refused.value.code, refused.value.setting) == (INVALID_RESPONSE, DIFY_API.url_setting)
        assert not refused.value.interrupted


@pytest.mark.parametrize("header", [b"content-encoding: identity", b"content-encoding:", b"x: gzip"])
async def test_an_answer_that_is_not_encoded(header):
    async with connected(plain(200, b"ok", header)) as (peer, outbound):
        assert await texts(outbound, peer.url, CLIENTS) == ["ok"] * 3


class Turns:
    """How often another task has run."""

    def __init__(self):
        self.taken = 0

    async def count(self):
        while True:
            self.taken += 1
            await trio.lowlevel.checkpoint()


async def test_pieces_that_come_in_one_read_leave_turns_to_others():
    pieces = 5000

    async def program(_peer, stream, _request):
        await stream.send_all(HEAD + http_chunk(b"x") * pieces + END)
        return True

    turns = Turns()
    async with connected(program) as (peer, outbound), trio.open_nursery() as nursery:
        nursery.start_soon(turns.count)
        async with outbound.models.stream("GET", peer.url) as response:
            read, before = 0, turns.taken
            async for piece in response.aiter_raw():
                read += len(piece)
            taken = turns.taken - before
        nursery.cancel_scope.cancel(reason="the test is over")
    assert read == pieces
    assert taken >= pieces // PIECES_PER_TURN


@pytest.mark.parametrize("name", CLIENTS)
async def test_one_read_is_small(name):
    """What the library parses of one read, it parses without a wait: heads, interim answers, ends of chunks."""
    body = b"x" * 1_000_000
    async with connected(plain(200, body)) as (peer, outbound):
        async with getattr(outbound, name).stream("GET", peer.url) as response:
            pieces = [len(piece) async for piece in response.aiter_raw()]
    assert sum(pieces) == len(body)
    assert max(pieces) <= READ_BYTES


async def test_a_body_is_passed_on_as_it_is():
    class Body:
        closed = 0

        async def __aiter__(self):
            for number in range(3 * PIECES_PER_TURN):
                yield b"%d" % number

        async def aclose(self):
            self.closed += 1

    body = Body()
    stream = PacedStream(body)
    assert [piece async for piece in stream] == [b"%d" % number for number in range(3 * PIECES_PER_TURN)]
    await stream.aclose()
    assert body.closed == 1
