"""Connections to one Redis server, lent to one caller at a time.

The connection (sockets, RESP3, TLS, login) is coredis's; the lending is ours. coredis's own pool loses a slot for good
with each blocking read that is cancelled and each connection that breaks while lent (measured on 6.9: four of them and
a pool of four never answers again), and cancelling is this project's trade. It also lets several tasks share a
connection, so that cancelling one fails the commands of the others.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from coredis.connection import BaseConnection, TCPConnection, TCPLocation, UnixDomainSocketConnection
from coredis.connection import UnixDomainSocketLocation as UnixLocation
from coredis.exceptions import ConnectionError as CoredisConnectionError
from coredis.exceptions import NoScriptError

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.faults import translate
from dify_agent.store.lua import Script
from dify_agent.store.urls import StoreUrl

if TYPE_CHECKING:
    import anyio.abc

logger = logging.getLogger(__name__)
# It logs a traceback for each failed handshake, cancelled ones included. Faults reach our callers as errors.
logging.getLogger("coredis").setLevel(logging.CRITICAL)

Argument = str | bytes | int
Reply = object
"""What the parser makes of a reply: bytes, int, list, dict, None, or the exception of an error reply."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its arguments, as sent."""

    name: bytes
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A run of a script."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    def by_digest(self) -> Command:
        """The short form; a server that does not know the script answers NOSCRIPT and has done nothing."""
        return Command(b"EVALSHA", (self.script.sha, len(self.keys), *self.keys, *self.arguments))

    def by_source(self) -> Command:
        """The long form. The server also remembers the script, and no flush can come between loading and running."""
        return Command(b"EVAL", (self.script.source, len(self.keys), *self.keys, *self.arguments))


class Connections:
    """At most ``limit`` connections; idle ones are kept. A connection whose use did not end cleanly is thrown away.

    Connections live in ``nursery``, whose owner (`open_connections`) closes them all by cancelling it.
    """

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, *, limit: int, timeout: float) -> None:
        self._nursery = nursery
        self._url = url
        self._timeout = timeout
        self._limiter = trio.CapacityLimiter(limit)
        self._idle: list[BaseConnection] = []
        self._tls = _tls_context(url)

    async def execute(self, items: Sequence[Command | Call], *, block_seconds: float = 0) -> list[Reply]:
        """Send all items in one write and wait for their replies: one round trip, two if a script is not loaded.

        Error replies and lost replies are returned in place, translated (`StoreUnavailableError` where it applies).
        ``block_seconds`` is how long the server may hold the reply back by request.

        Raises:
            StoreUnavailableError: no connection within the time limit, so nothing was sent; or no reply within it.
        """
        try:
            with trio.fail_after(self._timeout + block_seconds):
                async with self._lend() as connection:
                    replies = await _exchange(connection, [_first_try(item) for item in items])
                    await _run_unknown_scripts(connection, items, replies)
        except trio.TooSlowError:
            raise StoreUnavailableError(f"no answer within {self._timeout + block_seconds:g} s") from None
        return [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[BaseConnection]:
        async with self._limiter:
            connection = self._take_idle() or await self._connect()
            clean = False
            try:
                yield connection
                clean = True
            finally:
                # Cancelled or timed out: replies are still due on it, and the next borrower would get them.
                if clean and connection.usable:
                    self._idle.append(connection)
                else:
                    connection.invalidate("its use did not end cleanly")

    def _take_idle(self) -> BaseConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> BaseConnection:
        try:
            connection: BaseConnection = await self._nursery.start(self._serve)
        except Exception as error:  # noqa: BLE001 - raised again below, translated
            failure = translate(error)
        else:
            return connection
        # coredis turns a cancellation during its handshake into a ConnectionError (measured on 6.9).
        await trio.lowlevel.checkpoint_if_cancelled()
        raise failure

    async def _serve(self, *, task_status: trio.TaskStatus[BaseConnection]) -> None:
        # One task per connection, for its whole life. It fails only before `started`, so it never harms its siblings.
        connection = self._new_connection()
        usable = False

        def started(_value: None = None) -> None:
            nonlocal usable
            usable = True
            task_status.started(connection)

        try:
            await connection.run(task_status=cast("anyio.abc.TaskStatus[None]", SimpleNamespace(started=started)))
        except Exception:
            if not usable:
                raise
            logger.info("a store connection ended with an error", exc_info=True)
        finally:
            if connection in self._idle:
                self._idle.remove(connection)
            _close_buffers(connection)

    def _new_connection(self) -> BaseConnection:
        url = self._url
        if url.path is not None:
            return UnixDomainSocketConnection(
                UnixLocation(url.path),
                db=url.db,
                username=url.username,
                password=url.password,
                connect_timeout=self._timeout,
            )
        host, port = url.hosts[0]
        return TCPConnection(
            TCPLocation(host, port),
            socket_keepalive=True,
            db=url.db,
            username=url.username,
            password=url.password,
            connect_timeout=self._timeout,
            ssl_context=self._tls,
        )


@asynccontextmanager
async def open_connections(url: StoreUrl, *, limit: int, timeout: float) -> AsyncIterator[Connections]:
    """Own the tasks of all connections to ``url``. Connects on demand, so it succeeds while the server is down.

    Args:
        url: where to connect.
        limit: how many connections at most; further callers wait.
        timeout: seconds for one round trip, connecting included.

    Raises:
        ValueError: for a scheme that is not supported yet.
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    if url.scheme in ("redis+cluster", "redis+sentinel"):
        raise ValueError(
            f"DIFY_AGENT_REDIS_URL: {url.scheme}:// is understood but not supported yet; "
            "use redis://, rediss:// or unix://"
        )
    async with trio.open_nursery() as nursery:
        yield Connections(nursery, url, limit=limit, timeout=timeout)
        nursery.cancel_scope.cancel(reason="store closed")


def _close_buffers(connection: BaseConnection) -> None:
    # coredis leaves them open when connecting fails, and then each warns when it is collected (read, 6.9).
    for value in vars(connection).values():
        if isinstance(value, MemoryObjectSendStream | MemoryObjectReceiveStream):
            value.close()


def _first_try(item: Command | Call) -> Command:
    return item.by_digest() if isinstance(item, Call) else item


async def _run_unknown_scripts(
    connection: BaseConnection, items: Sequence[Command | Call], replies: list[Reply]
) -> None:
    unknown = [
        (index, item)
        for index, (item, reply) in enumerate(zip(items, replies, strict=True))
        if isinstance(item, Call) and isinstance(reply, NoScriptError)
    ]
    if unknown:
        again = await _exchange(connection, [item.by_source() for _, item in unknown])
        for (index, _), reply in zip(unknown, again, strict=True):
            replies[index] = reply


async def _exchange(connection: BaseConnection, commands: Sequence[Command]) -> list[Reply]:
    # One request object per command, not one batch: when the connection breaks half-way, what was answered stays known.
    # Arguments are encoded here, in the caller's task: what cannot be encoded must not kill the connection's writer.
    encoded = [(command.name, [_encode(argument) for argument in command.arguments]) for command in commands]
    requests = []
    for name, arguments in encoded:
        try:
            requests.append(connection.create_request(name, *arguments, decode=False, raise_exceptions=False))
        except CoredisConnectionError as error:
            return [*[await request for request in requests], *([error] * (len(commands) - len(requests)))]
    return [await request for request in requests]


def _encode(argument: Argument) -> bytes:
    if isinstance(argument, str):
        return argument.encode("utf-8", "surrogatepass")
    return argument if isinstance(argument, bytes) else b"%d" % argument


def _tls_context(url: StoreUrl) -> ssl.SSLContext | None:
    if url.scheme != "rediss":
        return None
    options = dict(url.tls)
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    checked = options.get("ssl_cert_reqs", "required")
    if options.get("ssl_check_hostname", "true").lower() in ("false", "0", "no") or checked != "required":
        context.check_hostname = False
    context.verify_mode = {
        "required": ssl.CERT_REQUIRED,
        "optional": ssl.CERT_OPTIONAL,
        "none": ssl.CERT_NONE,
    }[checked]
    return context
