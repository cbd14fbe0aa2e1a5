"""Idempotent creates on a virtual clock: repeats, takeovers, rivals; one replica and two (decision R5)."""

import pytest
import trio
from tests.unit.actors.world import World, model, prompt, request, world
from tests.unit.supervisor.claims import DEAD, DIGEST, HANG, KEY, ONE, create, gather, hanging, tenant, two_replicas
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.errors import (
    IdempotencyConflictError,
    StoreUnavailableError,
)
from dify_agent.store.base import Claim
from dify_agent.supervisor.admission import RunLimits
from dify_agent.supervisor.idempotency import MAX_CLAIMS, TAKEOVER_SECONDS

# Repeats.


async def test_a_repeat_answers_the_first_runs_id(autojump_clock: MockClock) -> None:
    async with world() as w:
        first = await create(w)
        assert await create(w) == first
        await w.cancel(first)
        await w.ended(first)
        assert await create(w) == first, "also when the run has ended"
        assert len(w.store.runs) == 1
        assert w.store.calls["create_run"] == 1


async def test_a_key_is_one_tenants(autojump_clock: MockClock) -> None:
    async with world() as w:
        bodies = [hanging("k"), hanging("k", tenant("a")), hanging("k", tenant("b")), hanging("other")]
        ids = [await create(w, body) for body in bodies]
        assert len(set(ids)) == 4
        assert [await create(w, body) for body in bodies] == ids


@pytest.mark.parametrize("key", [None, ""])
async def test_no_key_and_an_empty_one_claim_nothing(autojump_clock: MockClock, key: str | None) -> None:
    async with world() as w:
        assert await create(w, hanging(key)) != await create(w, hanging(key))
        assert w.store.claims == {}


async def test_another_request_under_the_key_is_a_conflict(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        await create(w)
        began = trio.current_time()
        with pytest.raises(IdempotencyConflictError):
            await create(w, request(prompt("something else"), model(HANG), idempotency_key="k"))
        assert trio.current_time() == began
        assert len(w.store.runs) == 1


async def test_a_conflict_does_not_wait_for_the_other_requests_record(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD
        began = trio.current_time()
        with pytest.raises(IdempotencyConflictError):
            await create(w, request(prompt("something else"), model(HANG), idempotency_key="k"))
        assert trio.current_time() == began
        assert w.store.claims[KEY] == DEAD


async def test_parallel_repeats_at_two_replicas_are_one_run(autojump_clock: MockClock) -> None:
    async with two_replicas() as (one, two):
        one.store.before = lambda name: trio.sleep(2 if name == "create_run" else 0)
        began = trio.current_time()
        ids = await gather(*(create(w) for _ in range(10) for w in (one, two)))
        assert len(ids) == 20
        assert len(set(ids)) == len(one.store.runs) == 1
        assert one.store.calls["create_run"] == 1
        assert trio.current_time() - began < TAKEOVER_SECONDS


async def test_parallel_repeats_need_the_room_of_one_run(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        w.store.before = lambda _name: trio.sleep(0.5)
        ids = await gather(*(create(w) for _ in range(20)))
        assert len(set(ids)) == 1
        assert w.store.calls["create_run"] == 1


# Takeovers.


async def test_a_claim_without_a_record_is_taken_over_under_its_run_id(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD
        began = trio.current_time()
        assert await create(w) == DEAD.run_id
        assert trio.current_time() - began == pytest.approx(TAKEOVER_SECONDS)
        assert w.run(DEAD.run_id).owner.id == "me"
        assert (w.store.claims[KEY].run_id, w.store.claims[KEY].holder != "dead") == (DEAD.run_id, True)
        await wait_all_tasks_blocked()
        assert w.run(DEAD.run_id).types[0] == "run_started"
        assert await create(w) == DEAD.run_id


@pytest.mark.parametrize("seconds", [0.3, 1.9, 2.6, 4.9])
async def test_a_slow_store_delays_a_takeover_by_three_reads_at_most(autojump_clock: MockClock, seconds: float) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD
        w.store.before = lambda name: trio.sleep(seconds if name in ("read_record", "read_claim") else 0)
        began = trio.current_time()
        assert await create(w) == DEAD.run_id
        assert TAKEOVER_SECONDS <= trio.current_time() - began <= TAKEOVER_SECONDS + 3 * seconds


async def test_of_many_takers_at_two_replicas_one_creates_the_run(autojump_clock: MockClock) -> None:
    async with two_replicas() as (one, two):
        one.store.claims[KEY] = DEAD
        one.store.before = lambda name: trio.sleep(0.5 if name in ("claim", "create_run") else 0)
        ids = await gather(*(create(w) for _ in range(10) for w in (one, two)))
        assert ids == [DEAD.run_id] * 20
        assert one.store.calls["create_run"] == 1
        await wait_all_tasks_blocked()
        assert one.run(DEAD.run_id).types.count("run_started") == 1


@pytest.mark.parametrize("limits", [RunLimits(), ONE])
async def test_a_taker_that_comes_a_little_later_waits_for_the_first(
    autojump_clock: MockClock, limits: RunLimits
) -> None:
    async with world(limits=limits) as w:
        w.store.claims[KEY] = DEAD
        w.store.before = lambda name: trio.sleep(0.5 if name == "create_run" else 0)

        async def later(seconds: float) -> str:
            await trio.sleep(seconds)
            return await create(w)

        assert await gather(*(later(number / 100) for number in range(40))) == [DEAD.run_id] * 40
        assert w.store.calls["create_run"] == 1


async def test_many_takers_need_the_room_of_one_run(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        w.store.claims[KEY] = DEAD
        w.store.before = lambda name: trio.sleep(0.5 if name in ("claim", "create_run") else 0)
        assert await gather(*(create(w) for _ in range(20))) == [DEAD.run_id] * 20


async def test_a_record_that_comes_in_time_is_answered(autojump_clock: MockClock) -> None:
    async with two_replicas() as (one, two):
        one.store.before = lambda name: trio.sleep(4.9 if name == "create_run" else 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, one)
            await wait_all_tasks_blocked()
            repeated = await create(two)
        assert [repeated] == list(one.store.runs)
        assert one.run(repeated).owner.id == "one"


@pytest.mark.parametrize("slower", ["holder", "taker"])
async def test_a_holder_that_was_only_slow_and_its_taker_make_one_run(autojump_clock: MockClock, slower: str) -> None:
    """Both create the run under the same id; the store lets one through, and the other answers the same id."""
    pauses = iter([7, 9] if slower == "taker" else [7, 1])
    async with two_replicas() as (one, two):

        async def slow(name: str) -> None:
            if name == "create_run":
                await trio.sleep(next(pauses))

        one.store.before = slow
        ids: list[str] = []

        async def client(w: World) -> None:
            ids.append(await create(w))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, one)
            await wait_all_tasks_blocked()
            nursery.start_soon(client, two)
        assert len(set(ids)) == 1
        assert one.store.calls["create_run"] == 2
        await wait_all_tasks_blocked()
        run = one.run(ids[0])
        assert run.owner.id == ("one" if slower == "taker" else "two")
        assert run.types == ["run_started"]
        loser = two if slower == "taker" else one
        assert loser.supervisor.active_runs == 0
        assert await create(loser) == ids[0]


async def test_a_holder_that_gave_up_does_not_end_its_takers_run(autojump_clock: MockClock) -> None:
    """The holder's create has an unknown outcome; what it settles is its own run, never the taker's."""
    fails_after = iter([4.0, 6.0])

    async def lost(name: str) -> None:
        if name == "create_run" and (seconds := next(fails_after, None)) is not None:
            await trio.sleep(seconds)
            raise StoreUnavailableError("no answer")

    async with two_replicas() as (one, two):
        one.store.before = lost
        began = trio.current_time()

        async def holder() -> None:
            with pytest.raises(StoreUnavailableError):
                await create(one)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder)
            await wait_all_tasks_blocked()
            taken = await create(two)
        assert trio.current_time() - began == pytest.approx(10), "the holder heard last"
        await trio.sleep(40)
        assert one.store.calls["judge"] == 1
        assert one.run(taken).owner.id == "two"
        assert one.run(taken).record.status == "running"


async def test_the_next_taker_takes_over_from_one_that_died(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD
        second = Claim(DEAD.run_id, DIGEST, "dies too")

        async def rival() -> None:
            await trio.sleep(3)
            w.store.claims[KEY] = second

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rival)
            assert await create(w) == DEAD.run_id
        assert trio.current_time() - began == pytest.approx(3 + TAKEOVER_SECONDS, abs=0.3)


async def test_the_wait_is_bounded_whatever_the_others_do(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD

        async def displaced_at_the_last_moment(name: str) -> None:
            if name == "claim":
                w.store.claims[KEY] = Claim(DEAD.run_id, DIGEST, f"rival {w.store.calls['claim']}")

        w.store.before = displaced_at_the_last_moment
        began = trio.current_time()
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert trio.current_time() - began == pytest.approx(MAX_CLAIMS * TAKEOVER_SECONDS)
        assert w.store.runs == {}


async def test_a_run_that_is_still_being_created_here_is_not_created_twice(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.before = lambda name: trio.sleep(9 if name == "create_run" else 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, w)
            await wait_all_tasks_blocked()
            with pytest.raises(StoreUnavailableError):
                await create(w)
        assert w.store.calls["create_run"] == 1
        assert await create(w) in w.store.runs
