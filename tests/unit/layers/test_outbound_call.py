"""Replies of which only the status arrives in time."""

import httpx2
import pytest
import trio

from dify_agent.backends.replies import ERROR_BODY_SECONDS, MAX_ERROR_BYTES
from dify_agent.layers.outbound_call import posted


class Body(httpx2.AsyncByteStream):
    """Says something, then does this: breaks off, or waits for so many seconds before each further byte."""

    def __init__(self, then: Exception | float) -> None:
        self._then = then
        self.closed = False

    async def __aiter__(self):
        yield b"half"
        while True:
            if isinstance(self._then, Exception):
                raise self._then
            await trio.sleep(self._then)
            yield b"."

    async def aclose(self) -> None:
        self.closed = True


def client(body: httpx2.AsyncByteStream) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(500, stream=body)))


@pytest.mark.parametrize(
    ("then", "text", "seconds"),
    [
        (3600.0, b"half", ERROR_BODY_SECONDS),
        (0.3, b"half...", ERROR_BODY_SECONDS),
        (httpx2.ReadError("reset"), b"half", 0.0),
        (httpx2.ReadTimeout("silent"), b"half", 0.0),
    ],
)
async def test_the_status_counts_more_than_the_rest_of_an_error(autojump_clock, then, text, seconds) -> None:
    body = Body(then)
    began = trio.current_time()
    async with posted(client(body), "http://dify.test/", b"{}") as reply:
        assert await reply.read_error() == text
        assert trio.current_time() - began == pytest.approx(seconds)
    assert (reply.status, reply.is_success, body.closed) == (500, False, True)


async def test_a_long_error_is_cut() -> None:
    class Long(Body):
        async def __aiter__(self):
            while True:
                await trio.lowlevel.checkpoint()
                yield b"x" * 10_000

    async with posted(client(Long(0.0)), "http://dify.test/", b"{}") as reply:
        assert await reply.read_error() == b"x" * MAX_ERROR_BYTES
