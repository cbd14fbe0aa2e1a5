"""The connections of the outbound clients, none of which a peer can use to answer another request than it was asked.

One pool serves all tenants and all services. Whatever its answers are, a peer must neither leave something behind for
the next request on its connection nor hold the loop.
"""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import httpcore2
import httpx2
import trio

CLOSE_SECONDS: Final = 2.0
READ_BYTES: Final = 16 << 10
"""Of one read. Nothing else has a turn while a head, and interim answers (1xx) before it, are parsed out of one, up to
1 µs a byte. The library's own choice is four times as much."""
PIECES_PER_TURN: Final = 32
"""A piece costs some 40 µs whatever its size; a read holds up to 2,700 of them."""
NOT_ENCODED: Final = {"Accept-Encoding": "identity"}
"""What every request must say: a compressed answer is refused."""


class EncodedAnswerError(httpx2.DecodingError):
    """The answer has a ``Content-Encoding``. Nothing of its body was read."""

    def __init__(self, status: int, request: httpx2.Request) -> None:
        super().__init__(f"HTTP {status} with a Content-Encoding", request=request)
        self.status: Final = status


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """HTTP/1.1 on a pool of its own, without a proxy. Closing it closes the connections."""

    def __init__(self, limits: httpx2.Limits) -> None:
        """Take the bounds of the pool. Certificate authorities are those that the environment names, if it does."""
        # Not the base class's: it would make a pool that nobody guards.
        self._pool = GuardedPool(
            ssl_context=httpx2.create_ssl_context(trust_env=True),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            http1=True,
            http2=False,
            network_backend=SmallReads(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The head of the answer, its body to be read piece by piece.

        Raises:
            EncodedAnswerError: it is compressed. Some hundred bytes can stand for gigabytes, and decoding does not
                wait.
            httpx2.RequestError: the transport failed.
        """
        response = await super().handle_async_request(request)
        if _is_encoded(response.headers):
            with trio.move_on_after(CLOSE_SECONDS, shield=True), suppress(Exception):
                await response.aclose()
            raise EncodedAnswerError(response.status_code, request)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = PacedStream(response.stream)
        return response


class GuardedPool(httpcore2.AsyncConnectionPool):
    """Connections straight to their origins, each a `GuardedConnection`."""

    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.AsyncConnectionInterface:
        """A connection that has yet to be made."""
        return GuardedConnection(
            origin=origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=self._keepalive_expiry,
            network_backend=self._network_backend,
        )


class GuardedConnection(httpcore2.AsyncHTTPConnection):
    """Takes no request while it holds what the peer has sent beyond the end of its last answer.

    That would be taken for the next answer, whoever asks then. The library looks at the socket only, which is empty
    when those bytes came along with the answer. Bytes that come after the next request has left are past telling.
    """

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send the request.

        Raises:
            ConnectionNotAvailable: the peer has closed or spoken since the pool looked; nothing was sent, and the pool
                takes another connection.
        """
        if self.is_idle() and self.has_expired():
            raise httpcore2.ConnectionNotAvailable
        return await super().handle_async_request(request)

    def has_expired(self) -> bool:
        """Whether the pool must close it. Asked whenever a request comes or an answer is over."""
        return super().has_expired() or (self.is_idle() and self._holds_more())

    def _holds_more(self) -> bool:
        connection = self._connection
        if not isinstance(connection, httpcore2.AsyncHTTP11Connection):
            return False
        unparsed, _ = connection._h11_state.trailing_data
        return bool(unparsed) or _has_record(connection._network_stream.get_extra_info("ssl_object"))


def _has_record(tls: ssl.SSLObject | None) -> bool:
    """Whether there is something to decrypt: TLS has read it from the socket, and the parser has not read it."""
    if tls is None:
        return False
    try:
        tls.read(1)
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLError:
        return True  # closed or broken
    return True


class SmallReads(httpcore2.TrioBackend):
    """Sockets that give at most `READ_BYTES` at a time."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect; bounds and errors are the library's."""
        return _Socket(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Socket(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream: Final = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(min(max_bytes, READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Socket(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class PacedStream(httpx2.AsyncByteStream):
    """A body that lets other tasks run between its pieces, however many came with one read."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream: Final = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces, once."""
        return _Pieces(aiter(self._stream))

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


class _Pieces(AsyncIterator[bytes]):
    """No generator: one more of them would be left suspended by whoever leaves early."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces: Final = pieces
        self._left = PIECES_PER_TURN

    async def __anext__(self) -> bytes:
        if self._left == 0:
            self._left = PIECES_PER_TURN
            await trio.lowlevel.checkpoint()
        self._left -= 1
        return await anext(self._pieces)


def _is_encoded(headers: httpx2.Headers) -> bool:
    encodings = headers.get_list("content-encoding", split_commas=True)
    return any(encoding.strip().lower() not in ("", "identity") for encoding in encodings)
