"""Where sentinels say the primary is, and what becomes of connections when they name another."""

import logging
import math
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.sentinel import WATCH_SECONDS, Primary, SentinelConnections
from dify_agent.store.slots import Address
from dify_agent.store.urls import StoreUrl, parse_store_url

OLD, NEW = ("old", 1), ("new", 2)
LOOKS = 3 * WATCH_SECONDS


class FakeSentinels:
    """What they answer, and after how long."""

    def __init__(self) -> None:
        self.answer: Address | Exception = OLD
        self.delay = 0.0

    async def ask(self) -> Address:
        answer = self.answer
        await trio.sleep(self.delay)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeConnection:
    """Not even connected: only where it would lead counts."""

    def __init__(self, _url: StoreUrl, address: Address, _timeout: float, _tls: object) -> None:
        self.address = address

    def register_connect_callback(self, _check: object) -> None:
        pass


class Watched(SentinelConnections):
    """Counts what is broken: idle connections, and lent ones as well."""

    broken = 0

    def discard(self, *, lent: bool = False) -> None:
        self.broken += lent
        super().discard(lent=lent)

    @property
    def primary(self) -> Primary:
        return self._primary

    def doubt(self) -> None:
        self._doubt()


@pytest.fixture
def sentinels() -> FakeSentinels:
    return FakeSentinels()


@pytest.fixture
async def store(sentinels: FakeSentinels, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    async with trio.open_nursery() as nursery:
        opened = Watched(nursery, parse_store_url("redis+sentinel://nowhere:1/main/0"), limit=10, timeout=2)
        monkeypatch.setattr(opened.primary, "_ask", sentinels.ask)
        monkeypatch.setattr("dify_agent.store.sentinel.new_connection", FakeConnection)
        yield opened
        nursery.cancel_scope.cancel(reason="test over")


async def dialled(store: Watched) -> Address:
    """Where the next connection leads."""
    return cast("FakeConnection", await store.primary.dial()).address


async def test_the_watch_breaks_lent_connections_when_another_is_named(
    autojump_clock: MockClock, store: Watched, sentinels: FakeSentinels
) -> None:
    assert await dialled(store) == OLD
    await trio.sleep(LOOKS)
    assert store.broken == 0
    sentinels.answer = NEW
    await trio.sleep(LOOKS)
    assert store.broken == 1
    assert await dialled(store) == NEW


@pytest.mark.parametrize("asks", ["a request", "the watch"])
async def test_so_does_a_question_after_a_doubt(
    autojump_clock: MockClock, store: Watched, sentinels: FakeSentinels, asks: str
) -> None:
    """A blocking read that was lent before the doubt would stay with the old one."""
    await dialled(store)
    sentinels.answer = NEW
    store.doubt()
    if asks == "a request":
        assert await dialled(store) == NEW
        assert store.broken == 1
    await trio.sleep(LOOKS)
    assert store.broken == 1


async def test_a_doubt_that_was_none_breaks_nothing(autojump_clock: MockClock, store: Watched) -> None:
    await dialled(store)
    store.doubt()
    await dialled(store)
    await trio.sleep(LOOKS)
    assert store.broken == 0


async def test_an_answer_older_than_a_doubt_does_not_count(
    autojump_clock: MockClock, store: Watched, sentinels: FakeSentinels
) -> None:
    """The watch asked before the failover, and is told the old one after a request was told the new."""
    await dialled(store)
    sentinels.delay = WATCH_SECONDS
    await trio.sleep(1.5 * WATCH_SECONDS)  # the watch waits for its answer
    sentinels.answer, sentinels.delay = NEW, 0
    store.doubt()
    await dialled(store)
    await trio.sleep(LOOKS)
    assert store.broken == 1
    assert await dialled(store) == NEW


async def test_nobody_is_asked_before_a_connection_was_wanted(
    autojump_clock: MockClock, store: Watched, sentinels: FakeSentinels
) -> None:
    sentinels.delay = math.inf
    await trio.sleep(LOOKS)
    sentinels.delay = 0
    assert await dialled(store) == OLD
    assert store.broken == 0


@pytest.mark.parametrize("error", [StoreUnavailableError("no sentinel answers"), ValueError("not a port")])
async def test_the_watch_goes_on_after_an_error(
    autojump_clock: MockClock,
    store: Watched,
    sentinels: FakeSentinels,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    await dialled(store)
    sentinels.answer = error
    with caplog.at_level(logging.ERROR):
        await trio.sleep(LOOKS)
    assert bool(caplog.records) == isinstance(error, ValueError), "a mistake is told, an outage is not news"
    sentinels.answer = NEW
    await trio.sleep(LOOKS)
    assert store.broken == 1
