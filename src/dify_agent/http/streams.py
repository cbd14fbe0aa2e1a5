"""Server-sent events: a run's log from a cursor to its end (protocol 4.6; decisions D5, R3, R4, R13, R23).

A stream is a task that reads the tail and writes to a channel, and a response body that only reads the channel. So no
cancel scope is ever open across a ``yield``, and everything ends with the request's nursery: when the reader leaves,
the task is cancelled where it waits, and the run does not notice.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final, Self

import trio
from quart.wrappers.response import ResponseBody
from quart_trio.wrappers import TrioResponse

from dify_agent.concurrency.channels import STREAM_SIZE
from dify_agent.events.envelope import sse_frame
from dify_agent.supervisor.handle import Tail, TailBatch

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
KEEPALIVE: Final = b": keepalive\n\n"

PIECE_BYTES: Final = 256 * 1024
"""Of a batch, in one write. Larger writes are no faster, and several copies of each are in memory on its way out."""

_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""A cache or a buffering proxy in between would turn the stream into one late answer."""


class EventStream(TrioResponse):
    """A response with a task of its own: whoever sends the body runs `pump` beside it (``http.connection``)."""

    pump: Callable[[], Awaitable[None]]


def event_stream(tail: Tail, heartbeat_seconds: float) -> EventStream:
    """The response that carries ``tail`` to its end, with a comment after every ``heartbeat_seconds`` of silence."""
    send, receive = trio.open_memory_channel[bytes](STREAM_SIZE)

    async def pump() -> None:
        await _pump(tail, send, heartbeat_seconds)
        send.close()  # not after a fault: the body must not look complete then, and the fault cancels it

    response = EventStream(_ChannelBody(receive), headers=_HEADERS, content_type=EVENT_STREAM)
    response.timeout = None  # the framework's default would end the body after 60 s, without a final chunk
    response.pump = pump
    return response


class _ChannelBody(ResponseBody):
    """A response body that reads a channel, and closes its end when it is no longer sent."""

    def __init__(self, receive: trio.MemoryReceiveChannel[bytes]) -> None:
        self._receive = receive

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._receive.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._receive)


async def _pump(tail: Tail, send: trio.MemorySendChannel[bytes], heartbeat_seconds: float) -> None:
    """Write what the tail hands out until it ends. A reader that has gone (`BrokenResourceError`) is a normal end."""
    try:
        while True:
            batch: TailBatch | None = None
            with trio.move_on_after(heartbeat_seconds):
                batch = await tail.next()
            if batch is None:
                await send.send(KEEPALIVE)
                continue
            for piece in pieces(encode_batch(batch)):
                await send.send(b"".join(piece))
            if batch.end is not None:
                return
    except trio.BrokenResourceError:
        return
    finally:
        tail.close()


def encode_batch(batch: TailBatch) -> Iterator[bytes]:
    """The frames of a batch, made as they are taken; the notice of missing events comes first."""
    if batch.trimmed:
        yield b": trimmed %d\n\n" % batch.trimmed
    for event in batch.events:
        yield sse_frame(str(event.id), event.type, event.payload)


def pieces(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Frames grouped for one write each: as many as have `PIECE_BYTES` together; a larger one is alone.

    So events that are ready together leave together, and a stream holds no copy of a long batch.
    """
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        if piece and size + len(frame) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(frame)
        size += len(frame)
    if piece:
        yield piece
