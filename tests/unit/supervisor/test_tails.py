"""Tails: from memory, from the store, from one to the other and back, without losing or repeating an event."""

from collections.abc import AsyncIterator, Callable

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import event, record
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.tail_hub import TailHub
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import Owner, StoredEvent
from dify_agent.supervisor.handle import TailBatch
from dify_agent.supervisor.tails import PAGE, LogTail

RUN = "run"
END = "run_succeeded"


class Fixture:
    """A run in the store and, for a local run, its window."""

    def __init__(self, *, local: bool, window_bytes: int = 1 << 20) -> None:
        self.store = FakeStore()
        self.run = self.store.runs[RUN] = FakeRun(record(RUN), Owner("me", 1))
        self.live = LiveLog(window_bytes) if local else None
        self.drain = trio.Event()
        self.hub = TailHub(self.store, Owner("me", 1))

    def tail(self, after: EventId = START) -> LogTail:
        return LogTail(self.store, self.hub, RUN, after, live=self.live, first=None, drain=self.drain)

    def write(self, *events: StoredEvent) -> None:
        self.run.events.extend(events)
        if events[-1].is_terminal:
            self.run.record = self.run.record.model_copy(update={"status": "succeeded"})
        self.store.appended.unpark_all()
        if self.live is not None:
            self.live.extend(events)

    def end_streams(self) -> None:
        """As the supervisor does it at the end of a drain."""
        self.drain.set()
        self.hub.close()


Make = Callable[..., Fixture]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds fixtures whose hubs run until the test ends."""
    async with trio.open_nursery() as hubs:

        def factory(*, local: bool, window_bytes: int = 1 << 20) -> Fixture:
            fixture = Fixture(local=local, window_bytes=window_bytes)
            hubs.start_soon(fixture.hub.serve)
            hubs.start_soon(fixture.hub.ring)
            return fixture

        yield factory
        hubs.cancel_scope.cancel()


async def read_to_end(tail: LogTail) -> tuple[list[int], TailBatch]:
    """The ordinals of everything up to the end, and the last batch."""
    seen: list[int] = []
    while True:
        batch = await tail.next()
        seen.extend(e.id.n for e in batch.events)
        if batch.end is not None:
            return seen, batch


@pytest.mark.parametrize("local", [True, False])
async def test_reads_everything_and_ends_with_the_terminal(autojump_clock: MockClock, make: Make, local: bool) -> None:
    f = make(local=local)
    f.write(*(event(n) for n in range(1, 2 * PAGE)), event(2 * PAGE, END))
    seen, last = await read_to_end(f.tail())
    assert seen == list(range(1, 2 * PAGE + 1))
    assert last.end == "terminal"
    assert last.events, "the terminal event comes with its end"
    assert f.store.calls["read_events"] == (0 if local else 2)


@pytest.mark.parametrize("local", [True, False])
async def test_follows_events_as_they_come(autojump_clock: MockClock, make: Make, local: bool) -> None:
    f = make(local=local)
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            for n in range(1, 6):
                await trio.sleep(1)
                f.write(event(n, END if n == 5 else "pydantic_ai_event"))

        nursery.start_soon(write)
        tail, began = f.tail(), trio.current_time()
        for n in range(1, 6):
            batch = await tail.next()
            assert [e.id.n for e in batch.events] == [n]
            late = trio.current_time() - began - n
            assert late <= 1e-6


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("cursor", [EventId(1, 3), EventId(1, 4), EventId(9, 9), EventId((1 << 64) - 1, (1 << 64) - 1)])
async def test_a_cursor_at_or_behind_the_terminal_ends_at_once(
    autojump_clock: MockClock, make: Make, local: bool, cursor: EventId
) -> None:
    f = make(local=local)
    f.write(event(1), event(2), event(3, END))
    if f.live is not None:
        f.live.close()
    began = trio.current_time()
    assert await f.tail(cursor).next() == TailBatch(end="terminal")
    assert trio.current_time() == began


async def test_asked_again_after_its_end_it_ends_again(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=True)
    f.write(event(1, END))
    assert f.live is not None
    f.live.close()
    tail = f.tail()
    assert (await tail.next()).end == "terminal"
    assert await tail.next() == TailBatch(end="terminal")


@pytest.mark.parametrize("local", [True, False])
async def test_a_future_cursor_waits_and_then_ends_with_the_run(
    autojump_clock: MockClock, make: Make, local: bool
) -> None:
    f = make(local=local)
    f.write(event(1))
    tail = f.tail(EventId(99, 1))
    with trio.move_on_after(100) as scope:
        await tail.next()
    assert scope.cancelled_caught
    f.write(event(2), event(3, END))
    if f.live is not None:
        f.live.close()
    assert await tail.next() == TailBatch(end="terminal")


async def test_a_reader_behind_the_window_goes_to_the_store_and_comes_back(
    autojump_clock: MockClock, make: Make
) -> None:
    one = len(event(1).payload)
    f = make(local=True, window_bytes=10 * one)
    f.write(*(event(n) for n in range(1, 251)))
    tail = f.tail()
    seen: list[int] = []
    while len(seen) < 250:
        seen.extend(e.id.n for e in (await tail.next()).events)
    from_store = f.store.calls["read_events"]
    assert from_store == 3
    for n in range(251, 400):
        f.write(event(n))
        seen.extend(e.id.n for e in (await tail.next()).events)
    f.write(event(400, END))
    rest, _ = await read_to_end(tail)
    assert seen + rest == list(range(1, 401))
    assert f.store.calls["read_events"] == from_store


async def test_trimmed_events_are_counted_once(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.write(*(event(n) for n in range(11, 15)), event(15, END))
    batch = await f.tail().next()
    assert (batch.trimmed, [e.id.n for e in batch.events]) == (10, [11, 12, 13, 14, 15])
    assert (await f.tail(EventId(1, 4)).next()).trimmed == 6
    assert (await f.tail(EventId(1, 10)).next()).trimmed == 0
    assert (await f.tail(EventId(1, 12)).next()).trimmed == 0
    assert (await f.tail(EventId(1, 0)).next()).trimmed == 0, "a cursor that is no event's id tells nothing"


async def test_a_gap_in_the_middle_is_counted_where_it_is(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.write(event(1), event(2))
    tail = f.tail()
    assert (await tail.next()).trimmed == 0
    f.write(event(6), event(7, END))
    assert (await tail.next()).trimmed == 3


@pytest.mark.parametrize("local", [True, False])
async def test_an_expired_record_ends_the_tail(autojump_clock: MockClock, make: Make, local: bool) -> None:
    f = make(local=local)
    f.write(event(1))
    tail = f.tail()
    await tail.next()
    del f.store.runs[RUN]
    if f.live is not None:
        f.live.close()
    assert await tail.next() == TailBatch(end="expired")


async def test_a_store_outage_is_waited_out(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.write(event(1))
    tail = f.tail()
    await tail.next()
    f.store.down = True

    async def mend() -> None:
        await trio.sleep(90)
        f.write(event(2), event(3, END))
        f.store.down = False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        seen, last = await read_to_end(tail)
    assert seen == [2, 3]
    assert last.end == "terminal"


async def test_a_store_outage_does_not_touch_a_reader_in_memory(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=True)
    f.store.down = True
    f.write(event(1), event(2, END))
    assert [e.id.n for e in (await f.tail().next()).events] == [1, 2]


async def test_drain_ends_tails_of_other_replicas_runs(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.write(event(1))
    tail = f.tail()
    await tail.next()
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            await trio.sleep(5)
            f.end_streams()

        nursery.start_soon(drain)
        began = trio.current_time()
        assert await tail.next() == TailBatch(end="drain")
        assert trio.current_time() - began == pytest.approx(5)


async def test_drain_delivers_what_there_is_before_it_ends(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.end_streams()
    f.write(event(1), event(2))
    tail = f.tail()
    assert [e.id.n for e in (await tail.next()).events] == [1, 2]
    assert await tail.next() == TailBatch(end="drain")


async def test_drain_during_an_outage_ends_too(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.store.down = True
    f.end_streams()
    with trio.fail_after(1):
        assert await f.tail().next() == TailBatch(end="drain")


async def test_drain_leaves_a_local_run_its_terminal(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=True)
    f.end_streams()
    f.write(event(1))
    tail = f.tail()
    await tail.next()
    async with trio.open_nursery() as nursery:

        async def finish() -> None:
            await trio.sleep(1)
            f.write(event(2, END))

        nursery.start_soon(finish)
        assert (await tail.next()).end == "terminal"


@pytest.mark.parametrize("local", [True, False])
async def test_cancelling_next_at_any_moment_loses_nothing(autojump_clock: MockClock, make: Make, local: bool) -> None:
    one = len(event(1).payload)
    f = make(local=local, window_bytes=5 * one)
    seen: list[int] = []
    last: TailBatch | None = None
    tail = f.tail()

    async def write() -> None:
        for n in range(1, 201):
            f.write(event(n, END if n == 200 else "pydantic_ai_event"))
            await trio.sleep(0.013 if n % 20 else 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while last is None or last.end is None:
            with trio.move_on_after(0.007):
                last = await tail.next()
                seen.extend(e.id.n for e in last.events)
            await trio.sleep(0.003)
    assert seen == list(range(1, 201))


async def test_the_page_read_on_opening_survives_a_cancelled_first_next(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    page = await f.store.read_events(RUN, START, PAGE)
    tail = LogTail(f.store, f.hub, RUN, START, live=None, first=page, drain=f.drain)
    with trio.move_on_after(0.1):
        await tail.next()
    f.write(event(1, END))
    assert [e.id.n for e in (await tail.next()).events] == [1]


async def test_slow_readers_share_one_window(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=True)
    tails = [f.tail() for _ in range(1000)]
    for tail in tails:
        with trio.move_on_after(0):
            await tail.next()
    f.write(*(event(n) for n in range(1, 51)))
    await wait_all_tasks_blocked()
    batches = [await tail.next() for tail in tails]
    assert all(batch.events[0] is f.run.events[0] for batch in batches)
    assert f.store.calls["read_events"] == 0


async def test_a_run_that_was_given_up_is_followed_in_the_store(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=True)
    f.write(event(1))
    tail = f.tail()
    await tail.next()
    assert f.live is not None
    f.live.close()
    f.run.events.append(event(2, "run_failed"))
    f.run.record = f.run.record.model_copy(update={"status": "failed"})
    batch = await tail.next()
    assert ([e.id.n for e in batch.events], batch.end) == ([2], "terminal")


async def test_one_read_serves_all_readers_of_all_remote_runs(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.store.runs["other"] = FakeRun(record("other"), Owner("them", 1))
    tails = [f.tail() for _ in range(50)]
    other = LogTail(f.store, f.hub, "other", START, live=None, first=None, drain=f.drain)
    got: list[int] = []

    async def read(tail: LogTail) -> None:
        got.extend(e.id.n for e in (await tail.next()).events)

    async with trio.open_nursery() as nursery:
        for tail in (*tails, other):
            nursery.start_soon(read, tail)
        await wait_all_tasks_blocked()
        assert len(f.hub) == 2
        assert f.store.reading == 1, "one blocking read for the process"
        f.store.runs["other"].events.append(event(7))
        f.write(event(1))
    assert sorted(got) == [1] * 50 + [7]
    for tail in (*tails, other):
        tail.close()
        tail.close()
    assert len(f.hub) == 0


async def test_a_run_that_joins_during_a_read_wakes_it(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.store.runs["other"] = FakeRun(record("other"), Owner("them", 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.tail().next)
        await wait_all_tasks_blocked()
        other = LogTail(f.store, f.hub, "other", START, live=None, first=None, drain=f.drain)
        began = trio.current_time()
        nursery.start_soon(other.next)
        await wait_all_tasks_blocked()
        f.store.runs["other"].events.append(event(1, END))
        f.write(event(1, END))
    assert trio.current_time() == began
    assert f.store.calls["ring_doorbell"] == 1


async def test_an_ordinary_cursor_joins_one_from_the_future(autojump_clock: MockClock, make: Make) -> None:
    f = make(local=False)
    f.write(event(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.tail(EventId(99, 1)).next)
        await wait_all_tasks_blocked()
        tail = f.tail(EventId(1, 1))

        async def write() -> None:
            await trio.sleep(1)
            f.write(event(2))

        nursery.start_soon(write)
        with trio.fail_after(2):
            assert [e.id.n for e in (await tail.next()).events] == [2]
        nursery.cancel_scope.cancel()


async def test_a_store_that_lost_what_the_window_dropped_is_not_asked_without_a_pause(
    autojump_clock: MockClock,
) -> None:
    f = Fixture(local=True, window_bytes=1)
    f.write(event(1), event(2), event(3))
    f.run.events.clear()
    with trio.move_on_after(10) as scope:
        await f.tail().next()
    assert scope.cancelled_caught
    assert f.store.calls["read_events"] < 30


async def test_a_read_begun_further_on_takes_nothing_from_a_reader_that_joined(
    autojump_clock: MockClock, make: Make
) -> None:
    f = make(local=False)
    f.write(event(1))

    async def append_before_the_bell(name: str) -> None:
        if name == "ring_doorbell":
            f.write(*(event(n) for n in range(2, 8)))
            await wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.tail(EventId(1, 5)).next)
        await wait_all_tasks_blocked()
        f.store.before = append_before_the_bell
        with trio.fail_after(20):
            batch = await f.tail(EventId(1, 1)).next()
        nursery.cancel_scope.cancel()
    assert (batch.trimmed, [e.id.n for e in batch.events]) == (0, [2, 3, 4, 5, 6, 7])
