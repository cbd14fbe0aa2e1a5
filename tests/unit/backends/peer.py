"""A peer on a real socket: answers as its program says, and sees who leaves."""

import select
import socket
import struct
from contextlib import ExitStack, asynccontextmanager, contextmanager

import h11
import trio

from dify_agent.backends.transport import OutboundOptions, open_outbound

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def http_chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Peer:
    """``program`` is called for each request with the peer, the stream and the request's head and body; it returns
    whether the connection can take another request."""

    def __init__(self, program):
        self._program = program
        self.url = ""
        self.requests = []
        self.open = 0
        self.most_open = 0
        self.left = 0
        """Connections that the caller closed while it was owed an answer."""
        self._changed = trio.Event()

    async def until(self, check):
        """Wait until ``check()`` holds of the peer's counts."""
        with trio.fail_after(5):
            while not check():
                await self._changed.wait()

    def _note(self):
        self._changed.set()
        self._changed = trio.Event()

    async def serve_client(self, stream):
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while (request := await _read(stream)) is not None:
                self.requests.append(request)
                if not await self._program(self, stream, request):
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1
            self._note()
            stream.socket.close()

    async def until_left(self, stream):
        """Wait for the caller to close the connection."""
        try:
            data = await stream.receive_some(1)
        except trio.BrokenResourceError:
            data = b""
        assert data == b"", "a second request on an unanswered connection"
        self.left += 1
        self._note()


async def _read(stream):
    http = h11.Connection(h11.SERVER)
    head, body = None, b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.ConnectionClosed):
            return None
    return head, body


def headers(request):
    return {name.decode(): value.decode() for name, value in request[0].headers}


def answering(*pieces, end=True):
    """A program: the pieces in one chunk each, then the end of the body, or none and then wait."""

    async def program(peer, stream, _request):
        await stream.send_all(HEAD + b"".join(map(http_chunk, pieces)))
        if end:
            await stream.send_all(END)
            return True
        await peer.until_left(stream)
        return False

    return program


async def resetting(_peer, stream, _request):
    """A program: half a line, then a reset."""
    await stream.send_all(HEAD + http_chunk(b'data: {"code":0'))
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


async def truncating(_peer, stream, _request):
    """A program: half a line, then the end of the connection without the end of the body."""
    await stream.send_all(HEAD + http_chunk(b'data: {"code":0'))
    return False


async def silent(peer, stream, _request):
    """A program: nothing."""
    await peer.until_left(stream)
    return False


async def foreign(_peer, stream, _request):
    """A program: not HTTP."""
    await stream.send_all(b"220 mail.example ESMTP\r\n\r\n")
    return False


def plain(status, body, *extra):
    """A program: one short answer."""

    async def program(_peer, stream, _request):
        head = [b"HTTP/1.1 %d X" % status, b"content-length: %d" % len(body), *extra]
        await stream.send_all(b"\r\n".join(head) + b"\r\n\r\n" + body)
        return True

    return program


@asynccontextmanager
async def open_peer(program):
    """A listening peer for as long as the block runs."""
    peer = Peer(program)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: trio.serve_tcp(peer.serve_client, 0, host="127.0.0.1", task_status=task_status)
        )
        peer.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield peer
        nursery.cancel_scope.cancel(reason="the test is over")


@asynccontextmanager
async def connected(program, **options):
    """A peer, and the process's clients with it as both services."""
    async with open_peer(program) as peer, clients(peer.url, **options) as outbound:
        yield peer, outbound


def clients(url, **options):
    return open_outbound(
        daemon_url=f"{url}/",
        daemon_api_key="daemon-key",
        dify_api_url=url,
        dify_api_key="inner-key",
        options=OutboundOptions(**options),
    )


def unused_url():
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def unanswered_url():
    """An address where a connect is neither taken nor refused: nobody accepts, and the system's queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as queued:
        while True:
            client = queued.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            if not select.select([], [client], [], 0.1)[1]:  # on loopback one that is taken is so at once
                break
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
