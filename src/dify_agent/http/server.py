"""The listener: sockets, the accept loop, and the order in which a server stops.

hypercorn's ``serve`` is not used: it hides the connections, which have to be reached when the server stops, and it
opens the app's lifespan, which this app does not have. Its configuration and protocol engine are.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config, Sockets
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework

from dify_agent.http.admission import Door
from dify_agent.http.settings import HttpSettings
from dify_agent.http.transport import Connection, set_user_timeout
from dify_agent.http.websocket_frames import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

STOPPING_STALL_SECONDS: Final = 1.0
"""What a reader that takes nothing is still given once the server stops."""

Address = tuple[str, int]
"""Host and port that a listening socket is bound to."""


class ServerConfig(Config):
    """hypercorn's configuration: HTTP/1.1, no access log, errors to the process's logging."""

    accesslog = None
    errorlog = logging.getLogger("dify_agent.http")
    backlog = 1024
    h11_max_incomplete_size = 32 * 1024  # all headers together; more is 431
    include_server_header = False
    websocket_max_message_size = MAX_MESSAGE_BYTES

    def __init__(self, settings: HttpSettings, host: str = "127.0.0.1", port: int = 0) -> None:
        self._stall_seconds = settings.stream_stall_seconds
        self.graceful_timeout = settings.graceful_seconds
        self.keep_alive_timeout = settings.keep_alive_seconds
        self.websocket_ping_interval = settings.heartbeat_seconds
        self.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]

    def create_sockets(self) -> Sockets:
        """Bound sockets whose connections inherit ``TCP_USER_TIMEOUT``, so that a stalled reader is dropped by the
        kernel too: without any bound, one such reader keeps a stopping server alive for ever (measured)."""
        sockets = super().create_sockets()
        for sock in sockets.insecure_sockets:
            set_user_timeout(sock, self._stall_seconds)
        return sockets


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to the address, for processes that share them.

    Raises:
        OSError: it cannot be bound.
    """
    return ServerConfig(HttpSettings(), host, port).create_sockets().insecure_sockets


async def serve_http(
    app: ASGIFramework,
    *,
    settings: HttpSettings,
    shutdown_trigger: Callable[[], Awaitable[object]],
    host: str = "127.0.0.1",
    port: int = 0,
    sockets: Sequence[socket.socket] | None = None,
    connection_type: Callable[..., Connection] = Connection,
    task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` until ``shutdown_trigger`` returns; then stop listening and return when every connection has ended.

    Responses in progress have ``settings.graceful_seconds``; then they are cut. The supervisor drains first, so what
    is left by then are readers that do not read. Stop by the trigger: cancelling this task cuts every response at
    once.

    Args:
        app: an ASGI app.
        settings: times and limits.
        shutdown_trigger: waits until the server shall stop.
        host: address to bind, ignored with ``sockets``.
        port: port to bind, 0 for any.
        sockets: sockets bound by the caller, who may share them with other processes. They are closed here.
        connection_type: makes what serves a client; the fakes' can break in the middle of an answer.
        task_status: started with the bound addresses, when connections are accepted.

    Raises:
        OSError: the address cannot be bound.
    """
    config = ServerConfig(settings, host, port)
    bound = config.create_sockets().insecure_sockets if sockets is None else list(sockets)
    for sock in bound:
        sock.setblocking(False)
        set_user_timeout(sock, settings.stream_stall_seconds)
        sock.listen(config.backlog)
    addresses: list[Address] = [sock.getsockname()[:2] for sock in bound]
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in bound]
    context = WorkerContext(None)
    wrapped = ASGIWrapper(app)
    open_connections: set[Connection] = set()

    async def serve_client(stream: trio.SocketStream) -> None:
        if context.terminated.is_set():
            stream.socket.close()  # accepted just before the stop, which therefore has not seen it
            return
        connection = connection_type(wrapped, config, context, stream, stall_seconds=settings.stream_stall_seconds)
        open_connections.add(connection)
        try:
            await connection.run()
        finally:
            open_connections.discard(connection)

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            door = Door(serve_client, connections)
            for listener in listeners:
                accepting.start_soon(door.accept, listener)
            task_status.started(addresses)
            await shutdown_trigger()
            accepting.cancel_scope.cancel(reason="the server was told to stop")
        await context.terminated.set()
        logger.info("listener closed, connections open: %d", len(open_connections))
        for connection in list(open_connections):
            connection.stop(min(STOPPING_STALL_SECONDS, settings.stream_stall_seconds), settings.graceful_seconds)
        connections.cancel_scope.deadline = trio.current_time() + settings.graceful_seconds
    if connections.cancel_scope.cancelled_caught:
        logger.warning("responses were cut: they did not end within %g s of the stop", settings.graceful_seconds)
