"""Which refused creates remember their idempotency key, and callers that leave (decision R5)."""

import pytest
import trio
from tests.unit.actors.world import model, prompt, request, text, world
from tests.unit.supervisor.claims import DEAD, KEY, ONE, create, hanging
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.errors import (
    SchedulerStoppingError,
    StoreUnavailableError,
    TooManyActiveRunsError,
)
from dify_agent.supervisor.idempotency import TAKEOVER_SECONDS

# Refusals.


async def test_full_claims_nothing(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        await create(w, hanging("first"))
        calls = w.store.calls["claim"]
        with pytest.raises(TooManyActiveRunsError):
            await create(w)
        assert w.store.calls["claim"] == calls
        assert KEY not in w.store.claims


async def test_a_repeat_of_an_existing_run_is_answered_when_full(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        first = await create(w)
        with pytest.raises(TooManyActiveRunsError):
            await create(w, hanging(None))
        assert await create(w) == first


async def test_a_takeover_needs_room(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        other = await create(w, hanging("other"))
        w.store.claims[KEY] = DEAD
        began = trio.current_time()
        with pytest.raises(TooManyActiveRunsError):
            await create(w)
        assert trio.current_time() - began == pytest.approx(TAKEOVER_SECONDS)
        assert w.store.claims[KEY] == DEAD
        await w.cancel(other)
        await w.ended(other)
        assert await create(w) == DEAD.run_id


async def test_room_that_is_lost_while_claiming_releases_the_claim(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        w.store.before = lambda name: trio.sleep(1 if name == "claim" else 0)
        outcomes: list[str] = []

        async def client(key: str) -> None:
            try:
                await create(w, hanging(key))
                outcomes.append("created")
            except TooManyActiveRunsError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(client, f"k{number}")
        assert sorted(outcomes) == ["created", *["refused"] * 4]
        assert [claim.run_id for claim in w.store.claims.values()] == list(w.store.runs)


async def test_a_drain_that_begins_while_claiming_releases_the_claim(autojump_clock: MockClock) -> None:
    async with world() as w:

        async def drain_begins(name: str) -> None:
            if name == "claim":
                w.supervisor.stop_accepting()

        w.store.before = drain_begins
        with pytest.raises(SchedulerStoppingError):
            await create(w)
        assert (w.store.claims, w.store.runs) == ({}, {})


async def test_draining_is_said_before_a_repeat_is_looked_up(autojump_clock: MockClock) -> None:
    async with world() as w:
        await create(w)
        w.supervisor.stop_accepting()
        with pytest.raises(SchedulerStoppingError):
            await create(w)


async def test_a_drain_that_begins_while_waiting_takes_nothing_over(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.claims[KEY] = DEAD
        async with trio.open_nursery() as nursery:

            async def client() -> None:
                with pytest.raises(SchedulerStoppingError):
                    await create(w)

            nursery.start_soon(client)
            await trio.sleep(1)
            w.supervisor.stop_accepting()
        assert w.store.claims[KEY] == DEAD


async def test_a_create_that_certainly_failed_releases_the_claim(autojump_clock: MockClock) -> None:
    async def unreachable(name: str) -> None:
        if name == "create_run":
            raise StoreUnavailableError("connection refused", sent=False)

    async with world() as w:
        w.store.before = unreachable
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert w.store.claims == {}
        w.store.before = None
        began = trio.current_time()
        await create(w)
        assert trio.current_time() == began


async def test_a_create_with_an_unknown_outcome_keeps_the_claim(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.lose_replies["create_run"] = 2
        with pytest.raises(StoreUnavailableError):
            await create(w)
        [written] = w.store.runs
        assert w.store.claims[KEY].run_id == written
        assert await create(w) == written
        assert (await w.ended(written)).types == ["run_failed"]
        assert len(w.store.runs) == 1


async def test_an_unknown_outcome_that_was_nothing_is_taken_over(autojump_clock: MockClock) -> None:
    async def lost(name: str) -> None:
        if name == "create_run":
            raise StoreUnavailableError("no answer")

    async with world() as w:
        w.store.before = lost
        with pytest.raises(StoreUnavailableError):
            await create(w)
        claimed = w.store.claims[KEY].run_id
        w.store.before = None
        await wait_all_tasks_blocked()
        assert await create(w) == claimed
        await trio.sleep(60)
        assert w.run(claimed).record.status == "running", "nothing settles it any more"


async def test_no_takeover_while_the_unknown_outcome_is_being_settled_here(autojump_clock: MockClock) -> None:
    async def lost(name: str) -> None:
        if name in ("create_run", "judge"):
            raise StoreUnavailableError("no answer")

    async with world() as w:
        w.store.before = lost
        with pytest.raises(StoreUnavailableError):
            await create(w)
        began = trio.current_time()
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert trio.current_time() - began == pytest.approx(TAKEOVER_SECONDS)
        assert w.store.calls["create_run"] == 2
        await trio.sleep(30)
        w.store.before = None
        run_id = await create(w)
        await trio.sleep(60)
        assert w.run(run_id).record.status == "running"


async def test_a_claim_whose_reply_was_lost_is_given_up(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.lose_replies["claim"] = 1
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert w.store.claims == {}


async def test_the_store_down_is_said(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.store.down = True
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert w.supervisor.active_runs == 0


async def test_giving_a_claim_up_is_bounded_and_may_fail(autojump_clock: MockClock) -> None:
    async def stuck(name: str) -> None:
        if name == "create_run":
            raise StoreUnavailableError("connection refused", sent=False)
        if name == "release_claim":
            await trio.sleep_forever()

    async with world() as w:
        w.store.before = stuck
        with trio.fail_after(2), pytest.raises(StoreUnavailableError):
            await create(w)
        claimed = w.store.claims[KEY].run_id
        w.store.before = None
        assert await create(w) == claimed


async def test_a_refused_taker_does_not_give_the_claim_up(autojump_clock: MockClock) -> None:
    """The displaced holder may only be slow: without the claim a third request would make a second run."""

    async def unreachable(name: str) -> None:
        if name == "create_run":
            raise StoreUnavailableError("connection refused", sent=False)

    async with world() as w:
        w.store.claims[KEY] = DEAD
        w.store.before = unreachable
        with pytest.raises(StoreUnavailableError):
            await create(w)
        assert w.store.claims[KEY].run_id == DEAD.run_id


# Callers that leave.


@pytest.mark.parametrize("stage", ["claim", "create_run"])
async def test_a_client_that_leaves_blocks_nobody(autojump_clock: MockClock, stage: str) -> None:
    async with world() as w:
        w.store.before = lambda name: trio.sleep(2 if name == stage else 0)
        with trio.move_on_after(1) as client:
            await create(w)
        assert client.cancelled_caught
        await trio.sleep(2)
        w.store.before = None
        began = trio.current_time()
        run_id = await create(w)
        assert trio.current_time() - began < 1
        assert list(w.store.runs) == [run_id]
        assert w.supervisor.active_runs == 1


async def test_a_waiting_client_may_leave(autojump_clock: MockClock) -> None:
    async with world(limits=ONE) as w:
        w.store.claims[KEY] = DEAD
        with trio.move_on_after(1):
            await create(w)
        assert w.store.claims[KEY] == DEAD
        assert await create(w, request(prompt(), model(text()))) in w.store.runs
