"""Server-sent events: a run's log from a cursor to its end (protocol 4.6; decisions D5, R3, R4, R13, R23).

A stream is a response body that pulls the tail: no task and no channel of its own. Each step is a coroutine that
returns, so no cancel scope is ever open across a ``yield``; when the reader leaves, the request's task is cancelled
where it waits, and the run does not notice. (A task and a channel beside the body cost two switches an event and
bought nothing.)
"""

from collections.abc import Iterable, Iterator
from typing import Final, Self

import trio
from quart.wrappers.response import ResponseBody
from quart_trio.wrappers import TrioResponse

from dify_agent.events.envelope import sse_frame
from dify_agent.http.errors import log_unreadable
from dify_agent.metrics import Metrics
from dify_agent.store.base import KeyUnreadableError
from dify_agent.supervisor.handle import Tail, TailBatch

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
KEEPALIVE: Final = b": keepalive\n\n"

PIECE_BYTES: Final = 256 * 1024
"""Of a batch, in one write. Larger writes are no faster, and several copies of each are in memory on its way out."""

_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""A cache or a buffering proxy in between would turn the stream into one late answer."""


def event_stream(tail: Tail, heartbeat_seconds: float, metrics: Metrics) -> TrioResponse:
    """The response that carries ``tail`` to its end, with a comment after every ``heartbeat_seconds`` of silence."""
    response = TrioResponse(TailBody(tail, heartbeat_seconds, metrics), headers=_HEADERS, content_type=EVENT_STREAM)
    response.timeout = None  # the framework's default would end the body after 60 s, without a final chunk
    return response


class TailBody(ResponseBody):
    """Iterates over the pieces to write. Leaving it, however that comes, gives up the tail."""

    def __init__(self, tail: Tail, heartbeat_seconds: float, metrics: Metrics) -> None:
        self._tail = tail
        self._metrics = metrics
        self._heartbeat_seconds = heartbeat_seconds
        self._pieces: Iterator[list[bytes]] = iter(())
        self._ended = False

    async def __aenter__(self) -> Self:
        self._metrics.stream_opened("sse")
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._tail.close()
        self._metrics.stream_closed("sse")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()  # a log that is always ready must not keep the loop from others
        while (piece := next(self._pieces, None)) is None:
            if self._ended:
                raise StopAsyncIteration
            batch: TailBatch | None = None
            with trio.move_on_after(self._heartbeat_seconds):
                try:
                    batch = await self._tail.next()
                except KeyUnreadableError as error:
                    log_unreadable(error)
                    raise StopAsyncIteration from None  # the reader comes again, and is told by the answer
            if batch is None:
                return KEEPALIVE
            self._ended = batch.end is not None
            self._pieces = pieces(encode_batch(batch))
        return b"".join(piece)


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
