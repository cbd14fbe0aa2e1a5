"""The HTTP answer to one model request: its data lines, and what its failures mean."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import httpx2
import trio
from pydantic_ai.exceptions import ModelHTTPError, UserError

from dify_agent.model.dify.errors import http_error, line_too_long, transport_error
from dify_agent.model.dify.lines import LineSplitter, LineTooLongError, payload

CLOSE_SECONDS: Final = 2.0
MAX_ERROR_BYTES: Final = 64 * 1024
"""How much of the body of an HTTP error is read."""


class Answer:
    """The data lines of a successful answer. Made by `open_answer`, read by one task."""

    def __init__(self, response: httpx2.Response, *, peer: str, model_name: str, max_line_bytes: int) -> None:
        self._response: Final = response
        self._bytes = response.aiter_bytes()
        self.peer: Final = peer
        self._model_name: Final = model_name
        self._max_line_bytes: Final = max_line_bytes
        self._splitter: Final = LineSplitter(max_line_bytes)
        self._lines: deque[bytes] = deque()
        self._ended = False

    async def next_payload(self) -> bytes | None:
        """The JSON of the next data line; None at the end of the answer.

        Raises:
            ModelHTTPError: the connection failed, or was silent for too long.
            RunFailedError: a line does not end.
        """
        while True:
            while self._lines:
                if found := payload(self._lines.popleft()):
                    return found
            if self._ended:
                return None
            await self._read_lines()

    async def read_error(self) -> bytes:
        """The body, as far as it is of use in a text. The status counts more than a connection that then breaks."""
        body = b""
        with suppress(ModelHTTPError):
            while len(body) < MAX_ERROR_BYTES and (data := await self._read()) is not None:
                body += data
        return body[:MAX_ERROR_BYTES]

    async def aclose(self) -> None:
        """Give the connection back, or close it when the answer is not over. Waits at most `CLOSE_SECONDS`."""
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._response.aclose()
            # The library's generators are still suspended in one another. They end with the error of a closed
            # connection; left to the collector, each would warn.
            with suppress(Exception):
                while True:
                    await anext(self._bytes)

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
            return await anext(self._bytes)
        except StopAsyncIteration:
            return None
        except httpx2.RequestError as error:
            raise transport_error(error, peer=self.peer, model_name=self._model_name) from error


@asynccontextmanager
async def open_answer(
    client: httpx2.AsyncClient, request: httpx2.Request, *, peer: str, model_name: str, max_line_bytes: int
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
        raise UserError(f"the address of {peer} is not an HTTP URL; the model was not asked") from error
    except httpx2.RequestError as error:
        raise transport_error(error, peer=peer, model_name=model_name) from error
    answer = Answer(response, peer=peer, model_name=model_name, max_line_bytes=max_line_bytes)
    try:
        if not response.is_success:
            raise http_error(response.status_code, await answer.read_error(), model_name=model_name)
        yield answer
    finally:
        await answer.aclose()
