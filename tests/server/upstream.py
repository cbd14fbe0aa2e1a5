"""A model provider in this process: an endpoint that speaks OpenAI's chat protocol, or stops in the middle of it."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import h11
import trio

SILENT: Final = "silent"
"""Takes the request and never answers."""
STREAMING: Final = "streaming"
"""Sends the head and two pieces of text, and never goes on."""


class Upstream:
    """Counts requests; ``dropped`` is set when the caller gives an unfinished answer up."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.requests: list[dict[str, object]] = []
        self.asked = trio.Event()
        self.dropped = trio.Event()

    async def serve_client(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        body = b""
        try:
            while not isinstance(event := http.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.ConnectionClosed):
                    return
            self.requests.append(json.loads(body))
            self.asked.set()
            await self._answer(http, stream)
        finally:
            stream.socket.close()

    async def _answer(self, http: h11.Connection, stream: trio.SocketStream) -> None:
        if self._how != SILENT:
            head = h11.Response(
                status_code=200, headers=[("content-type", "text/event-stream"), ("connection", "close")]
            )
            await stream.send_all(http.send(head))
            pieces = ["half ", "an "] if self._how == STREAMING else [self._how]
            for piece in pieces:
                await stream.send_all(http.send(h11.Data(data=_chunk(piece))))
        if self._how in (SILENT, STREAMING):
            try:
                gone = await stream.receive_some(1) == b""
            except trio.BrokenResourceError:
                gone = True
            assert gone, "a second request on an unanswered connection"
            self.dropped.set()
            return
        end = _chunk(None) + b"data: [DONE]\n\n"
        await stream.send_all(http.send(h11.Data(data=end)) + http.send(h11.EndOfMessage()))


def _chunk(text: str | None) -> bytes:
    delta = {} if text is None else {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if text is None else None}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-fake", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


class Endpoint:
    """The address of the provider, known before a server starts that must be allowed to call it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.base_url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"

    @asynccontextmanager
    async def answering(self, how: str | Upstream) -> AsyncIterator[Upstream]:
        """Serve while the block runs: `SILENT`, `STREAMING`, a text that is answered as it is, or a provider."""
        upstream = Upstream(how) if isinstance(how, str) else how
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket.dup()))
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, upstream.serve_client, [listener])
            yield upstream
            nursery.cancel_scope.cancel(reason="the test is over")


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Bind a port for as long as the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield Endpoint(sock)
