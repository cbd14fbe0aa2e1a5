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
from collections.abc import Sequence
from typing import Final, cast

import trio
from coredis.connection import BaseConnection
from coredis.exceptions import ConnectionError as CoredisConnectionError
from coredis.exceptions import ReadOnlyError, UnblockedError

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.connections import Connections, NoConnectionError, new_connection, server_dial
from dify_agent.store.executor import Command, Item, Lane, Reply, lane_limits
from dify_agent.store.slots import Address
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
        self._primary = Primary(nursery, url, timeout)
        super().__init__(nursery, self._primary.dial, limits=lane_limits(limit), timeout=timeout)
        nursery.start_soon(self._watch)

    async def exchange(
        self, items: Sequence[Item], *, lane: Lane, seconds: float, stated: float | None = None
    ) -> list[Reply]:
        """See `Connections.exchange`."""
        try:
            replies = await super().exchange(items, lane=lane, seconds=seconds, stated=stated)
        except NoConnectionError as error:
            if error.admitted:
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
            if await self._primary.has_moved():
                logger.info("the sentinels name another primary")
                self.discard(lent=True)


class Primary:
    """Where the primary is, by the word of the first sentinel that knows."""

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        login = StoreUrl(url.scheme, hosts=url.hosts)
        seconds = min(ASK_SECONDS, timeout)
        self._sentinels = [
            Connections(nursery, server_dial(login, address, seconds), limits={Lane.SERVICES: 1}, timeout=seconds)
            for address in url.hosts
        ]
        self._asking = trio.Lock()
        self._address: Address | None = None

    def forget(self) -> None:
        """Ask again before the next connection is opened."""
        self._address = None

    async def has_moved(self) -> bool:
        """Whether the sentinels name another server than that of the last connection; it is the next one's then."""
        before = self._address
        if before is None:
            return False
        try:
            now = await self._ask()
        except StoreUnavailableError:
            return False
        if self._address != before:  # forgotten, or asked for by a caller, meanwhile
            return False
        self._address = now
        return now != before

    async def dial(self) -> BaseConnection:
        """A connection object for the primary; connecting fails when the server is none.

        Raises:
            StoreUnavailableError: no sentinel names a primary.
        """
        async with self._asking:  # many callers find it unknown at once; one asks
            address = self._address or await self._ask()
            self._address = address
        connection = new_connection(self._url, address, self._timeout)
        connection.register_connect_callback(self._check_role)
        return connection

    async def _ask(self) -> Address:
        name = self._url.master or ""
        question = Command(b"SENTINEL", ("GET-MASTER-ADDR-BY-NAME", name))
        causes = []
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
        raise StoreUnavailableError(
            f"no sentinel of DIFY_AGENT_REDIS_URL names a primary called {name!r}: {'; '.join(causes)}", sent=False
        )

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
