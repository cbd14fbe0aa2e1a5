"""One client connection: hypercorn's HTTP/1.1 protocol engine on a Trio socket, with a bound on every wait.

hypercorn brings a connection class of its own (``hypercorn.trio.tcp_server``). This one replaces it because that one

- shields each write without a limit, so a reader that stalls outlives every cancel scope and keeps the process from
  ending
  (measured with 0.18: still running 40 s after a 1 s grace);
- closes with an ``await`` that a cancelled connection never gets past (pgjones/hypercorn#106);
- closes at once after refusing a body that is still arriving, upon which the kernel resets the connection and the
  client
  may never see the answer.

Everything about HTTP itself stays hypercorn's.
"""

import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from math import inf
from typing import Any, Final, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.trio.task_group import TaskGroup, _handle
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, ConnectionState, H11SendableEvent, Scope
from hypercorn.utils import parse_socket_addr

from dify_agent.http.errors import JSON, error_body
from dify_agent.http.websocket_stream import WebSocketStream

logger = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 * 1024
SEND_BYTES: Final = 64 * 1024
"""The stall clock starts anew with each piece of this size: a slow reader is no stalled reader."""

HEADER_SECONDS: Final = 15.0
"""From the first byte of a request to the last of its headers."""

LINGER_SECONDS: Final = 2.0
"""How long the rest of a refused body is read and dropped, so that the client reads the refusal instead of a reset;
and how long a closed WebSocket waits for the client's answer."""

STOPPING_LINGER_SECONDS: Final = 0.5
"""The same once the server stops."""

ACKNOWLEDGE_SECONDS: Final = 14.0
"""Just under a heartbeat: a live peer's system acknowledges a heartbeat at once, long before the next one is due."""
_TCP_INFO_BYTES: Final = 60

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Connection:
    """Serves the requests of one client, in order, until either side ends.

    Owns the nursery in which hypercorn runs the app, one task per request. Nothing that happens in it travels further
    than `run`.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream,
        *,
        stall_seconds: float,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._send_lock = trio.Lock()
        self._sending: trio.CancelScope | None = None
        self._sent_at = inf
        self._reading: trio.CancelScope | None = None
        self._read_deadline = inf
        self._write_deadline = inf
        self._idle = True
        self._lingering = False
        self._protocol: _Http11

    async def run(self) -> None:
        """Serve until the connection is over. A fault ends this connection, is logged, and stops there."""
        try:
            await self._serve()
        except* OSError:
            pass
        except* Exception as group:
            logger.error("a connection failed", exc_info=group)
        finally:
            self._stream.socket.close()

    def stop(self, stall_seconds: float, graceful_seconds: float) -> None:
        """The server stops: end now if no request is in progress, and give a stalled reader ``stall_seconds`` more.

        A reader that is only slow is cut after ``graceful_seconds``. Writes are shielded piece by piece, so without
        this bound it would hold the server for as long as its backlog lasts.
        """
        self._stall_seconds = stall_seconds
        self._write_deadline = trio.current_time() + graceful_seconds
        if self._idle:
            self._stop_reading()
        elif self._lingering:
            self._move_read_deadline(min(self._read_deadline, trio.current_time() + STOPPING_LINGER_SECONDS))
        if self._sending is not None:
            self._sending.deadline = min(
                self._sending.deadline, trio.current_time() + stall_seconds, self._write_deadline
            )
        set_user_timeout(self._stream.socket, stall_seconds)

    async def _serve(self) -> None:
        sock = self._stream.socket
        client = parse_socket_addr(sock.family, sock.getpeername())
        server = parse_socket_addr(sock.family, sock.getsockname())
        async with trio.open_nursery() as nursery:
            self._protocol = _Http11(
                self._app,
                self._config,
                self._context,
                _NurseryTaskGroup(nursery),
                ConnectionState({}),
                False,
                client,
                server,
                self._handle,
            )
            self._read_deadline = trio.current_time() + self._config.keep_alive_timeout
            await self._read_requests()

    async def _read_requests(self) -> None:
        """Feed the protocol until end of file, a deadline or `_stop_reading`; then tell it that the client has gone."""
        data = b"-"
        while data:
            with trio.CancelScope(deadline=self._read_deadline) as self._reading:
                try:
                    data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
            if self._reading.cancelled_caught:
                break
            if not self._lingering:
                was_idle = self._idle
                await self._protocol.handle(RawData(data))
                if was_idle and self._idle:
                    self._move_read_deadline(min(self._read_deadline, trio.current_time() + HEADER_SECONDS))
        await self._protocol.handle(Closed())

    async def _handle(self, event: Event) -> None:
        """What the protocol asks for."""
        if isinstance(event, RawData):
            if event.data:
                await self._send(event.data)
        elif isinstance(event, Updated):
            self._idle = event.idle
            self._move_read_deadline(trio.current_time() + self._config.keep_alive_timeout if event.idle else inf)
        elif isinstance(event, Closed):
            self._end()

    async def _send(self, data: bytes) -> None:
        """Write in pieces, each within the stall bound; cut the connection when it is spent.

        Shielded from the first step: the protocol counts these bytes as sent, so a cancelled write would leave a
        connection that says one thing and believes another (a lost last chunk on a connection kept alive).
        """
        if await self._take_turn():
            try:
                if not self._peer_vanished() and await self._send_pieces(memoryview(data)):
                    self._sent_at = trio.current_time()
                    return
            finally:
                self._send_lock.release()
        self._cut()
        await self._protocol.handle(Closed())

    def _peer_vanished(self) -> bool:
        """Whether what was last sent, a heartbeat ago, is still unacknowledged, and nothing was heard since.

        A peer that only pauses acknowledges until its window is full, and what does not fit is not sent. So this finds
        a peer that is gone within two heartbeats, without the user timeout cutting those that pause.
        """
        if trio.current_time() - self._sent_at < ACKNOWLEDGE_SECONDS:
            return False
        unacknowledged, heard_seconds_ago = tcp_progress(self._stream.socket)
        gone = unacknowledged > 0 and heard_seconds_ago >= ACKNOWLEDGE_SECONDS
        if gone:
            logger.info("a reader has vanished: what was sent is not acknowledged, its connection is cut")
        return gone

    async def _take_turn(self) -> bool:
        """Take the lock of the socket; False when another write kept it for the stall bound."""
        try:
            self._send_lock.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(self._stall_seconds, shield=True) as waiting:
                await self._send_lock.acquire()
            return not waiting.cancelled_caught
        return True

    async def _send_pieces(self, view: memoryview) -> bool:
        """Whether all of ``view`` went out."""
        try:
            view = view[self._send_now(view) :]
        except OSError:
            return False
        for start in range(0, len(view), SEND_BYTES):
            try:
                with trio.move_on_after(self._stall_seconds, shield=True) as self._sending:
                    self._sending.deadline = min(self._sending.deadline, self._write_deadline)
                    await self._stream.send_all(view[start : start + SEND_BYTES])
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            if self._sending.cancelled_caught:
                logger.info("a reader stalled, or was too slow for the stop of the server: its connection is cut")
                return False
        return True

    def _send_now(self, view: memoryview) -> int:
        """Bytes that the system took at once: nearly always all of them, and then no scope and no wait is needed.

        Measured: 110 µs an event through ``send_all`` and its scope, 80 µs this way.
        """
        try:
            return os.write(self._stream.socket.fileno(), view)
        except BlockingIOError:
            return 0

    def _end(self) -> None:
        """No further byte will be sent. Close, or first drop what is left of a request that was answered early."""
        with suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_WR)
        if self._protocol.request_unfinished:
            self._lingering = True
            stopping = self._context.terminated.is_set()
            self._move_read_deadline(trio.current_time() + (STOPPING_LINGER_SECONDS if stopping else LINGER_SECONDS))
        else:
            self._stop_reading()

    def _cut(self) -> None:
        """Close so that the client sees a reset, not an end that looks regular."""
        with suppress(OSError, trio.ClosedResourceError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._stream.socket.close()
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._move_read_deadline(-inf)

    def _move_read_deadline(self, deadline: float) -> None:
        self._read_deadline = deadline
        if self._reading is not None:
            self._reading.deadline = deadline


class _NurseryTaskGroup(TaskGroup):
    """hypercorn's task group over a nursery that its owner opened and closes."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = self._owned_nursery = nursery

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Run the app; what is still handed to it after it has ended is dropped.

        hypercorn's own would wait for it to be taken: a client that goes on sending then keeps its connection for ever.
        """
        put, take = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)

        async def run(*args: Any) -> None:
            with take:
                await app(*args)

        async def offer(event: ASGIReceiveEvent) -> None:
            with suppress(trio.BrokenResourceError):
                await put.send(event)

        arguments: Any = (run, config, scope, take.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
        self._owned_nursery.start_soon(_handle, *arguments)
        return offer


class _Http11(H11Protocol):
    """HTTP/1.1 and nothing else, with JSON bodies for requests that cannot be read."""

    _websocket: WebSocketStream | None = None
    _held = b""

    @property
    def request_unfinished(self) -> bool:
        """Whether the client may still be sending: parts of its request, or frames."""
        if self._websocket is not None:
            return not self._websocket.peer_closed
        return self.connection.their_state is h11.SEND_BODY

    async def _create_stream(self, request: h11.Request) -> None:
        """As the original, with this server's WebSockets."""
        if not _is_upgrade(request):
            await super()._create_stream(request)
            return
        self.stream = self._websocket = WebSocketStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.connection = H11WSConnection(cast(h11.Connection, self.connection))
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method="GET",
                raw_path=request.target,
                state=self.connection_state,
            )
        )

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore offers of HTTP/2, as a server may (RFC 9110, 7.8): there, disconnects go unnoticed (hypercorn#210)."""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """As the original, but a head whose body is at hand waits for it, so that both leave in one write."""
        try:
            data = self._held + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        self._held = data if isinstance(event, h11.Response) and _has_length(event) else b""
        if not self._held:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        status = HTTPStatus(status_code)
        body = error_body(status.phrase)
        headers = [
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        every = list(chain(headers, self.config.response_headers("h11")))
        await self._send_h11_event(h11.Response(status_code=status_code, headers=every))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _has_length(response: h11.Response) -> bool:
    """Whether the body is as long as the head says: then it follows at once. A stream's head must not wait for it."""
    return any(name == b"content-length" for name, _ in response.headers)


def _is_upgrade(request: h11.Request) -> bool:
    """Whether a request asks to become a WebSocket."""
    fields: dict[bytes, list[bytes]] = {b"connection": [], b"upgrade": []}
    for name, value in request.headers:
        if name in fields:
            fields[name] += (token.strip().lower() for token in value.split(b","))
    return request.method == b"GET" and b"upgrade" in fields[b"connection"] and fields[b"upgrade"] == [b"websocket"]


def tcp_progress(sock: trio.socket.SocketType) -> tuple[int, float]:
    """Segments and window probes sent and not acknowledged, and seconds since the peer's last acknowledgement.

    (0, 0) where the system does not say. Linux does: ``struct tcp_info``, fields ``tcpi_probes``, ``tcpi_unacked`` and
    ``tcpi_last_ack_recv``.
    """
    if sys.platform != "linux":
        return 0, 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0, 0.0
    (unacknowledged,) = struct.unpack_from("=I", info, 24)
    (milliseconds,) = struct.unpack_from("=I", info, 56)
    return unacknowledged + info[3], milliseconds / 1000


def set_user_timeout(sock: "socket.socket | trio.socket.SocketType", seconds: float) -> None:
    """Let the kernel drop a peer that acknowledges nothing for ``seconds``. Linux has the option; elsewhere only the
    stall bound of `Connection` works, which does not notice a peer that is gone while nothing is being sent."""
    if sys.platform == "linux":
        with suppress(OSError, trio.ClosedResourceError):
            cast(socket.socket, sock).setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
