"""The HTTP answer to one model request: its data lines, and what its failures mean."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import trio

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.replies import ReplyBody
from dify_agent.backends.transport import Peer
from dify_agent.model.dify.errors import NoAddressError, answer_too_large, http_error, line_too_long, transport_error
from dify_agent.model.dify.lines import MAX_LINE_BYTES, LineSplitter, LineTooLongError, payload

MAX_READ_BYTES: Final = 256 << 20
"""Of all lines of one answer, beside what each may repeat of the request: for lines that say nothing. What they say has
a bound of its own (`dify_agent.model.dify.parts`), which is met first even with one token, some 800 bytes of this, to a
line."""
_LINE_BYTES: Final = 64
"""Of a line beside its characters: what an empty one costs to look at."""
_LINES_PER_TURN: Final = 128
"""A line costs up to 30 µs, and a read can hold as many lines as bytes."""


class Answer:
    """The data lines of a successful answer. Made by `open_answer`, read by one task."""

    def __init__(
        self, response: httpx2.Response, *, peer: Peer, redactor: Redactor, model_name: str, max_line_bytes: int
    ) -> None:
        self._body: Final = ReplyBody(response)
        self.peer: Final = peer
        self.redactor: Final = redactor
        self._model_name: Final = model_name
        self._max_line_bytes: Final = max_line_bytes
        self._splitter: Final = LineSplitter(max_line_bytes)
        self._lines: deque[bytes] = deque()
        self._repeated_bytes: Final = max(max_line_bytes - MAX_LINE_BYTES, 0)
        self._read_bytes = 0
        self._lines_left = _LINES_PER_TURN
        self._ended = False

    async def next_payload(self) -> bytes | None:
        """The JSON of the next data line; None at the end of the answer.

        Raises:
            ModelHTTPError: the connection failed, or was silent for too long.
            RunFailedError: a line does not end, or the lines do not.
        """
        while True:
            while self._lines:
                if self._lines_left == 0:
                    self._lines_left = _LINES_PER_TURN
                    await trio.lowlevel.checkpoint()
                self._lines_left -= 1
                line = self._lines.popleft()
                self._read_bytes += max(len(line) - self._repeated_bytes, 0) + _LINE_BYTES
                if self._read_bytes > MAX_READ_BYTES:
                    raise answer_too_large(f"{MAX_READ_BYTES} bytes of lines", peer=self.peer)
                if found := payload(line):
                    return found
            if self._ended:
                return None
            await self._read_lines()

    async def read_error(self) -> bytes:
        """The body, as far as it is of use in a text; see `dify_agent.backends.replies`."""
        return await self._body.read_error()

    async def aclose(self) -> None:
        """Give the connection back, or close it when the answer is not over. Bounded; raises nothing."""
        await self._body.aclose()

    async def _read_lines(self) -> None:
        data = await self._read()
        try:
            if data is None:
                self._ended = True
                self._lines.append(self._splitter.finish())
            else:
                self._lines.extend(self._splitter.feed(data))
        except LineTooLongError:
            raise line_too_long(self._max_line_bytes, peer=self.peer) from None

    async def _read(self) -> bytes | None:
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            return None
        except httpx2.RequestError as error:
            raise transport_error(error, peer=self.peer, model_name=self._model_name) from error


@asynccontextmanager
async def open_answer(
    client: httpx2.AsyncClient,
    request: httpx2.Request,
    *,
    peer: Peer,
    redactor: Redactor,
    model_name: str,
    max_line_bytes: int,
) -> AsyncIterator[Answer]:
    """Send ``request``; yields when the head of a successful answer is there. Leaving closes the answer at once.

    Raises:
        ModelHTTPError: the request failed, or was answered with an HTTP error.
        RunFailedError: the HTTP error names a kind that has no status.
        UserError: the address is none.
    """
    try:
        response = await client.send(request, stream=True)
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise NoAddressError(peer) from error
    except httpx2.RequestError as error:
        raise transport_error(error, peer=peer, model_name=model_name) from error
    answer = Answer(response, peer=peer, redactor=redactor, model_name=model_name, max_line_bytes=max_line_bytes)
    try:
        if not response.is_success:
            body = await answer.read_error()
            raise http_error(response.status_code, body, peer=peer, model_name=model_name, redactor=redactor)
        yield answer
    finally:
        await answer.aclose()
