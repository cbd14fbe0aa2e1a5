"""What becomes of a create with an unknown outcome."""

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock

from dify_agent.actors.messages import Stop, StopKind
from dify_agent.actors.settle import settle_unknown
from dify_agent.store.base import CancelIntent, Owner

ME = Owner("me", 1)
STOP = Stop(StopKind.STORE_UNAVAILABLE, "while the run was created")


async def settle(store: FakeStore) -> None:
    await settle_unknown(store, ME, record("r"), STOP)


async def test_a_run_that_exists_is_ended(autojump_clock: MockClock) -> None:
    store = FakeStore()
    store.runs["r"] = FakeRun(record("r"), ME)
    store.lose_replies["judge"] = 1
    await settle(store)
    assert store.runs["r"].types == ["run_failed"]
    assert b'"reason":"store_unavailable"' in store.runs["r"].events[0].payload
    assert store.runs["r"].record.status == "failed"


@pytest.mark.parametrize("owner", [Owner("other", 1), Owner("me", 2)])
async def test_a_run_of_another_owner_is_left_alone(autojump_clock: MockClock, owner: Owner) -> None:
    store = FakeStore()
    store.runs["r"] = FakeRun(record("r"), owner)
    await settle(store)
    assert store.runs["r"].types == []


async def test_no_run_is_nothing_to_do(autojump_clock: MockClock) -> None:
    store = FakeStore()
    await settle(store)
    assert store.runs == {}


async def test_an_accepted_cancel_is_honoured(autojump_clock: MockClock) -> None:
    store = FakeStore()
    run = store.runs["r"] = FakeRun(record("r"), ME, intent=CancelIntent("user", "stop", record("r").created_at))
    await settle(store)
    assert run.types == ["run_cancelled"]
    assert run.record.error == "stop"


async def test_an_outage_is_waited_out(autojump_clock: MockClock) -> None:
    store = FakeStore()
    store.runs["r"] = FakeRun(record("r"), ME)
    store.down = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, store)
        await trio.sleep(20)
        assert 15 < store.calls["judge"] < 40
        store.down = False
    assert store.runs["r"].record.status == "failed"


async def test_what_is_no_outage_leaves(autojump_clock: MockClock) -> None:
    async def broken(name: str) -> None:
        raise RuntimeError("a bug")

    store = FakeStore()
    store.before = broken
    with pytest.raises(RuntimeError):
        await settle(store)
