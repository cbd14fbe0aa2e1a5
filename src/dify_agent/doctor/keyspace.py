"""The doctor's port to the store's servers: questions by key, and a walk over all keys of all servers."""

import re
from collections.abc import Sequence
from typing import Final, Protocol, cast

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.cluster import ClusterConnections
from dify_agent.store.executor import Command, Executor, Item, Reply
from dify_agent.store.slots import SLOTS

SCAN_COUNT: Final = 500
"""Keys that one SCAN looks at: well under a millisecond of the server's time."""


class KeyspaceReader(Protocol):
    """What the doctor needs of a store."""

    async def servers(self) -> Sequence[Executor]:
        """Every server that holds keys of its own.

        Raises:
            StoreUnavailableError: not all of them are known, so that a walk would miss keys.
        """

    async def ask(self, items: Sequence[Item], *, in_order: bool = False) -> list[Reply]:
        """Replies in the items' order. An error reply that concerns its item alone is returned in its place.

        Raises:
            StoreUnavailableError: one of them was not answered.
        """


class ExecutorKeyspace:
    """`KeyspaceReader` on the store's own executor: one server, a sentinels' primary, or a cluster."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def servers(self) -> Sequence[Executor]:
        """See the port."""
        await self.ask([Command(b"PING")])  # a cluster's map is known afterwards
        if not isinstance(self._executor, ClusterConnections):
            return [self._executor]
        owners = {self._executor.owner(slot) for slot in range(SLOTS)}
        if None in owners:
            raise StoreUnavailableError("some slots of the cluster are served by no node", sent=False)
        return [self._executor.node(address) for address in sorted(owner for owner in owners if owner is not None)]

    async def ask(self, items: Sequence[Item], *, in_order: bool = False) -> list[Reply]:
        """See the port."""
        return _answered(await self._executor.execute(items, in_order=in_order)) if items else []


async def scan_page(server: Executor, cursor: bytes, pattern: str) -> tuple[bytes, list[str]]:
    """The next keys of one server and the next cursor, ``0`` at the end. A key may come more than once.

    Raises:
        StoreUnavailableError: the server did not answer.
    """
    scan = Command(b"SCAN", (cursor, "MATCH", pattern, "COUNT", SCAN_COUNT))
    (reply,) = _answered(await server.execute([scan]))
    if isinstance(reply, Exception):
        raise reply
    following, keys = cast("tuple[bytes, list[bytes]]", reply)
    return following, [name for key in keys if (name := _name(key)) is not None]


def pattern_of(prefix: str) -> str:
    """The glob of all keys under a prefix."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + ":*"


def _name(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None  # no key of ours


def _answered(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, StoreUnavailableError):
            raise reply
    return replies
