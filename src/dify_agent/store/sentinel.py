"""Connections to the primary that sentinels name.

Sentinels are asked in turn whenever a connection is to be opened and the primary is not known. A connection is used
only after its server has said that it is a primary: a sentinel may not know yet. What looks like a failover (a
connection refused or lost, no answer, a server that is read-only) makes all connections stale, and the next one asks
anew. Login and database of the URL are for the data servers; sentinels are asked without a login.

After a failover on command the old primary goes on as one until the sentinel tells it (measured: 10 s), and what it
takes meanwhile is lost. So a sentinel is also asked all the time, and when it names another server, connections to the
old one are broken at once, blocking reads included.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import trio
from coredis.connection import BaseConnection
from coredis.exceptions import ConnectionError as CoredisConnectionError
from coredis.exceptions import ReadOnlyError, UnblockedError

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.advice import advice_on
from dify_agent.store.connections import (
    Connections,
    NoConnectionError,
    contain,
    new_connection,
    server_dial,
)
from dify_agent.store.executor import Command, Item, Lane, Reply, lane_limits
from dify_agent.store.slots import Address
from dify_agent.store.tls import tls_context
from dify_agent.store.urls import StoreUrl

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 0.5
"""Between two questions whether the primary is still the same."""
ASK_SECONDS: Final = 1.0
"""How long one sentinel may take; then the next is asked."""

_LOST = (CoredisConnectionError, ReadOnlyError, UnblockedError, StoreUnavailableError)
"""Replies after which the server may not be the primary any more."""


class SentinelConnections(Connections):
    """`dify_agent.store.executor.Executor` on whichever server is the primary."""

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, *, limit: int, timeout: float) -> None:
        self._primary = Primary(nursery, url, timeout, self._primary_moved)
        super().__init__(nursery, self._primary.dial, limits=lane_limits(limit), timeout=timeout, url=url)
        nursery.start_soon(self._watch)

    async def exchange(
        self, items: Sequence[Item], *, lane: Lane, seconds: float, stated: float | None = None
    ) -> list[Reply]:
        """See `Connections.exchange`."""
        try:
            replies = await super().exchange(items, lane=lane, seconds=seconds, stated=stated)
        except NoConnectionError as error:
            if error.waited is not None:
                self._doubt()
            raise
        except StoreUnavailableError:
            self._doubt()
            raise
        if any(isinstance(reply, _LOST) or _demoted(reply) for reply in replies):
            self._doubt()
        return replies

    def _doubt(self) -> None:
        self._primary.forget()
        self.discard()

    async def _watch(self) -> None:
        while True:
            await trio.sleep(WATCH_SECONDS)
            await contain(self._primary.look)

    def _primary_moved(self) -> None:
        logger.info("the sentinels name another primary")
        self.discard(lent=True)


class Primary:
    """Where the primary is, by the word of the first sentinel that knows.

    ``moved`` is called whenever they name another server than the one named last, whoever has asked.
    """

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, timeout: float, moved: Callable[[], None]) -> None:
        self._url = url
        self._timeout = timeout
        self._tls = tls_context(url)
        login = StoreUrl(url.scheme, hosts=url.hosts)
        seconds = min(ASK_SECONDS, timeout)
        self._sentinels = [
            Connections(
                nursery,
                server_dial(login, address, seconds, self._tls),
                limits={Lane.SERVICES: 1},
                timeout=seconds,
                url=login,
            )
            for address in url.hosts
        ]
        self._moved = moved
        self._asking = trio.Lock()
        self._address: Address | None = None
        """Where the next connection leads."""
        self._named: Address | None = None
        """Named last; not forgotten, for connections that lead there may still be lent."""
        self._forgotten = 0

    def forget(self) -> None:
        """Ask again before the next connection is opened."""
        self._address = None
        self._forgotten += 1

    async def look(self) -> None:
        """Ask whether the primary is still the same. Without an answer, or a primary yet, there is nothing to say."""
        before = self._named, self._forgotten
        if self._named is None:
            return
        try:
            now = await self._ask()
        except StoreUnavailableError:
            return
        if before == (self._named, self._forgotten):  # else somebody has asked, or has reason to, later than this
            self._take(now)

    async def dial(self) -> BaseConnection:
        """A connection object for the primary; connecting fails when the server is none.

        Raises:
            StoreUnavailableError: no sentinel names a primary.
        """
        async with self._asking:  # many callers find it unknown at once; one asks
            address = self._address
            if address is None:
                address = await self._ask()
                self._take(address)
        connection = new_connection(self._url, address, self._timeout, self._tls)
        connection.register_connect_callback(self._check_role)
        return connection

    def _take(self, address: Address) -> None:
        before, self._named, self._address = self._named, address, address
        if before is not None and before != address:
            self._moved()

    async def _ask(self) -> Address:
        name = self._url.master or ""
        question = Command(b"SENTINEL", ("GET-MASTER-ADDR-BY-NAME", name))
        causes: list[str] = []
        advice: str | None = None
        for sentinel in list(self._sentinels):
            try:
                (reply,) = await sentinel.execute([question], lane=Lane.SERVICES)
            except StoreUnavailableError as error:
                reply = error
            if isinstance(reply, list) and len(reply) == 2:
                # The one that knew is the first to be asked next time.
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                host, port = cast("list[bytes]", reply)
                return host.decode(), int(port)
            causes.append(_cause(reply))
            advice = advice or _advice(reply)
        cause = f"no sentinel of DIFY_AGENT_REDIS_URL names a primary called {name!r}: {'; '.join(causes)}"
        raise StoreUnavailableError(cause, sent=False, advice=advice)

    async def _check_role(self, connection: BaseConnection) -> None:
        reply = await connection.create_request(b"ROLE", decode=False)
        role = reply[0] if isinstance(reply, list | tuple) else reply
        if role not in (b"master", b"primary"):
            self.forget()
            raise CoredisConnectionError("the server that the sentinels name is not the primary (yet, or any more)")


def _demoted(reply: Reply) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("MASTERDOWN")


def _cause(reply: Reply) -> str:
    if isinstance(reply, StoreUnavailableError):
        return reply.cause
    return str(reply) if isinstance(reply, Exception) else "not known there"


def _advice(reply: Reply) -> str | None:
    if isinstance(reply, StoreUnavailableError):
        return reply.advice
    if isinstance(reply, Exception):
        return advice_on(reply)
    return "check the primary's name in DIFY_AGENT_REDIS_URL: redis+sentinel://host:port/NAME"
