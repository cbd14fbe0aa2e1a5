"""The server's side of one WebSocket: hypercorn's stream with the closing, pinging and bounds this server needs.

What hypercorn 0.18 does instead, read in ``hypercorn.protocol.ws_stream``:

- its pings (``websocket_ping_interval``) never look for an answer, and the task that sends them sleeps on for an
  interval after the connection has ended, which a shutdown then waits for;
- a message that is too big is refused, and then kept growing in memory for as long as the peer goes on;
- invalid UTF-8 and other violations end the connection without a close frame;
- bytes that arrive before the answer to the handshake get a 400, after which the connection is neither closed nor
  read; after a refusal they are an error in the server's log;
- a message sent after the close is an exception in the app (pgjones/hypercorn#177);
- compression is accepted from everyone.
"""

from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, cast

import trio
from hypercorn.protocol.events import Body, Data, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.typing import ASGISendEvent, WebsocketAcceptEvent
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Ping, Pong, TextMessage
from wsproto.events import Event as FrameEvent
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from dify_agent.http.errors import JSON, error_body
from dify_agent.http.websocket_frames import VERSION, InboundPolicy, handshake_refusal, text_frame

PATIENCE_PINGS: Final = 3
"""A peer that answers no ping for so many intervals is closed."""

FRAMES_PER_CHECKPOINT: Final = 64
"""A segment of 64 KiB may hold 11,000 frames, which cost a tenth of a second: other tasks get their turn in between."""

_REASONS: Final = {
    CloseReason.MESSAGE_TOO_BIG: "a message may have 64 KiB",
    CloseReason.INVALID_FRAME_PAYLOAD_DATA: "text must be UTF-8",
    CloseReason.UNSUPPORTED_DATA: "only text is understood",
}


class WebSocketStream(WSStream):
    """One WebSocket, from its handshake to its closing frame. Lives in the nursery of its connection.

    Besides ASGI's messages it takes ``websocket.send`` with ``texts``, a tuple of UTF-8 bytes: so many text frames in
    one write. What is sent after the close is dropped.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer_closed = False
        """Whether the client has said that it sends no more."""
        self._decided = trio.Event()
        self._writing = trio.Lock()
        self._handing_over = False
        self._owed_pong: Pong | None = None
        self._patience = trio.CancelScope()

    async def handle(self, event: Event) -> None:
        """Take what arrives. Frames wait for the answer to the handshake, ahead of which no client should send any."""
        if self.closed:
            return
        if isinstance(event, Request):
            await self._handle_request(event)
        elif isinstance(event, (Body, Data)):
            await self._decided.wait()
            if self.state is ASGIWebsocketState.CONNECTED and not self.closed:
                await self._receive(event.data)
        elif isinstance(event, StreamClosed):
            self.closed = True
            self._decided.set()
            self._patience.cancel(reason="the WebSocket has ended")
            if self.app_put is not None:
                await self.app_put({"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE.value})

    async def app_send(self, message: ASGISendEvent | None) -> None:
        """Carry out what the app wants; nothing once the client has gone or the close frame is out."""
        if self.closed:
            return
        if message is None or self.state is ASGIWebsocketState.HANDSHAKE:
            await super().app_send(message)
        elif message["type"] == "websocket.send":
            await self._write_texts(cast(Any, message)["texts"])
        elif message["type"] == "websocket.close":
            self.state = ASGIWebsocketState.CLOSED
            await self._send_wsproto_event(CloseConnection(code=message["code"], reason=message.get("reason")))
        elif self.state is ASGIWebsocketState.RESPONSE:
            await super().app_send(message)
        if self.state is not ASGIWebsocketState.HANDSHAKE:
            self._decided.set()

    async def _handle_request(self, event: Request) -> None:
        refusal = handshake_refusal(event.headers, event.http_version)
        if refusal is None:
            await super().handle(event)
        else:
            await self._refuse(*refusal)
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _accept(self, message: WebsocketAcceptEvent) -> None:
        self.state = ASGIWebsocketState.CONNECTED
        headers = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", generate_accept_token(cast(bytes, self.handshake.key))),
        ]
        if (subprotocol := message.get("subprotocol")) is not None:
            headers.append((b"sec-websocket-protocol", subprotocol.encode()))
        self.connection = Connection(ConnectionType.SERVER, [InboundPolicy(self.config.websocket_max_message_size)])
        await self.send(Response(stream_id=self.stream_id, status_code=101, headers=headers))
        if self.config.websocket_ping_interval is not None:
            self.task_group.spawn(self._watch_peer, self.config.websocket_ping_interval)

    async def _send_error_response(self, status_code: int) -> None:
        await self._refuse(status_code, HTTPStatus(status_code).phrase)

    async def _refuse(self, status: int, detail: str) -> None:
        """Answer the handshake with a JSON error; the connection ends after it."""
        body = error_body(detail)
        headers = [
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if status == HTTPStatus.UPGRADE_REQUIRED:
            headers.append((b"sec-websocket-version", VERSION))
        self.state = ASGIWebsocketState.HTTPCLOSED
        await self.send(Response(stream_id=self.stream_id, status_code=status, headers=headers))
        await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))

    async def _receive(self, data: bytes) -> None:
        with suppress(LocalProtocolError):
            self.connection.receive_data(data)
        for number, event in enumerate(self.connection.events(), 1):
            if number % FRAMES_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
            if self.closed:
                return
            if isinstance(event, TextMessage):
                await self._receive_text(event)
            elif isinstance(event, Ping):
                await self._answer_ping(event)
            elif isinstance(event, Pong):
                self._be_patient()
            elif isinstance(event, CloseConnection):
                await self._receive_close(event)

    async def _receive_text(self, event: TextMessage) -> None:
        """Hand a complete message to the app; wait while the app is busy, and with that stop reading."""
        self.buffer.extend(event)
        if event.message_finished:
            message = self.buffer.to_message()
            self.buffer.clear()
            if self.app_put is not None:
                self._handing_over = True
                await self.app_put(cast(Any, message))
                self._handing_over = False

    async def _answer_ping(self, ping: Ping) -> None:
        """Only the newest ping is owed an answer (RFC 6455, 5.5.3), so reading goes on while a write is in progress."""
        self._owed_pong = ping.response()
        if not self._writing.locked():
            await self._write(bytes)

    async def _receive_close(self, event: CloseConnection) -> None:
        """The client closes, answers our close, or has violated the protocol (wsproto then names the code to send)."""
        if self.connection.state is ConnectionState.OPEN:
            code = CloseReason(event.code)
            await self._end(CloseConnection(code=code, reason=_REASONS.get(code, "protocol error")))
        else:
            self.peer_closed = True
            await self._end(event.response())

    async def _end(self, goodbye: CloseConnection) -> None:
        await self._send_wsproto_event(goodbye)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _watch_peer(self, interval: float) -> None:
        """Ping every ``interval`` seconds; end the connection when the peer's patience scope runs out."""
        self._be_patient()
        with self._patience:
            while True:
                await trio.sleep(interval)
                if self._writing.locked() or self._handing_over:
                    # A ping would queue up behind this write, whose reader the stall bound watches; and nothing is read
                    # while the app is busy with a message.
                    self._be_patient()
                else:
                    await self._send_wsproto_event(Ping())
        if not self.closed:
            await self._end(CloseConnection(code=CloseReason.PROTOCOL_ERROR, reason="pings were not answered"))

    def _be_patient(self) -> None:
        """The peer has given a sign of life."""
        interval = self.config.websocket_ping_interval
        if interval is not None:
            self._patience.deadline = trio.current_time() + PATIENCE_PINGS * interval

    async def _send_wsproto_event(self, event: FrameEvent) -> None:
        await self._write(lambda: self.connection.send(event))

    async def _write_texts(self, texts: tuple[bytes, ...]) -> None:
        def frames() -> bytes:
            is_open = self.connection.state is ConnectionState.OPEN
            return b"".join([text_frame(text) for text in texts]) if is_open else b""

        await self._write(frames)

    async def _write(self, serialize: Callable[[], bytes]) -> None:
        """Send one piece, then the pong that became due meanwhile. Serialised under the lock, because that is where
        the order of frames, and with it what may still follow, is decided."""
        async with self._writing:
            await self._write_now(serialize)
            while (pong := self._owed_pong) is not None:
                self._owed_pong = None
                await self._write_now(lambda pong=pong: self.connection.send(pong))  # type: ignore[misc]

    async def _write_now(self, serialize: Callable[[], bytes]) -> None:
        if self.closed:
            return
        with suppress(LocalProtocolError):
            data = serialize()
            if data:
                await self.send(Data(stream_id=self.stream_id, data=bytes(data)))
