"""One POST to a service of Dify, its reply read as it comes. Never repeated (specification: integrations 1)."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from dify_agent.backends.replies import ReplyBody

MAX_REPLY_VALUES: Final = 100_000
"""Commas and opening brackets outside strings, of one JSON text: parsing and validating so many values takes up to a
tenth of a second, in which nothing else happens."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The head of a reply, and its body piece by piece."""

    status: int
    chunks: ReplyBody

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

    async def read_error(self) -> bytes:
        """The body of an error, as far as it is of use in a text; see `dify_agent.backends.replies`."""
        return await self.chunks.read_error()


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
    read to its end, which is bounded and raises nothing.

    Raises:
        httpx2.RequestError: the transport failed.
        httpx2.InvalidURL: ``url`` is none.
    """
    request = client.build_request(
        "POST", url, content=content, headers={"Content-Type": "application/json", **(headers or {})}
    )
    response = await client.send(request, stream=True)
    chunks = ReplyBody(response)
    try:
        yield Reply(response.status_code, chunks)
    finally:
        await chunks.aclose()
