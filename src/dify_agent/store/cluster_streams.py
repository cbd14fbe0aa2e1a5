"""Waiting for news of many streams on a cluster.

One blocking XREAD may only name streams of one slot there, even on one node (CROSSSLOT), so a blocking read of many
runs would hold a connection for each run. Instead each node with streams has one connection on which the server tracks
what was read (CLIENT TRACKING): streams are read without blocking, and when one changes the server says so, once, and
it is read again. Waiting costs neither polling nor anything of the writers, and a node has one connection for all
streams.

The readers of nodes outlive the calls. A call only says which streams it wants from where, and takes what is there;
so a cancelled call breaks no connection and loses nothing, and a slow node holds up no other's news. A stream whose
news have not been taken yet is not read any further.

- No lost wake-up: a stream counts as unchanged from *before* its read is sent; a notice that comes at any time after
  that, before or behind the reply, has it read once more.
- A moving slot: MIGRATE deletes the key at the source, which is a change. Answered ASK, the stream is polled where
  it is going until the slot has moved; answered MOVED, it goes to the reader of the other node.
- A safety net reads everything again every few seconds: a stream that does not exist yet can move without a notice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import trio
from coredis.connection import BaseConnection
from coredis.exceptions import AskError, AuthorizationError, MovedError
from coredis.exceptions import ConnectionError as CoredisConnectionError

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.connections import Connections, exchange_on
from dify_agent.store.executor import Command, Item, Lane, Reply, Streams
from dify_agent.store.faults import translate
from dify_agent.store.slots import Address, key_slot

RECHECK_SECONDS: Final = 5.0
"""Age at which a stream is read again although nothing was heard of it."""
POLL_SECONDS: Final = 0.1
"""The same while its slot moves, and where the server refuses to track (an ACL)."""
PACE_SECONDS: Final = 0.005
"""Pause of a node's reader after a read that brought entries: each read looks through all streams, so many small ones
cost more than their entries."""
RETRY_SECONDS: Final = 0.5
"""Before a node is tried again."""


class Cluster(Protocol):
    """What the readers need of the cluster's connections."""

    async def execute(
        self, items: Sequence[Item], *, lane: Lane, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        """As of the port: follows ASK."""

    def owner(self, slot: int) -> Address | None:
        """The node that serves a slot."""

    def node(self, address: Address) -> Connections:
        """The connections to a node."""

    def moved(self, error: MovedError, asked: Address) -> None:
        """Take over a MOVED."""

    def refresh(self) -> None:
        """Have the map of slots read again."""


@dataclass(slots=True, eq=False)
class _Stream:
    key: str
    slot: int
    after: str
    """Position behind which the next entry is wanted."""
    entries: list[Any] | None = None
    """What came behind ``after`` and was not taken yet."""
    unchanged_on: BaseConnection | None = None
    """The connection that read all there was, and has said nothing since."""
    due_at: float = 0.0
    """When it is read again in any case."""


class ClusterStreams:
    """The wanted streams, and a reader for each node that has some."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery, timeout: float) -> None:
        self._cluster = cluster
        self._nursery = nursery
        self._timeout = timeout
        self._count = 1
        self._wanted: dict[bytes, _Stream] = {}
        self._readers: set[Address] = set()
        self._failing: dict[Address | None, StoreUnavailableError] = {}
        self._mistake: Exception | None = None
        """An error that no repetition would mend; the caller gets it."""
        self._changed = trio.lowlevel.ParkingLot()
        """Readers wait here: something is wanted or routed otherwise, or was heard of."""
        self._news = trio.lowlevel.ParkingLot()
        """The caller waits here."""

    async def read(self, positions: Mapping[str, str], *, count: int, block_seconds: float) -> Streams:
        """See the port."""
        self._count = count
        self._want(positions)
        found: Streams = {}
        with trio.move_on_after(block_seconds):
            while not (found := self._take()):
                self._start_readers()
                self._check_health()
                await self._news.park()
        # What came in the very moment in which the time was up is taken by the next call.
        return found

    def rerouted(self) -> None:
        """The map of slots has changed."""
        self._changed.unpark_all()
        self._news.unpark_all()

    # The caller's side.

    def _want(self, positions: Mapping[str, str]) -> None:
        wanted = {key.encode("utf-8", "surrogatepass"): (key, after) for key, after in positions.items()}
        for name in self._wanted.keys() - wanted.keys():
            del self._wanted[name]
        for name, (key, after) in wanted.items():
            stream = self._wanted.get(name)
            if stream is None:
                self._wanted[name] = _Stream(key, key_slot(key), after)
            elif stream.after != after:
                stream.after, stream.entries, stream.unchanged_on = after, None, None
        self._changed.unpark_all()

    def _take(self) -> dict[bytes, Any]:
        found = {}
        for name, stream in self._wanted.items():
            if stream.entries is not None:
                found[name] = stream.entries
                stream.after, stream.entries = stream.entries[-1][0].decode(), None
        if found:
            self._changed.unpark_all()
        return found

    def _start_readers(self) -> None:
        self._failing.pop(None, None)
        for address in {self._cluster.owner(stream.slot) for stream in self._wanted.values()}:
            if address is None:
                self._failing[None] = StoreUnavailableError("a hash slot is not served", sent=False)
                self._cluster.refresh()
            elif address not in self._readers:
                self._readers.add(address)
                self._nursery.start_soon(self._serve, address)

    def _check_health(self) -> None:
        """Raise when no stream can be read: an outage must not look like silence."""
        if self._mistake is not None:
            mistake, self._mistake = self._mistake, None
            raise mistake
        owners = {self._cluster.owner(stream.slot) for stream in self._wanted.values()}
        if owners and all(owner in self._failing for owner in owners):
            raise self._failing[owners.pop()]

    # A node's reader.

    async def _serve(self, address: Address) -> None:
        """Read the node's streams for as long as it has some."""
        try:
            while self._streams_of(address):
                cause = await self._read_node(address)
                if cause is not None:
                    self._failing[address] = cause
                    self._cluster.refresh()
                    self._news.unpark_all()
                    await trio.sleep(RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - the caller's to judge; other users of the store go on
            self._mistake = error
        finally:
            self._readers.discard(address)
            self._failing.pop(address, None)
            self._news.unpark_all()

    def _streams_of(self, address: Address) -> list[_Stream]:
        return [stream for stream in self._wanted.values() if self._cluster.owner(stream.slot) == address]

    async def _read_node(self, address: Address) -> StoreUnavailableError | None:
        """Read on one connection until it breaks (the cause is returned) or the node has no streams any more."""
        cause: StoreUnavailableError | None = StoreUnavailableError(f"no connection within {self._timeout:g} s")
        with trio.move_on_after(self._timeout) as connecting:
            try:
                async with self._cluster.node(address).lend(Lane.SERVICES) as connection:
                    recheck = await _start_tracking(connection)
                    connecting.deadline = math.inf
                    cause = await self._read_until_lost(connection, address, recheck)
            except StoreUnavailableError as error:
                cause = error
        return cause

    async def _read_until_lost(
        self, connection: BaseConnection, address: Address, recheck: float
    ) -> StoreUnavailableError | None:
        cause: StoreUnavailableError | None = StoreUnavailableError("the connection was lost")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, connection, nursery.cancel_scope)
                cause = await self._read_on(connection, address, recheck)
                nursery.cancel_scope.cancel(reason="nothing more to listen for")
        finally:
            connection.invalidate("the server tracks for it")
        return cause

    async def _listen(self, connection: BaseConnection, reading: trio.CancelScope) -> None:
        """Note which streams have changed, for as long as the connection lives."""
        with suppress(CoredisConnectionError):
            async for message in connection.push_messages:
                if message[0] == b"invalidate":
                    self._note_changes(cast("Iterable[bytes] | None", message[1]))
        reading.cancel(reason="the connection was lost")

    def _note_changes(self, names: Iterable[bytes] | None) -> None:
        # No names: everything was flushed.
        known = (self._wanted.get(name) for name in (self._wanted if names is None else names))
        changed = [stream for stream in known if stream is not None]
        for stream in changed:
            stream.unchanged_on = None
        if any(stream.entries is None for stream in changed):
            self._changed.unpark_all()

    async def _read_on(
        self, connection: BaseConnection, address: Address, recheck: float
    ) -> StoreUnavailableError | None:
        while streams := self._streams_of(address):
            waiting = [stream for stream in streams if stream.entries is None]
            now = trio.current_time()
            due = [each for each in waiting if each.unchanged_on is not connection or each.due_at <= now]
            if due:
                cause = await self._read_due(due, connection, address, now + recheck)
                if cause is not None:
                    return cause
                self._failing.pop(address, None)
                if any(stream.entries is not None for stream in due):
                    await trio.sleep(PACE_SECONDS)
            else:
                with trio.move_on_at(min((stream.due_at for stream in waiting), default=math.inf)):
                    await self._changed.park()
        return None

    async def _read_due(
        self, due: Sequence[_Stream], connection: BaseConnection, address: Address, due_at: float
    ) -> StoreUnavailableError | None:
        """Read each of the streams once: one write. Returns what makes the connection useless, if something does."""
        for stream in due:
            stream.unchanged_on, stream.due_at = connection, due_at
        reads = [Command(b"XREAD", ("COUNT", self._count, "STREAMS", stream.key, stream.after)) for stream in due]
        positions = [stream.after for stream in due]
        replies: list[Reply] = [StoreUnavailableError(f"no answer within {self._timeout:g} s")] * len(due)
        with trio.move_on_after(self._timeout):
            await exchange_on(connection, dict(enumerate(reads)), replies)
        for stream, read, position, reply in zip(due, reads, positions, replies, strict=True):
            answer = reply
            if isinstance(reply, MovedError):
                self._cluster.moved(reply, address)
            if isinstance(reply, AskError):  # includes MovedError
                answer = await self._read_elsewhere(stream, read)
            if isinstance(answer, Exception):
                cause = translate(answer)
                if isinstance(cause, StoreUnavailableError):
                    return cause
                self._mistake = cause
                self._news.unpark_all()
            elif answer and stream.after == position:
                self._put(stream, cast("Streams", answer))
        return None

    async def _read_elsewhere(self, stream: _Stream, read: Command) -> Reply:
        """Follow a redirection, for this read; the next one comes soon, here or from the reader of the other node."""
        stream.due_at = trio.current_time() + POLL_SECONDS
        self._news.unpark_all()
        try:
            (reply,) = await self._cluster.execute([read], lane=Lane.ROUTES)
        except StoreUnavailableError:
            return None
        return None if isinstance(reply, StoreUnavailableError) else reply

    def _put(self, stream: _Stream, answer: Streams) -> None:
        (stream.entries,) = answer.values()
        if len(stream.entries) >= self._count:
            stream.unchanged_on = None  # there may be more behind them
        self._news.unpark_all()


async def _start_tracking(connection: BaseConnection) -> float:
    """Have the server say what changes; returns the age at which a stream is to be read again."""
    replies: list[Reply] = [None]
    await exchange_on(connection, {0: Command(b"CLIENT", ("TRACKING", "ON"))}, replies)
    if isinstance(replies[0], Exception):
        cause = translate(replies[0])
        if isinstance(cause, StoreUnavailableError) and not isinstance(replies[0], AuthorizationError):
            raise cause
        return POLL_SECONDS
    return RECHECK_SECONDS
