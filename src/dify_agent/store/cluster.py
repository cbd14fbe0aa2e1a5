"""A Redis Cluster: items go to the nodes that serve their keys, one write per node, all nodes at once.

Redirections are followed: MOVED corrects the map of slots and asks for a new one, ASK is followed for this one time.
What passes by itself within moments (TRYAGAIN while a slot moves, CLUSTERDOWN, LOADING) is tried again a few times, in
less than half a second: the publisher has one round trip in flight for all runs and patience of its own. A node that
is away costs the items of its slots and nobody else's: one that refuses connections fails at once, and one that does
not answer is asked nothing more until it answers a probe. Silence is only what lasted a fair time: an exchange that had
less left of its own, or was given up by its caller, has the node examined.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, cast

import trio
from coredis.exceptions import AskError, BusyLoadingError, ClusterDownError, MovedError, TryAgainError

from dify_agent.concurrency.groups import plain_cancellation
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.advice import advice_on
from dify_agent.store.cluster_streams import ClusterStreams
from dify_agent.store.connections import (
    Connections,
    NoAnswerError,
    NoConnectionError,
    contain,
    server_dial,
)
from dify_agent.store.executor import ROUTE_CONNECTIONS, Call, Command, Item, Lane, Reply, Streams, lane_limits
from dify_agent.store.faults import translate
from dify_agent.store.slots import Address, SlotMap, key_slot
from dify_agent.store.tls import tls_context
from dify_agent.store.urls import StoreUrl

PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds before each further try of what passes by itself."""
PROBE_SECONDS: Final = 0.2
"""Pause before a silent node is probed again."""
FAIR_SECONDS: Final = 1.0
"""How long a node must have had for an answer to count as silent; half of the time limit, if that is less."""
NEXT_SECONDS: Final = 0.1
"""What any node can answer is asked of the next one after so long. A node whose answer was given up after that time is
examined."""
REFRESH_SECONDS: Final = 0.1
"""Between two looks at the map of slots: a node that is away is noticed by many callers."""

_SHORT = (AskError, TryAgainError, ClusterDownError, BusyLoadingError)  # AskError includes MovedError


class ClusterConnections:
    """`dify_agent.store.executor.Executor` on a cluster. Limits of connections are those of each node."""

    def __init__(self, nursery: trio.Nursery, url: StoreUrl, *, limit: int, timeout: float) -> None:
        self._nursery = nursery
        self._url = url
        self._tls = tls_context(url)
        self._limits = {**lane_limits(limit), Lane.ROUTES: ROUTE_CONNECTIONS}
        self._timeout = timeout
        self._nodes: dict[Address, Connections] = {}
        self._slots: SlotMap | None = None
        self._mapping = trio.Lock()
        self._refreshing = False
        self._fair_seconds = min(FAIR_SECONDS, timeout / 2)
        self._silent: set[Address] = set()
        self._examined: set[Address] = set()
        """Nodes that are asked for a sign of life: the silent ones, and those that may be."""
        self._streams = ClusterStreams(self, nursery, timeout)

    async def execute(
        self, items: Sequence[Item], *, lane: Lane = Lane.REQUESTS, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        """See the port. Items without a key are carried out by any node that answers."""
        if not in_order:
            return await self._execute(items, lane, block_seconds)
        replies: list[Reply] = []
        for _, part in groupby(items, lambda item: None if item.key is None else key_slot(item.key)):
            if any(isinstance(reply, Exception) for reply in replies):
                replies += [StoreUnavailableError("not tried: what comes before it failed", sent=False) for _ in part]
            else:
                replies += await self._execute(list(part), lane, block_seconds)
        return replies

    async def read_streams(self, positions: Mapping[str, str], *, count: int, block_seconds: float) -> Streams:
        """See the port."""
        await self._known_slots()
        return await self._streams.read(positions, count=count, block_seconds=block_seconds)

    # What the streams' readers ask as well.

    def owner(self, slot: int) -> Address | None:
        """The node that serves a slot, as far as is known."""
        return None if self._slots is None else self._slots.owner(slot)

    def node(self, address: Address) -> Connections:
        """The connections to a node."""
        if address not in self._nodes:
            dial = server_dial(self._url, address, self._timeout, self._tls)
            self._nodes[address] = Connections(
                self._nursery, dial, limits=self._limits, timeout=self._timeout, url=self._url
            )
        return self._nodes[address]

    def moved(self, error: MovedError, asked: Address) -> None:
        """Take over a MOVED, and have the whole map read again: slots seldom move alone."""
        address = _named(error, asked)
        if self._slots is not None:
            self._slots.move(error.slot_id, address)
        self.refresh(address)

    def refresh(self, first: Address | None = None) -> None:
        """Have the map of slots read again soon, from ``first`` if it answers."""
        if not self._refreshing:
            self._refreshing = True
            self._nursery.start_soon(contain, partial(self._refresh, first))

    # Items to nodes.

    async def _execute(self, items: Sequence[Item], lane: Lane, block_seconds: float) -> list[Reply]:
        slots = await self._known_slots()
        if any(item.key is None for item in items):
            return await self._anywhere(items, slots, lane)
        trip = _Trip(items, lane, self._timeout, block_seconds)
        routes = {i: slots.owner(slot) for i, slot in enumerate(trip.slots)}
        for tries in range(len(PAUSES) + 1):
            await self._send(trip, routes)
            routes, patient = self._redirected(trip, routes)
            if not routes:
                break
            # A redirection needs no patience; one that leads to the next does: the nodes have not agreed yet.
            pause = PAUSES[min(tries, len(PAUSES) - 1)] if patient or tries else 0
            if tries == len(PAUSES) or pause >= trip.left():
                break
            await trio.sleep(pause)
            if block_seconds:
                trip.restart()  # the wait begins anew where the stream is now
        return [_final(reply) for reply in trip.replies]

    async def _send(self, trip: "_Trip", routes: dict[int, Address | None]) -> None:
        """Send each item of ``routes`` to its node, all nodes at once."""
        groups: dict[Address, list[int]] = {}
        for i, address in routes.items():
            if address is None:
                trip.replies[i] = ClusterDownError("Hash slot not served")
            else:
                groups.setdefault(address, []).append(i)
        if len(groups) == 1:
            ((address, places),) = groups.items()
            await self._ask(address, trip, places)
            return
        with plain_cancellation():
            async with trio.open_nursery() as nursery:
                for address, places in groups.items():
                    nursery.start_soon(self._ask, address, trip, places)

    async def _ask(self, address: Address, trip: "_Trip", places: Sequence[int]) -> None:
        """Exchange with one node. Never raises for a fault of the node: each of the items gets the error."""
        if address in self._silent:
            trip.fill(places, StoreUnavailableError(f"{_text(address)} does not answer", sent=False))
            return
        sent: list[Item] = []
        for i in places:
            item = trip.items[i]
            # Without the script's digest: asking again by source would need a second ASKING.
            sent += [Command(b"ASKING"), _whole(item)] if i in trip.asking else [item]
        began = trio.current_time()
        try:
            replies = await self.node(address).exchange(sent, lane=trip.lane, seconds=trip.left(), stated=trip.seconds)
        except StoreUnavailableError as error:
            trip.fill(places, error)
            self._note_absence(address, trip, error)
            return
        except trio.Cancelled:
            # Given up by the caller: often, by callers with little patience, and then no exchange has its whole time.
            if trio.current_time() - began >= trip.block_seconds + NEXT_SECONDS:
                self._examine(address)
            raise
        answers = iter(replies)
        for i in places:
            if i in trip.asking:
                next(answers)
            trip.replies[i] = next(answers)
        if replies and all(isinstance(reply, NoAnswerError) for reply in replies):
            self._note_absence(address, trip, cast("NoAnswerError", replies[0]))

    def _redirected(self, trip: "_Trip", routes: dict[int, Address | None]) -> tuple[dict[int, Address | None], bool]:
        """Items to send again and where to, and whether that needs a pause."""
        again: dict[int, Address | None] = {}
        patient = False
        trip.asking.clear()
        for i, asked in routes.items():
            reply = trip.replies[i]
            if isinstance(reply, MovedError) and asked is not None:
                self.moved(reply, asked)
                again[i] = self.owner(trip.slots[i])
            elif isinstance(reply, AskError) and asked is not None:
                again[i] = _named(reply, asked)
                trip.asking.add(i)
            elif isinstance(reply, _SHORT):
                again[i] = self.owner(trip.slots[i])
                patient = True
                if isinstance(reply, ClusterDownError):
                    self.refresh()
        return again, patient

    async def _anywhere(self, items: Sequence[Item], slots: SlotMap, lane: Lane) -> list[Reply]:
        """Ask one node after the other, and give the first sound answers, or else those with the fewest errors.

        The next one is asked when one has failed or takes long. Not all at once: an exchange that is called off costs
        its connection.
        """
        answers: list[list[Reply]] = []

        async def ask(address: Address, failed: trio.Event) -> None:
            trip = _Trip(items, lane, self._timeout)
            await self._ask(address, trip, range(len(items)))
            answers.append([_final(reply) for reply in trip.replies])
            if _errors(answers[-1]):
                failed.set()
            else:
                nursery.cancel_scope.cancel(reason="another node has answered")

        with plain_cancellation():
            async with trio.open_nursery() as nursery:
                for address in sorted(slots.nodes, key=lambda node: (node in self._examined, node)):
                    failed = trio.Event()
                    nursery.start_soon(ask, address, failed)
                    with trio.move_on_after(NEXT_SECONDS):
                        await failed.wait()
        return min(answers, key=_errors)

    # Who serves what, and who is away.

    async def _known_slots(self) -> SlotMap:
        if self._slots is None:
            with trio.move_on_after(self._timeout):  # the wait for others who ask included
                async with self._mapping:
                    if self._slots is None:
                        await self._read_slots(None)
        if self._slots is None:
            raise StoreUnavailableError(f"no connection within {self._timeout:g} s", sent=False)
        return self._slots

    async def _refresh(self, first: Address | None) -> None:
        try:
            await self._read_slots(first)
            await trio.sleep(REFRESH_SECONDS)
        except StoreUnavailableError:
            await trio.sleep(REFRESH_SECONDS)  # the old map stays; whoever meets its errors asks again
        finally:
            self._refreshing = False

    async def _read_slots(self, first: Address | None) -> None:
        """Take the map from the first node that has one: ``first``, those known, those of the URL.

        Raises:
            StoreUnavailableError: none has.
        """
        known = [] if self._slots is None else random.sample(sorted(self._slots.nodes), len(self._slots.nodes))
        candidates = list(dict.fromkeys([*([] if first is None else [first]), *known, *self._url.hosts]))
        causes: list[str] = []
        advice: str | None = None
        for address in candidates:
            if address in self._silent:
                continue
            try:
                self._slots = await self._slots_from(address, self._timeout / len(candidates))
            except StoreUnavailableError as error:
                causes.append(f"{_text(address)}: {error.cause}")
                advice = advice or error.advice
            else:
                self._forget_nodes(self._slots.nodes)
                self._streams.rerouted()
                return
        cause = f"no node of DIFY_AGENT_REDIS_URL answered: {'; '.join(causes)}"
        raise StoreUnavailableError(cause, sent=False, advice=advice)

    async def _slots_from(self, address: Address, seconds: float) -> SlotMap:
        (reply,) = await self.node(address).exchange(
            [Command(b"CLUSTER", ("SLOTS",))], lane=Lane.ROUTES, seconds=seconds
        )
        if isinstance(reply, Exception):
            error = translate(reply)
            if isinstance(error, StoreUnavailableError):
                raise error
            raise StoreUnavailableError(str(error), sent=False, advice=advice_on(error))
        try:
            slots = SlotMap.parse(reply, address)
        except ValueError as error:
            raise StoreUnavailableError(str(error), sent=False) from None
        if not slots.nodes:
            raise StoreUnavailableError("it knows of no slots", sent=False)
        return slots

    def _forget_nodes(self, current: Iterable[Address]) -> None:
        for address in self._nodes.keys() - set(current):
            self._nodes.pop(address).discard()

    def _note_absence(self, address: Address, trip: "_Trip", error: StoreUnavailableError) -> None:
        """A node could not be reached, or did not answer: its replica may have taken over."""
        waited = error.waited if isinstance(error, NoConnectionError | NoAnswerError) else 0.0
        if waited is None:  # for other callers, not for the node
            return
        self.refresh()
        if waited >= trip.block_seconds + self._fair_seconds:
            self._silent.add(address)
            self._examine(address)
        elif waited:
            self._examine(address)

    def _examine(self, address: Address) -> None:
        """Ask a node for a sign of life."""
        if address not in self._examined:
            self._examined.add(address)
            self._nursery.start_soon(contain, partial(self._probe, address))

    async def _probe(self, address: Address) -> None:
        """Ask a node until it answers or is none of the cluster's any more; without an answer it is silent."""
        try:
            while self._slots is not None and address in self._slots.nodes:
                answers = await self._answers(address)
                if answers or (answers is None and address not in self._silent):
                    break
                self._silent.add(address)
                self.refresh()  # its replica may have taken over, and nobody else asks now
                await trio.sleep(PROBE_SECONDS)
        finally:
            self._examined.discard(address)
            self._silent.discard(address)

    async def _answers(self, address: Address) -> bool | None:
        """Whether a node answers within a fair time. None: nothing was asked."""
        ping = [Command(b"PING")]
        try:
            (reply,) = await self.node(address).exchange(ping, lane=Lane.ROUTES, seconds=self._fair_seconds)
        except NoConnectionError as error:
            return None if error.waited is None else False
        except StoreUnavailableError:
            return True  # refused: the node is not silent, it is down
        return not isinstance(reply, NoAnswerError)


class _Trip:
    """Items on their way, and what came back so far."""

    def __init__(self, items: Sequence[Item], lane: Lane, timeout: float, block_seconds: float = 0) -> None:
        self.items = items
        self.lane = lane
        self.slots = [-1 if item.key is None else key_slot(item.key) for item in items]
        self.replies: list[Reply] = [None] * len(items)
        self.asking: set[int] = set()
        """Places of items that a node has sent to another for this one time."""
        self.block_seconds = block_seconds
        self.seconds = timeout + block_seconds
        self.restart()

    def restart(self) -> None:
        self._deadline = trio.current_time() + self.seconds

    def left(self) -> float:
        return max(0.0, self._deadline - trio.current_time())

    def fill(self, places: Iterable[int], reply: Reply) -> None:
        for i in places:
            self.replies[i] = reply


def _whole(item: Item) -> Command:
    return item.by_source() if isinstance(item, Call) else item


def _named(error: AskError, asked: Address) -> Address:
    """The node that a redirection names; one that does not know its own host means the host that was asked."""
    return error.host or asked[0], error.port


def _final(reply: Reply) -> Reply:
    if isinstance(reply, _SHORT):
        return StoreUnavailableError(f"{type(reply).__name__}: {reply}")
    return translate(reply) if isinstance(reply, Exception) else reply


def _errors(replies: Sequence[Reply]) -> int:
    return sum(isinstance(reply, Exception) for reply in replies)


def _text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
