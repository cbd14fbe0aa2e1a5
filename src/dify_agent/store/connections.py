"""Connections to one Redis server, lent to one caller at a time.

The connection (sockets, RESP3, TLS, login) is coredis's; the lending is ours. coredis's own pool loses a slot for good
with each blocking read that is cancelled and each connection that breaks while lent (measured on 6.9: four of them and
a pool of four never answers again), and cancelling is this project's trade. It also lets several tasks share a
connection, so that cancelling one fails the commands of the others.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

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


class Lane(Enum):
    """Who asks. Each lane has connections of its own, so that a crowd in one holds nobody up in another."""

    SERVICES = auto()
    """The process's services: each makes one call at a time, and there are no more of them than connections."""
    RUNS = auto()
    """What begins and ends runs."""
    REQUESTS = auto()
    """Everything else: what HTTP asks."""


SERVICE_CONNECTIONS: Final = 5
"""Heartbeat, publisher, cancel inbox, tail hub and tail bell: none ever waits for a connection. The inbox and the hub
hold theirs nearly all the time."""
RUN_CONNECTIONS: Final = 2


class Connections:
    """As many connections as the lanes have together; idle ones are kept, for whatever lane comes next.

    A connection whose use did not end cleanly is thrown away. Connections live in ``nursery``, whose owner
    (`open_connections`) closes them all by cancelling it.
    """

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, *, limits: Mapping[Lane, int], timeout: float) -> None:
        self._nursery = nursery
        self._url = url
        self._timeout = timeout
        self._limiters = {lane: trio.CapacityLimiter(limit) for lane, limit in limits.items()}
        self._idle: list[BaseConnection] = []
        self._tls = _tls_context(url)

    async def execute(
        self, items: Sequence[Command | Call], *, lane: Lane = Lane.REQUESTS, block_seconds: float = 0
    ) -> list[Reply]:
        """Send all items in one write and wait for their replies: one round trip, two if a script is not loaded.

        Error replies, and replies that were lost or did not come in time, are returned in place, translated
        (`StoreUnavailableError` where it applies); what was answered before stands.
        ``block_seconds`` is how long the server may hold the reply back by request.

        Raises:
            StoreUnavailableError: no connection within the time limit, so nothing was sent.
        """
        seconds = self._timeout + block_seconds
        lost: Reply = StoreUnavailableError(f"no answer within {seconds:g} s")
        replies: list[Reply] = []
        with trio.move_on_after(seconds):
            async with self._lend(lane) as connection:
                replies += [lost] * len(items)
                await _exchange(connection, {i: _first_try(item) for i, item in enumerate(items)}, replies)
                await _exchange(connection, _unknown_scripts(items, replies), replies)
        if len(replies) < len(items):
            raise StoreUnavailableError(f"no connection within {seconds:g} s", sent=False)
        for i in _unknown_scripts(items, replies):  # time was up before the source could be sent, or answered
            replies[i] = lost
        return [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]

    @asynccontextmanager
    async def _lend(self, lane: Lane) -> AsyncIterator[BaseConnection]:
        async with self._limiters[lane]:
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
            failure = translate(error, sent=False)
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

    A cancellation from outside reaches the body and not the connections: what the body still does behind a shield of
    its own finds them working, and can open new ones. They end when the body has ended, however it ends.

    Args:
        url: where to connect.
        limit: how many connections at most; further callers wait. Services and runs have their share of them.
        timeout: seconds for one round trip, connecting included.

    Raises:
        ValueError: for a scheme that is not supported yet, or a limit that leaves none for requests.
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    if url.scheme in ("redis+cluster", "redis+sentinel"):
        raise ValueError(
            f"DIFY_AGENT_REDIS_URL: {url.scheme}:// is understood but not supported yet; "
            "use redis://, rediss:// or unix://"
        )
    limits = {Lane.SERVICES: SERVICE_CONNECTIONS, Lane.RUNS: RUN_CONNECTIONS}
    limits[Lane.REQUESTS] = limit - sum(limits.values())
    if limits[Lane.REQUESTS] < 1:
        raise ValueError(f"the limit of connections must be at least {limit - limits[Lane.REQUESTS] + 1}")
    async with trio.open_nursery() as owner:
        nursery = await owner.start(_hold_nursery)
        try:
            yield Connections(nursery, url, limits=limits, timeout=timeout)
        finally:
            nursery.cancel_scope.cancel(reason="store closed")


async def _hold_nursery(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Hold a nursery open that no cancellation from outside reaches; whoever starts this must cancel it.

    The shield has no bound in time but one in structure: the starter cancels in a ``finally`` around all it does with
    the nursery, so it lasts as long as that and no longer.
    """
    # A start that is cancelled already must fail here: `started` would return quietly, and nobody would end the shield.
    await trio.lowlevel.checkpoint_if_cancelled()
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        task_status.started(nursery)
        await trio.sleep_forever()


def _close_buffers(connection: BaseConnection) -> None:
    # coredis leaves them open when connecting fails, and then each warns when it is collected (read, 6.9).
    for value in vars(connection).values():
        if isinstance(value, MemoryObjectSendStream | MemoryObjectReceiveStream):
            value.close()


def _first_try(item: Command | Call) -> Command:
    return item.by_digest() if isinstance(item, Call) else item


def _unknown_scripts(items: Sequence[Command | Call], replies: Sequence[Reply]) -> dict[int, Command]:
    """The long form of each call whose short form the server could not run, by place."""
    return {
        i: item.by_source()
        for i, (item, reply) in enumerate(zip(items, replies, strict=True))
        if isinstance(item, Call) and isinstance(reply, NoScriptError)
    }


async def _exchange(connection: BaseConnection, commands: Mapping[int, Command], replies: list[Reply]) -> None:
    """Send all commands; put each reply into its place as it comes, so that what has come stays when time is up."""
    # One request object per command, not one batch: when the connection breaks half-way, what was answered stays known.
    # Arguments are encoded here, in the caller's task: what cannot be encoded must not kill the connection's writer.
    encoded = {i: (command.name, [_encode(item) for item in command.arguments]) for i, command in commands.items()}
    requests = {}
    for i, (name, arguments) in encoded.items():
        try:
            requests[i] = connection.create_request(name, *arguments, decode=False, raise_exceptions=False)
        except CoredisConnectionError as error:
            replies[i] = error
    for i, request in requests.items():
        replies[i] = await request


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
