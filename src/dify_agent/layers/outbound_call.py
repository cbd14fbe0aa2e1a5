"""One POST to a service of Dify, its reply read as it comes. Never repeated (specification: integrations 1)."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import trio

CLOSE_SECONDS: Final = 2.0
MAX_ERROR_CHARS: Final = 2000
"""Of a text that a service states an error with: a proxy may answer with a page."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The head of a reply, and its body piece by piece, decompressed."""

    status: int
    chunks: AsyncIterator[bytes]

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return httpx2.codes.is_success(self.status)

    async def read(self, max_bytes: int) -> bytes:
        """The body, or so much of it that it is longer than ``max_bytes``.

        Raises:
            httpx2.RequestError: the transport failed.
        """
        body = bytearray()
        async for chunk in self.chunks:
            body += chunk
            if len(body) > max_bytes:
                break
        return bytes(body)


def json_bytes(value: Any) -> bytes:
    """``value`` as compact JSON in UTF-8.

    Raises:
        ValueError: it has a number or a text that JSON cannot hold (NaN, an infinity, a lone surrogate).
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@asynccontextmanager
async def posted(
    client: httpx2.AsyncClient, url: str, content: bytes, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Reply]:
    """Send ``content``, which is JSON; yields when the head of the reply is there. Leaving closes a reply that was not
    read to its end, and waits for that at most `CLOSE_SECONDS`.

    Raises:
        httpx2.RequestError: the transport failed.
        httpx2.InvalidURL: ``url`` is none.
    """
    request = client.build_request(
        "POST", url, content=content, headers={"Content-Type": "application/json", **(headers or {})}
    )
    response = await client.send(request, stream=True)
    chunks = response.aiter_bytes()
    try:
        yield Reply(response.status_code, chunks)
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await response.aclose()
            # Leaving early leaves the library's generators suspended in one another. They end with the error of a
            # closed reply; left to the collector, each would warn.
            with suppress(Exception):
                while True:
                    await anext(chunks)
