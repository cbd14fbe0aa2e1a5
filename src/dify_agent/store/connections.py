"""Connections to one Redis server, lent to one caller at a time.

The connection (sockets, RESP3, TLS, login) is coredis's; the lending is ours. coredis's own pool loses a slot for good
with each blocking read that is cancelled and each connection that breaks while lent (measured on 6.9: four of them and
a pool of four never answers again), and cancelling is this project's trade. It also lets several tasks share a
connection, so that cancelling one fails the commands of the others.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from coredis.connection import BaseConnection, TCPConnection, TCPLocation, UnixDomainSocketConnection
from coredis.connection import UnixDomainSocketLocation as UnixLocation
from coredis.exceptions import ConnectionError as CoredisConnectionError
from coredis.exceptions import NoScriptError

from dify_agent.concurrency.contexts import forget_starter
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.advice import no_answer
from dify_agent.store.executor import Argument, Call, Command, Item, Lane, Reply, Streams
from dify_agent.store.faults import translate, translate_setup
from dify_agent.store.urls import StoreUrl

if TYPE_CHECKING:
    import anyio.abc

logger = logging.getLogger(__name__)
# It logs a traceback for each failed handshake, cancelled ones included. Faults reach our callers as errors.
logging.getLogger("coredis").setLevel(logging.CRITICAL)

_DUE: Reply = object()
"""Stands for a reply that has not come."""

Dial = Callable[[], Awaitable[BaseConnection]]
"""Makes the connection object for the next attempt to connect, and does not connect."""


class NoConnectionError(StoreUnavailableError):
    """No connection within the time limit. Nothing was sent."""

    def __init__(self, cause: str, *, waited: float | None, advice: str | None = None) -> None:
        super().__init__(cause, sent=False, advice=advice)
        self.waited = waited
        """Seconds that the server had. None: the wait was for other callers of the lane."""


class NoAnswerError(StoreUnavailableError):
    """Sent, and not answered within the time limit."""

    def __init__(self, cause: str, *, waited: float) -> None:
        super().__init__(cause)
        self.waited = waited
        """Seconds that the server had, connecting included."""


class Connections:
    """As many connections as the lanes have together; idle ones are kept, for whatever lane comes next.

    A connection whose use did not end cleanly is thrown away. Connections live in ``nursery``, whose owner
    (`lasting_nursery`) closes them all by cancelling it.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        dial: Dial,
        *,
        limits: Mapping[Lane, int],
        timeout: float,
        url: StoreUrl | None = None,
    ) -> None:
        """
        Args:
            nursery: where connections live.
            dial: makes them.
            limits: how many each lane has.
            timeout: seconds for one round trip, connecting included.
            url: what ``dial`` connects to, for errors to speak of its database and TLS.
        """
        self._nursery = nursery
        self._dial = dial
        self._url = url
        self._timeout = timeout
        self._limiters = {lane: trio.CapacityLimiter(limit) for lane, limit in limits.items()}
        self._idle: list[BaseConnection] = []
        self._lent: set[BaseConnection] = set()
        self._discarded = 0
        self._broken = 0

    async def execute(
        self, items: Sequence[Item], *, lane: Lane = Lane.REQUESTS, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        """See the port. One write and one round trip, two if a script is not loaded; always in order."""
        replies = await self.exchange(items, lane=lane, seconds=self._timeout + block_seconds)
        return [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def exchange(
        self, items: Sequence[Item], *, lane: Lane, seconds: float, stated: float | None = None
    ) -> list[Reply]:
        """As `execute`, within ``seconds``; error replies come as the server gave them.

        ``stated`` is the limit that errors speak of, when ``seconds`` is what was left of it.

        Raises:
            NoConnectionError: there was none within the time limit.
            StoreUnavailableError: connecting failed. Nothing was sent either.
        """
        limit = f"{seconds if stated is None else stated:g} s"
        replies: list[Reply] = []
        admitted_at: float | None = None
        with trio.move_on_after(seconds):
            async with self._limiters[lane]:
                admitted_at = trio.current_time()
                async with self._borrow() as connection:
                    replies += [_DUE] * len(items)
                    await exchange_on(connection, {i: _first_try(item) for i, item in enumerate(items)}, replies)
                    await exchange_on(connection, _unknown_scripts(items, replies), replies)
        waited = None if admitted_at is None else trio.current_time() - admitted_at
        if len(replies) < len(items) or waited is None:
            advice = None if waited is None else no_answer(self._url)
            raise NoConnectionError(f"no connection within {limit}", waited=waited, advice=advice)
        lost: Reply = NoAnswerError(f"no answer within {limit}", waited=waited)
        # Of a script that is not loaded: time was up before the source could be sent, or answered.
        for i in (*_unknown_scripts(items, replies), *(i for i, reply in enumerate(replies) if reply is _DUE)):
            replies[i] = lost
        return replies

    async def read_streams(self, positions: Mapping[str, str], *, count: int, block_seconds: float) -> Streams:
        """See the port. One blocking read over all streams."""
        block = max(1, round(block_seconds * 1000))  # 0 would mean for ever
        read = Command(b"XREAD", ("COUNT", count, "BLOCK", block, "STREAMS", *positions, *positions.values()))
        (reply,) = await self.execute([read], lane=Lane.SERVICES, block_seconds=block_seconds)
        if isinstance(reply, Exception):
            raise reply
        return cast("Streams", reply or {})

    @asynccontextmanager
    async def lend(self, lane: Lane) -> AsyncIterator[BaseConnection]:
        """A connection of the lane, for a use that is not one exchange. It must be left as it was found, or broken."""
        limiter, borrower = self._limiters[lane], object()  # not the task: it may exchange meanwhile
        await limiter.acquire_on_behalf_of(borrower)
        try:
            async with self._borrow() as connection:
                yield connection
        finally:
            limiter.release_on_behalf_of(borrower)

    def discard(self, *, lent: bool = False) -> None:
        """Throw away the connections that are idle now, and those that are lent: when they come back, or at once."""
        self._discarded += 1
        self._broken += lent
        for connection in (*self._idle, *(self._lent if lent else ())):
            connection.invalidate("not wanted any more")
        self._idle.clear()

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[BaseConnection]:
        age = self._discarded
        connection = self._take_idle()
        while connection is None:
            age, broken = self._discarded, self._broken
            connection = await self._connect()
            if broken != self._broken:  # meanwhile: it may lead to where nobody shall be any more
                connection.invalidate("not wanted any more")
                connection = None
        clean = False
        self._lent.add(connection)
        try:
            yield connection
            clean = True
        finally:
            self._lent.remove(connection)
            # Cancelled or timed out: replies are still due on it, and the next borrower would get them.
            if clean and connection.usable and age == self._discarded:
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
            failure = translate_setup(error, self._url)
        else:
            return connection
        # coredis turns a cancellation during its handshake into a ConnectionError (measured on 6.9).
        await trio.lowlevel.checkpoint_if_cancelled()
        raise failure

    async def _serve(self, *, task_status: trio.TaskStatus[BaseConnection]) -> None:
        # One task per connection, for its whole life. It fails only before `started`, so it never harms its siblings.
        forget_starter()
        connection = await self._dial()
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


async def contain(work: Callable[[], Awaitable[None]]) -> None:
    """Carry out what nobody waits for. Its mistakes are logged and nobody else's: the store goes on."""
    forget_starter()
    try:
        await work()
    except Exception:
        logger.exception("a background task of the store's connections failed")


@asynccontextmanager
async def lasting_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery for the tasks of connections, cancelled when the body has ended, however it ends.

    A cancellation from outside reaches the body and not the nursery: what the body still does behind a shield of its
    own finds its connections working, and can open new ones.

    Raises:
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    async with trio.open_nursery() as owner:
        nursery = await owner.start(_hold_nursery)
        try:
            yield nursery
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


def server_dial(url: StoreUrl, address: tuple[str, int] | None, timeout: float, tls: ssl.SSLContext | None) -> Dial:
    """For the server at ``address``, or the one that the URL names; login and database are the URL's."""

    async def dial() -> BaseConnection:  # noqa: ASYNC124 - the sentinels' one asks first
        return new_connection(url, address or (url.hosts[0] if url.hosts else None), timeout, tls)

    return dial


def new_connection(
    url: StoreUrl, address: tuple[str, int] | None, timeout: float, tls: ssl.SSLContext | None = None
) -> BaseConnection:
    """A connection object, not connected yet; without an address to the URL's unix socket."""
    if address is None:
        return UnixDomainSocketConnection(
            UnixLocation(url.path or ""),
            db=url.db,
            username=url.username,
            password=url.password,
            connect_timeout=timeout,
        )
    return TCPConnection(
        TCPLocation(*address),
        socket_keepalive=True,
        db=url.db,
        username=url.username,
        password=url.password,
        connect_timeout=timeout,
        ssl_context=tls,
    )


def _close_buffers(connection: BaseConnection) -> None:
    # coredis leaves them open when connecting fails, and then each warns when it is collected (read, 6.9).
    for value in vars(connection).values():
        if isinstance(value, MemoryObjectSendStream | MemoryObjectReceiveStream):
            value.close()


def _first_try(item: Item) -> Command:
    return item.by_digest() if isinstance(item, Call) else item


def _unknown_scripts(items: Sequence[Item], replies: Sequence[Reply]) -> dict[int, Command]:
    """The long form of each call whose short form the server could not run, by place."""
    return {
        i: item.by_source()
        for i, (item, reply) in enumerate(zip(items, replies, strict=True))
        if isinstance(item, Call) and isinstance(reply, NoScriptError)
    }


async def exchange_on(connection: BaseConnection, commands: Mapping[int, Command], replies: list[Reply]) -> None:
    """Send all commands on one connection; put each reply into its place as it comes.

    So what has come stays when time is up.
    """
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
