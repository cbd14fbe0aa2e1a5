"""Replies of Dify's services, whoever asked: leaving one early, and what an error says."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import httpx2
import structlog
import trio
from pydantic_core import from_json

CLOSE_SECONDS: Final = 2.0
ERROR_BODY_SECONDS: Final = 1.0
"""How long the body of an error is waited for: its status is known, and the run waits for nothing else."""
MAX_ERROR_BYTES: Final = 64 << 10
MAX_ERROR_CHARS: Final = 2000
"""Of a text that a service states an error with: a proxy may answer with a page."""

_WRAPPER: Final = "PluginInvokeError"
_MAX_WRAPPINGS: Final = 16

_log = structlog.get_logger()


class ReplyBody(AsyncIterator[bytes]):
    """The body of a reply piece by piece. Read by one task, and closed by whoever has opened it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response: Final = response
        self._chunks: Final = response.aiter_bytes()

    async def __anext__(self) -> bytes:
        """The next piece.

        Raises:
            httpx2.RequestError: the transport failed.
        """
        try:
            return await anext(self._chunks)
        except httpx2.RequestError:
            # The library closes the reply when its reader is cancelled. What goes wrong there must not take the place
            # of the cancellation.
            await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC120  # discarding the error is what this is for
            raise

    async def read_error(self) -> bytes:
        """The body of an error as far as it is of use in a text: what of its first `MAX_ERROR_BYTES` comes within
        `ERROR_BODY_SECONDS`. The status counts more than a connection that then breaks or falls silent."""
        body = bytearray()
        with suppress(httpx2.RequestError), trio.move_on_after(ERROR_BODY_SECONDS):
            async for chunk in self:
                body += chunk
                if len(body) >= MAX_ERROR_BYTES:
                    break
        return bytes(body[:MAX_ERROR_BYTES])

    async def aclose(self) -> None:
        """Give the connection back, or close it when the reply is not over. Waits at most `CLOSE_SECONDS`.

        Raises nothing of its own: the reply was read as far as its reader wanted, and what the reader raises counts.
        """
        with trio.move_on_after(CLOSE_SECONDS, shield=True) as scope:
            with suppress(Exception):
                await self._response.aclose()
            # Leaving early leaves the library's generators suspended in one another. They end with the error of a
            # closed reply; left to the collector, each would warn.
            with suppress(Exception):
                while True:
                    await anext(self._chunks)
        if scope.cancelled_caught:
            host = self._response.url.host
            _log.warning("connection did not close in time; it is left", host=host, seconds=CLOSE_SECONDS)


def innermost_error(text: object) -> tuple[str, str] | None:
    """Type and message of an error object in JSON text, taken out of the plugin errors that it is wrapped in; None for
    anything else."""
    found = None
    for _ in range(_MAX_WRAPPINGS):
        content = json_object(text)
        if content is None:
            break
        kind, text = content.get("error_type"), content.get("message")
        if not isinstance(kind, str) or not kind:
            break
        found = kind, text if isinstance(text, str) else ""
        if kind != _WRAPPER:
            break
    return found


def json_object(text: object) -> dict[str, Any] | None:
    """The object that is written in ``text``, or None. Nothing longer than the body of an error is read."""
    if not isinstance(text, str | bytes) or len(text) > MAX_ERROR_BYTES:
        return None
    try:
        content = from_json(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
