"""The window of recent events: what it covers, what it gives, and whom it wakes."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.actors.logs import event, payload
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.live_log import LiveLog
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import StoredEvent

EVENT_BYTES = len(payload())


def window(events: int) -> LiveLog:
    """A log that keeps this many events."""
    return LiveLog(events * EVENT_BYTES)


def test_an_empty_log_covers_everything_and_gives_nothing() -> None:
    log = LiveLog()
    assert log.covers(START)
    assert log.covers(EventId(9, 9))
    assert log.after(START, 10) == ()


def test_gives_what_lies_behind_the_cursor() -> None:
    log = LiveLog()
    events = [event(n) for n in range(1, 6)]
    log.extend(events)
    assert log.after(START, 10) == tuple(events)
    assert log.after(EventId(1, 2), 10) == tuple(events[2:])
    assert log.after(EventId(1, 2), 2) == tuple(events[2:4])
    assert log.after(EventId(1, 5), 10) == ()
    assert log.after(EventId(99, 1), 10) == ()


def test_a_cursor_between_ids_is_a_position_like_any_other() -> None:
    log = LiveLog()
    log.extend([event(1, ms=10), event(2, ms=20)])
    assert [e.id.n for e in log.after(EventId(15, 0), 10)] == [2]
    assert [e.id.n for e in log.after(EventId(10, 0), 10)] == [1, 2]


def test_the_window_slides() -> None:
    log = window(3)
    log.extend(event(n) for n in range(1, 6))
    assert not log.covers(START)
    assert not log.covers(EventId(1, 1))
    assert log.covers(EventId(1, 2)), "the newest dropped one is not needed"
    assert [e.id.n for e in log.after(EventId(1, 2), 10)] == [3, 4, 5]


def test_one_event_larger_than_the_window_is_kept() -> None:
    log = LiveLog(10)
    log.extend([event(1), event(2, filler="x" * 1000)])
    assert [e.id.n for e in log.after(EventId(1, 1), 10)] == [2]


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=30),
    limit=st.integers(0, 400),
    cursor=st.tuples(st.integers(0, 70), st.integers(0, 35)),
    page=st.integers(1, 40),
)
def test_agrees_with_a_simple_model(
    steps: list[tuple[int, int]], limit: int, cursor: tuple[int, int], page: int
) -> None:
    log, everything, ms = LiveLog(limit), [], 0
    for n, (later, size) in enumerate(steps, start=1):
        ms += later
        everything.append(StoredEvent(EventId(ms, n), b"x" * size))
        log.extend(everything[-1:])
    position = EventId(*cursor)
    behind = tuple(e for e in everything if e.id > position)
    if log.covers(position):
        assert log.after(position, page) == behind[:page]
    else:
        assert sum(len(e.payload) for e in behind) > limit, "only what does not fit has fallen out"
    if everything:
        assert log.top == everything[-1].id
        assert log.covers(log.top)


async def test_wakes_every_reader_on_events_and_on_close(autojump_clock: MockClock) -> None:
    log = LiveLog()
    woken: list[int] = []

    async def reader(number: int) -> None:
        await log.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader, 1)
        nursery.start_soon(reader, 2)
        await wait_all_tasks_blocked()
        assert woken == []
        log.extend([event(1)])
    assert sorted(woken) == [1, 2]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader, 3)
        await wait_all_tasks_blocked()
        log.close()
    assert log.closed
    assert woken[-1] == 3


async def test_a_reader_that_leaves_takes_nothing_from_the_others(autojump_clock: MockClock) -> None:
    log = LiveLog()
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await log.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.wait)
        await wait_all_tasks_blocked()
        log.extend([event(1)])
