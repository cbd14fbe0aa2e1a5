"""A service on a real socket that answers with whatever bytes a test gives it, at full speed."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from typing import Any, Final

import h11
import trio
from tests.server.harness import BOUND_SECONDS, Server

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED: Final = HEAD + b"transfer-encoding: chunked\r\n\r\n"
USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Upstream:
    """Answers each request with the bytes under the first word that stands in its path or body."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.connections = 0
        self.port = 0

    @property
    def settings(self) -> dict[str, Any]:
        """It is both services of Dify."""
        url = f"http://127.0.0.1:{self.port}"
        return {"inner_api_url": url, "inner_api_key": "a", "plugin_daemon_url": url, "plugin_daemon_api_key": "b"}

    def answer(self, request: bytes) -> bytes:
        return next(answer for word, answer in self.answers.items() if word.encode() in request)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        http, request = h11.Connection(h11.SERVER), bytearray()
        with suppress(trio.BrokenResourceError):
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(1 << 16))
                elif isinstance(event, h11.Request):
                    request += event.target
                elif isinstance(event, h11.Data):
                    request += event.data
                elif isinstance(event, h11.EndOfMessage):
                    await stream.send_all(self.answer(bytes(request)))
                    http, request = h11.Connection(h11.SERVER), bytearray()
                else:
                    return


@contextmanager
def hostile_upstream() -> Iterator[Upstream]:
    """In a thread of its own, whatever the test's does meanwhile."""
    upstream = Upstream()
    started, scope = threading.Event(), trio.CancelScope()

    async def listen() -> None:
        with scope:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            upstream.port = listener.socket.getsockname()[1]
            tokens.append(trio.lowlevel.current_trio_token())
            started.set()
            await trio.serve_listeners(upstream.serve, [listener])

    tokens: list[trio.lowlevel.TrioToken] = []
    thread = threading.Thread(target=trio.run, args=(listen,))
    thread.start()
    try:
        assert started.wait(BOUND_SECONDS)
        yield upstream
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join()


def answered(body: bytes, *headers: bytes) -> bytes:
    """A whole answer."""
    length = b"content-length: %d\r\n" % len(body)
    return HEAD + length + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def chunk(message: dict[str, Any], **delta: Any) -> bytes:
    """A line of a model's answer."""
    data = {"delta": {"message": message, **delta}}
    return b"data: " + json.dumps({"code": 0, "message": "", "data": data}).encode() + b"\n\n"


def model_says(text: str) -> bytes:
    return chunk({"content": text}) + chunk({"content": ""}, finish_reason="stop", usage=USAGE)


def model_calls(tool: str, **arguments: str) -> bytes:
    """An answer that calls a tool."""
    function = {"name": tool, "arguments": json.dumps({"query": "a", **arguments})}
    calls = [{"id": "call-1", "type": "function", "function": function}]
    return chunk({"content": "", "tool_calls": calls}, finish_reason="tool_calls", usage=USAGE)


def tool_says(text: str) -> bytes:
    """A line of a plugin tool's reply."""
    item = {"code": 0, "message": "", "data": {"type": "text", "message": {"text": text}}}
    return b"data: " + json.dumps(item).encode() + b"\n"


class Stalls:
    """How long a server lets `/healthz` wait. Made by `watched`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self.asked = 0
        self.longest = 0.0
        """Seconds."""

    def poll(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=BOUND_SECONDS)
        while not self._over.wait(0.01):
            began = time.monotonic()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            self.longest = max(self.longest, time.monotonic() - began)
            self.asked += 1
        connection.close()

    def stop(self) -> None:
        self._over.set()


@contextmanager
def watched(server: Server) -> Iterator[Stalls]:
    """Poll for as long as the block runs."""
    stalls = Stalls(server.port)
    thread = threading.Thread(target=stalls.poll)
    thread.start()
    try:
        yield stalls
    finally:
        stalls.stop()
        thread.join()
