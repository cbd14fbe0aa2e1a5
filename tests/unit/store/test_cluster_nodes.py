"""A cluster's nodes that answer late or not at all: whom that holds up, and when a node counts as silent."""

import math
from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import MockClock

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.cluster import FAIR_SECONDS, NEXT_SECONDS, ClusterConnections
from dify_agent.store.connections import NoAnswerError, NoConnectionError
from dify_agent.store.executor import Command, Item, Lane, Reply
from dify_agent.store.slots import SlotMap, key_slot
from dify_agent.store.urls import parse_store_url

TIMEOUT = 5.0
ADDRESSES = [("h", 1), ("h", 2), ("h", 3)]
SLOTS = SlotMap([(0, 5000, ("h", 1)), (5001, 10000, ("h", 2)), (10001, 16383, ("h", 3))])
PING = [Command(b"PING")]
EVERYWHERE = [Command(b"GET", (key,)) for key in ("a", "b", "c")]
"""One for each node."""


class FakeNode:
    """Answers after ``delay`` seconds. ``busy`` of them are a wait for other callers."""

    def __init__(self, delay: float = 0.001, *, busy: float = 0) -> None:
        self.delay = delay
        self.busy = busy
        self.asked = 0

    async def exchange(
        self, items: Sequence[Item], *, lane: Lane, seconds: float, stated: float | None = None
    ) -> list[Reply]:
        busy = 0 if lane is Lane.ROUTES else self.busy
        if busy >= seconds:
            await trio.sleep(seconds)
            raise NoConnectionError("crowded", waited=None)
        await trio.sleep(busy)
        self.asked += 1
        if items[0] == Command(b"CLUSTER", ("SLOTS",)):  # the map is as it was
            return [[[first, last, [host, port]] for first, last, (host, port) in ranges()]] * len(items)
        if self.delay + busy < seconds:
            await trio.sleep(self.delay)
            return [b"OK"] * len(items)
        await trio.sleep(seconds - busy)
        return [NoAnswerError("late", waited=seconds - busy)] * len(items)

    def discard(self) -> None:
        pass


def ranges() -> list[tuple[int, int, tuple[bytes, int]]]:
    return [(0, 5000, (b"h", 1)), (5001, 10000, (b"h", 2)), (10001, 16383, (b"h", 3))]


class FakeCluster(ClusterConnections):
    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery, parse_store_url("redis+cluster://h:1,h:2,h:3"), limit=10, timeout=TIMEOUT)
        self.fakes = {address: FakeNode() for address in ADDRESSES}
        self._nodes = dict(self.fakes)  # type: ignore[arg-type]
        self._slots = SLOTS

    @property
    def silent(self) -> set[tuple[str, int]]:
        return self._silent


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with trio.open_nursery() as nursery:
        yield FakeCluster(nursery)
        nursery.cancel_scope.cancel(reason="test over")


async def test_a_caller_who_asked_several_nodes_is_cancelled_plainly(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    """A group would pass by an ``except trio.Cancelled``."""
    for node in cluster.fakes.values():
        node.delay = math.inf
    for items in (EVERYWHERE, PING):
        caught: list[BaseException] = []
        with trio.move_on_after(1) as scope:
            try:
                await cluster.execute(items)
            except BaseException as error:
                caught.append(error)
                raise
        assert scope.cancelled_caught
        assert [type(error) for error in caught] == [trio.Cancelled]


async def test_any_node_will_do_for_a_ping(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    began = trio.current_time()
    assert await cluster.execute(PING) == [b"OK"]
    assert trio.current_time() - began < NEXT_SECONDS
    assert sorted(node.asked for node in cluster.fakes.values()) == [0, 0, 1]


async def test_a_ping_waits_for_no_node_that_does_not_answer(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    for address in ADDRESSES[:2]:
        cluster.fakes[address].delay = math.inf
    began = trio.current_time()
    assert await cluster.execute(PING) == [b"OK"]
    assert trio.current_time() - began < 2 * NEXT_SECONDS + 0.01
    # The first had its time and was given up; it is asked for a sign of life, and the next ping begins elsewhere.
    await trio.sleep(FAIR_SECONDS + 0.1)
    assert ADDRESSES[0] in cluster.silent
    began = trio.current_time()
    assert await cluster.execute(PING) == [b"OK"]
    assert trio.current_time() - began < NEXT_SECONDS + 0.01


async def test_a_ping_of_nodes_that_all_are_away_says_so(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    for node in cluster.fakes.values():
        node.delay = math.inf
    (reply,) = await cluster.execute(PING)
    assert isinstance(reply, StoreUnavailableError)


@pytest.mark.parametrize("items", [EVERYWHERE, PING], ids=["keys", "ping"])
async def test_a_silent_node_is_noted_although_no_caller_waits_long(
    autojump_clock: MockClock, cluster: FakeCluster, items: list[Item]
) -> None:
    for node in cluster.fakes.values():
        node.delay = math.inf
    with trio.move_on_after(2 * FAIR_SECONDS):
        await cluster.execute(items)
    await trio.sleep(FAIR_SECONDS + 0.1)
    assert cluster.silent == set(ADDRESSES)
    with trio.fail_after(0.5):
        replies = await cluster.execute(items)
    assert all(isinstance(reply, StoreUnavailableError) and not reply.sent for reply in replies)
    for node in cluster.fakes.values():
        node.delay = 0.001
    await trio.sleep(2 * FAIR_SECONDS)
    assert await cluster.execute(items) == [b"OK"] * len(items)


async def test_a_node_that_answers_within_a_fair_time_is_not_silent(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    """Neither callers of little patience nor a crowd in front of it make it so."""
    node = cluster.fakes[ADDRESSES[0]]
    node.delay = 0.9 * FAIR_SECONDS
    for _ in range(3):
        with trio.move_on_after(0.3):
            await cluster.execute(EVERYWHERE)
        assert not cluster.silent
    node.busy = TIMEOUT - 0.5 * FAIR_SECONDS
    late = [reply for reply in await cluster.execute(EVERYWHERE) if isinstance(reply, StoreUnavailableError)]
    assert [error.cause for error in late] == ["late"]
    assert not cluster.silent
    await trio.sleep(2 * FAIR_SECONDS)
    assert not cluster.silent, "it was examined, and has answered"
    node.busy = 2 * TIMEOUT
    await cluster.execute(EVERYWHERE)
    await trio.sleep(2 * FAIR_SECONDS)
    assert not cluster.silent, "nothing was asked of it"


async def test_a_blocking_read_that_is_given_up_says_nothing_of_the_node(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    node = cluster.fakes[ADDRESSES[0]]
    node.delay = math.inf
    key = next(str(item.key) for item in EVERYWHERE if SLOTS.owner(key_slot(str(item.key))) == ADDRESSES[0])
    with trio.move_on_after(20):
        await cluster.execute([Command(b"XREAD", ("STREAMS", key, "0-0"))], block_seconds=30)
    await trio.sleep(0.01)
    assert node.asked == 1
    assert not cluster.silent


async def test_a_whole_time_limit_without_an_answer_is_silence_at_once(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    cluster.fakes[ADDRESSES[0]].delay = math.inf
    await cluster.execute(EVERYWHERE)
    assert cluster.silent == {ADDRESSES[0]}
    with trio.fail_after(0.1):
        assert (await cluster.execute(EVERYWHERE)).count(b"OK") == 2
