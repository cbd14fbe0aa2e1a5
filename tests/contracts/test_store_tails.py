"""The tail hub's read: many logs and a doorbell, one blocking call."""

import pytest
import trio
from tests.contracts.store_support import MS, OWNER, batch, events, run_id, running

from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import LogsUnreadableError


async def new_run(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    return run


async def test_events_behind_each_position_come_by_run(store):
    one, two, idle = [await new_run(store) for _ in range(3)]
    await store.append([batch(one, START, *events(1, 3)), batch(two, START, *events(1, 2))])
    positions = {one: EventId(MS, 1), two: START, idle: START}
    found = {}
    with trio.fail_after(5):
        while len(found) < 2:  # what lies on different servers may come one after the other
            read = await store.read_tails(OWNER, positions, "0-0", 5)
            assert not found.keys() & read.events.keys()
            found |= read.events
            positions |= {run: news[-1].id for run, news in read.events.items()}
            assert read.doorbell == "0-0"
    assert found == {one: events(2, 3), two: events(1, 2)}


async def test_nothing_within_the_wait_is_an_empty_answer(store):
    run = await new_run(store)
    read = await store.read_tails(OWNER, {run: START}, "7-3", 0.05)
    assert (read.events, read.doorbell) == ({}, "7-3")


async def test_it_wakes_for_an_append(bare_store):
    run = await new_run(bare_store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bare_store.append, [batch(run, START, *events(1, 1))])
        with trio.fail_after(5):
            read = await bare_store.read_tails(OWNER, {run: START}, "0-0", 60)
    assert read.events == {run: events(1, 1)}


async def test_it_wakes_for_the_bell_and_takes_each_ring_once(bare_store):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bare_store.ring_doorbell, OWNER)
        with trio.fail_after(5):
            read = await bare_store.read_tails(OWNER, {}, "0-0", 60)
    assert read.events == {}
    again = await bare_store.read_tails(OWNER, {}, read.doorbell, 0.05)
    assert again.doorbell == read.doorbell != "0-0"


async def test_a_bell_rung_too_early_is_still_there(store):
    await store.ring_doorbell(OWNER)
    with trio.fail_after(5):
        assert (await store.read_tails(OWNER, {}, "0-0", 60)).doorbell != "0-0"


async def test_a_run_without_a_log_and_a_position_past_its_end_only_wait(store):
    run = await new_run(store)
    await store.append([batch(run, START, *events(1, 1))])
    read = await store.read_tails(OWNER, {run: EventId(MS + 1, 0), "no-such-run": START}, "0-0", 0.05)
    assert read.events == {}


async def test_a_cancelled_read_leaves_the_store_usable(bare_store):
    for _ in range(20):
        with trio.move_on_after(0.01) as scope:
            await bare_store.read_tails(OWNER, {}, "0-0", 60)
        assert scope.cancelled_caught
    await bare_store.ping()


async def test_logs_that_are_none_are_named_and_the_others_can_be_read_without_them(bare_store, witness, prefix):
    broken, healthy = [await new_run(bare_store) for _ in range(2)]
    await bare_store.append([batch(healthy, START, *events(1, 1))])
    witness.hset(f"{prefix}:runs:{{{broken}}}:events", "a", "b")

    async def read_on() -> None:
        while True:  # in a cluster what lies on another server may come first
            await bare_store.read_tails(OWNER, {broken: START, healthy: EventId(MS, 1)}, "0-0", 0.1)

    with trio.fail_after(10), pytest.raises(LogsUnreadableError) as caught:
        await read_on()
    assert caught.value.run_ids == [broken]
    with trio.fail_after(10):
        assert (await bare_store.read_tails(OWNER, {healthy: START}, "0-0", 5)).events == {healthy: events(1, 1)}
