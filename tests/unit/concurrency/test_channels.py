"""The byte budget: never stuck, never forgetful."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.concurrency.channels import ByteBudget


def test_taking_never_waits_and_may_exceed_by_one_item() -> None:
    budget = ByteBudget(10)
    budget.take(9)
    assert budget.has_room
    budget.take(100)
    assert not budget.has_room
    budget.release(99)
    assert not budget.has_room, "at the limit there is no room"
    budget.release(1)
    assert budget.has_room


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_what_is_taken_and_released_leaves_nothing(sizes: list[int], limit: int) -> None:
    budget = ByteBudget(limit)
    for size in sizes:
        budget.take(size)
    assert budget.has_room is (sum(sizes) < limit)
    for size in sizes:
        budget.release(size)
    assert budget.used == 0


async def test_everyone_who_waits_goes_on_once_there_is_room(autojump_clock: MockClock) -> None:
    budget = ByteBudget(10)
    budget.take(20)
    through: list[int] = []

    async def producer(number: int) -> None:
        await budget.wait_for_room()
        through.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(producer, number)
        await wait_all_tasks_blocked()
        budget.release(10)
        await wait_all_tasks_blocked()
        assert through == []
        budget.release(1)
    assert sorted(through) == [0, 1, 2]


async def test_one_who_was_overtaken_waits_again(autojump_clock: MockClock) -> None:
    budget = ByteBudget(10)
    budget.take(10)
    through: list[str] = []

    async def producer(name: str) -> None:
        await budget.wait_for_room()
        budget.take(10)
        through.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(producer, "a")
        nursery.start_soon(producer, "b")
        await wait_all_tasks_blocked()
        budget.release(10)
        await wait_all_tasks_blocked()
        assert len(through) == 1
        budget.release(10)
    assert sorted(through) == ["a", "b"]


async def test_a_producer_that_is_cancelled_takes_nothing(autojump_clock: MockClock) -> None:
    budget = ByteBudget(1)
    budget.take(1)
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await budget.wait_for_room()
    budget.release(1)
    assert budget.used == 0
