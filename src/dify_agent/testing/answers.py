"""An answer, and how it is sent: with pauses, byte by byte, without an end, or into a connection that breaks."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import trio

from dify_agent.http.transport import Connection
from dify_agent.testing.frames import HALF_CHUNK, to_json
from dify_agent.testing.record import Outcome, RecordedRequest
from dify_agent.testing.script import Ending, HttpError, JsonStep, Step, StreamStep

JSON: Final = b"application/json"
HTML: Final = b"text/html; charset=utf-8"
EVENT_STREAM: Final = b"text/event-stream"

Send = Callable[[Any], Awaitable[None]]
"""ASGI's."""

connection_of_task: ContextVar["BreakableConnection"] = ContextVar("connection_of_task")
"""The connection that the current request came by: what ASGI hides, and what a reset needs."""


class BreakableConnection(Connection):
    """A connection of the server that an answer can break off, and one of those that its owner can cut."""

    def __init__(self, *args: Any, open_connections: "set[BreakableConnection]", **options: Any) -> None:
        super().__init__(*args, **options)
        self._open_connections = open_connections

    async def run(self) -> None:
        """As the original; tasks of the app, which are started in here, find the connection in their context."""
        connection_of_task.set(self)
        self._open_connections.add(self)
        try:
            await super().run()
        finally:
            self._open_connections.discard(self)

    @property
    def broken(self) -> bool:
        """Whether it has been closed, for instance because a write has failed."""
        return bool(self._stream.socket.fileno() < 0)

    async def break_off(self, data: bytes, *, reset: bool) -> None:
        """Write ``data`` past HTTP's framing, then close the connection, or reset it."""
        await self._send(data)
        if reset:
            self._cut()
        else:
            self._end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent. Times are seconds."""

    status: int = 200
    content_type: bytes = JSON
    frames: Iterable[bytes]
    first_delay: float = 0.0
    delay: float = 0.0
    """Before each frame."""
    end: Ending = Ending.COMPLETE
    one_byte_packets: bool = False
    frames_per_write: int = 1
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Beside the content type."""


Envelope = Callable[[HttpError], Any]
"""The body that a service gives an error status."""


def json_answer(value: Any, status: int = 200) -> Answer:
    """An answer at once."""
    return Answer(status=status, frames=(to_json(value),))


def step_answer(step: JsonStep, value: Any, envelope: Envelope) -> Answer:
    """The answer of a step that is one JSON value."""
    return _error_answer(step, envelope) or Answer(
        frames=(to_json(value if step.body is None else step.body),),
        first_delay=step.first_delay_ms / 1000,
        end=step.end,
    )


def stream_answer(step: StreamStep, frames: Callable[[], Iterator[bytes]], envelope: Envelope) -> Answer:
    """The answer of a step that is a stream."""
    return _error_answer(step, envelope) or Answer(
        content_type=EVENT_STREAM,
        frames=frames(),
        first_delay=step.first_delay_ms / 1000,
        delay=step.delay_ms / 1000,
        end=step.end,
        one_byte_packets=step.one_byte_packets,
        frames_per_write=step.chunks_per_write,
    )


def _error_answer(step: Step, envelope: Envelope) -> Answer | None:
    error = step.http_error
    if error is None:
        return None
    is_page = error.html is not None
    body = (
        error.html.encode()
        if error.html is not None
        else to_json(envelope(error) if error.body is None else error.body)
    )
    return Answer(
        status=error.status,
        content_type=HTML if is_page else JSON,
        frames=(body,),
        first_delay=step.first_delay_ms / 1000,
        end=step.end,
    )


Finish = Callable[[Outcome], None]
"""Told how an answer ends, just before its last byte: upon that the server says that the client has gone."""


async def send_answer(answer: Answer, request: RecordedRequest, send: Send, finish: Finish) -> None:
    """Send the answer, note its progress in ``request`` and its end by ``finish``.

    A step that hangs does not return: whoever sees the client leave cancels this. So the caller's scope is its bound.
    """
    if answer.first_delay:
        await trio.sleep(answer.first_delay)
    if answer.end is Ending.SILENT:
        await trio.sleep_forever()
    if answer.end is Ending.COMPLETE and isinstance(answer.frames, tuple):
        (body,) = answer.frames
        await _send_head(answer, request, send, ((b"content-length", b"%d" % len(body)),))
        request.sent_bytes = len(body)
        finish(Outcome.ANSWERED)
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return
    await _send_head(answer, request, send, ())
    await _send_frames(answer, request, send)
    if answer.end is Ending.HANG or connection_of_task.get().broken:  # the client has left: whoever sees that cancels
        await trio.sleep_forever()
    elif answer.end is Ending.COMPLETE:
        finish(Outcome.ANSWERED)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        finish(Outcome.CUT)
        await connection_of_task.get().break_off(HALF_CHUNK, reset=answer.end is Ending.RESET)


async def _send_head(
    answer: Answer, request: RecordedRequest, send: Send, more: tuple[tuple[bytes, bytes], ...]
) -> None:
    headers = [(b"content-type", answer.content_type), *answer.headers, *more]
    request.status = answer.status
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})


async def _send_frames(answer: Answer, request: RecordedRequest, send: Send) -> None:
    """A write per packet. Each ends with a checkpoint: a write that the system takes at once has none, and an endless
    stream would never hear that its client has left."""
    for packet in _packets(answer):
        if answer.delay:
            await trio.sleep(answer.delay)
        for piece in _bytes_of(packet) if answer.one_byte_packets else (packet,):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            request.sent_bytes += len(piece)
            await trio.lowlevel.checkpoint()


def _packets(answer: Answer) -> Iterator[bytes]:
    frames = iter(answer.frames)
    if answer.frames_per_write == 1:
        return frames
    # Not until a packet is empty: frames may be.
    return map(b"".join, iter(lambda: tuple(islice(frames, answer.frames_per_write)), ()))


def _bytes_of(packet: bytes) -> Iterator[bytes]:
    return (packet[place : place + 1] for place in range(len(packet)))
