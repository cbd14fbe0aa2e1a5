"""The accept loop: which connections are served, and what is said to those for which no descriptors are left.

`trio.serve_listeners` takes connections until the process has no descriptor for anything else, then logs a traceback
ten times a second. Here some are kept for the store, for models and for files, and whoever comes while only those are
left is told so and closed.
"""

import errno
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final

import trio

from dify_agent.http.errors import JSON, RETRY_AFTER_SECONDS, error_body

logger = logging.getLogger(__name__)

RESERVED_DESCRIPTORS: Final = 128
"""Not used for connections of clients: the store's pool, connections to models, the farewells below, files."""

REFUSED_AT_ONCE: Final = 32
"""Refused connections that are given the time to read why. Further ones are closed at once, and may see a reset."""
FAREWELL_SECONDS: Final = 1.0

PAUSE_SECONDS: Final = 0.1
"""Between attempts to accept while the system has no descriptor or memory for it."""
WARNING_SECONDS: Final = 10.0
"""At most one warning in so long about either trouble; a flood of connections must not become a flood of lines."""

_SHORTAGE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

_BODY: Final = error_body("too many open connections")
_REFUSAL: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: %b\r\ncontent-length: %d\r\nretry-after: %d\r\n"
    b"connection: close\r\n\r\n%b" % (JSON.encode(), len(_BODY), RETRY_AFTER_SECONDS, _BODY)
)


def connection_bound() -> float:
    """The first descriptor that no client's connection may have.

    The system gives out the lowest free number, so a connection with this one means that all below are taken, whoever
    holds them: nothing has to be counted. A process with very few descriptors keeps half of them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if soft == resource.RLIM_INFINITY else max(soft - RESERVED_DESCRIPTORS, soft // 2)


class Door:
    """Accepts connections on any number of listeners, each in a task of its own.

    Args:
        serve: serves one connection, and may not raise. It closes the stream.
        connections: the nursery in which it runs; the caller's, and it outlives the tasks that accept.
    """

    def __init__(self, serve: Callable[[trio.SocketStream], Awaitable[object]], connections: trio.Nursery) -> None:
        self._serve = serve
        self._connections = connections
        self._bound = connection_bound()
        self._farewells = 0
        self._warn_after = -inf

    async def accept(self, listener: trio.SocketListener) -> None:
        """Accept until cancelled; the listener is closed then.

        Raises:
            OSError: the listener is unusable.
        """
        with listener.socket:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _SHORTAGE:
                        raise
                    self._warn(f"cannot accept connections: {os.strerror(error.errno)}")
                    await trio.sleep(PAUSE_SECONDS)
                else:
                    self._admit(stream)

    def _admit(self, stream: trio.SocketStream) -> None:
        if stream.socket.fileno() < self._bound:
            self._connections.start_soon(self._serve, stream)
            return
        self._warn("connections are refused: the process is about to run out of descriptors")
        if self._farewells < REFUSED_AT_ONCE:
            self._farewells += 1
            self._connections.start_soon(self._refuse, stream)
        else:
            stream.socket.close()

    async def _refuse(self, stream: trio.SocketStream) -> None:
        """Say why, then drop what the client sends until it has read that: closing earlier would reset the connection
        before it could."""
        try:
            with trio.move_on_after(FAREWELL_SECONDS), suppress(trio.BrokenResourceError, OSError):
                await stream.send_all(_REFUSAL)
                stream.socket.shutdown(socket.SHUT_WR)
                while await stream.receive_some():
                    pass
        finally:
            self._farewells -= 1
            stream.socket.close()

    def _warn(self, message: str) -> None:
        now = trio.current_time()
        if now >= self._warn_after:
            self._warn_after = now + WARNING_SECONDS
            logger.warning(message)
