"""The port between the run log and the servers it lies on: commands and script calls in, replies out.

Three variants: one server (`dify_agent.store.connections`), the primary that sentinels name
(`dify_agent.store.sentinel`), and a cluster (`dify_agent.store.cluster`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from dify_agent.store.lua import Script

Argument = str | bytes | int
Reply = object
"""What the parser makes of a reply: bytes, int, list, dict, None, or the exception of an error reply."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its arguments, as sent."""

    name: bytes
    arguments: tuple[Argument, ...] = ()

    @property
    def key(self) -> str | None:
        """The key that decides which server of a cluster carries it out; None: any can."""
        if self.name == b"XREAD":
            return str(self.arguments[self.arguments.index("STREAMS") + 1])
        return str(self.arguments[0]) if self.arguments else None


@dataclass(frozen=True, slots=True)
class Call:
    """A run of a script. Its keys share a hash tag."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def key(self) -> str:
        """As of a command."""
        return self.keys[0]

    def by_digest(self) -> Command:
        """The short form; a server that does not know the script answers NOSCRIPT and has done nothing."""
        return Command(b"EVALSHA", (self.script.sha, len(self.keys), *self.keys, *self.arguments))

    def by_source(self) -> Command:
        """The long form. The server also remembers the script, and no flush can come between loading and running."""
        return Command(b"EVAL", (self.script.source, len(self.keys), *self.keys, *self.arguments))


Item = Command | Call


class Lane(Enum):
    """Who asks. Each lane has connections of its own, so that a crowd in one holds nobody up in another."""

    SERVICES = auto()
    """The process's services: each makes one call at a time, and there are no more of them than connections."""
    ROUTES = auto()
    """A cluster's own questions: who serves what, does a node answer, reads that follow a redirection."""
    RUNS = auto()
    """What begins and ends runs."""
    REQUESTS = auto()
    """Everything else: what HTTP asks."""


SERVICE_CONNECTIONS: Final = 7
"""Heartbeat, publisher, cancel inbox, cancel sweep, tail hub, tail bell and reaper: none ever waits for a connection,
although the inbox and the hub hold theirs nearly all the time, and a store that has stopped answers nobody."""
RUN_CONNECTIONS: Final = 2
ROUTE_CONNECTIONS: Final = 3
"""To each node of a cluster, beyond the limit: the map, a probe, a redirected read."""
LEAST_CONNECTIONS: Final = SERVICE_CONNECTIONS + RUN_CONNECTIONS + 1
"""One for requests."""


def lane_limits(limit: int) -> dict[Lane, int]:
    """How many of ``limit`` connections to one server each lane has.

    Raises:
        ValueError: none is left for requests.
    """
    if limit < LEAST_CONNECTIONS:
        raise ValueError(f"the limit of connections must be at least {LEAST_CONNECTIONS}")
    return {
        Lane.SERVICES: SERVICE_CONNECTIONS,
        Lane.RUNS: RUN_CONNECTIONS,
        Lane.REQUESTS: limit - LEAST_CONNECTIONS + 1,
    }


Streams = Mapping[bytes, Any]
"""Entries of each stream that has news, by its key, as XREAD answers them: (id, fields)."""


class Executor(Protocol):
    """Carries items out, wherever their keys are."""

    async def execute(
        self, items: Sequence[Item], *, lane: Lane = Lane.REQUESTS, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        """Carry all items out in as few round trips as the deployment allows; replies stand in the items' order.

        Items whose keys share a hash tag are carried out in the order given. Others may overtake each other, unless
        ``in_order`` is set: then an item is not even sent before all items before it have succeeded, or have been sent
        ahead of it to the same server.

        Error replies, and replies that were lost or did not come in time, are returned in place, translated
        (`StoreUnavailableError` where it applies); what was answered before stands.
        ``block_seconds`` is how long the server may hold the reply back by request.

        Raises:
            StoreUnavailableError: nothing was sent.
        """

    async def read_streams(self, positions: Mapping[str, str], *, count: int, block_seconds: float) -> Streams:
        """Wait until any of the streams has entries behind its position; at most ``count`` of each.

        One caller at a time. Nothing within ``block_seconds`` is an empty answer. A cancelled read has lost nothing:
        positions are the caller's.

        Raises:
            StoreUnavailableError: none of the streams can be read now.
        """
