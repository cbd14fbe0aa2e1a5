"""The cancel observer: bells, the sweep behind them, and outages of the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.cancel_observer import BLOCK_SECONDS, SWEEP_SECONDS, CancelObserver
from dify_agent.actors.messages import Stop, StopKind
from dify_agent.actors.outage_watch import OutageWatch
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import CancelIntent, Owner

ME = Owner("me", 1)


@dataclass
class Watch:
    """An observer over a fake store, and what it said."""

    store: FakeStore = field(default_factory=FakeStore)
    own: list[str] = field(default_factory=list)
    young: set[str] = field(default_factory=set)
    """Runs without a stored event."""
    told: list[tuple[str, float]] = field(default_factory=list)
    expected: StopKind = StopKind.CANCEL
    outages: int = 0
    observer: CancelObserver = field(init=False)

    def __post_init__(self) -> None:
        self.observer = CancelObserver(
            self.store,
            ME,
            tell=self.tell,
            own_runs=lambda: self.own,
            has_events=lambda run_id: run_id not in self.young,
            outages=OutageWatch(outage_seconds=60, tell=self.tell),
            on_outage=self.note_outage,
        )

    def note_outage(self) -> None:
        self.outages += 1

    def tell(self, run_id: str, stop: Stop) -> bool:
        assert stop.kind is self.expected
        self.told.append((run_id, trio.current_time()))
        return True

    def run(self, run_id: str, *, intent: bool = False) -> None:
        self.store.runs[run_id] = FakeRun(record(run_id), ME)
        self.own.append(run_id)
        if intent:
            self.store.runs[run_id].intent = CancelIntent(None, None, datetime.now(UTC))

    async def ring(self, run_id: str, owner: str = "me") -> None:
        """As another replica does it: the intent first, then the bell."""
        self.run(run_id, intent=True)
        await self.store.ring(owner, run_id)

    @property
    def told_runs(self) -> list[str]:
        return [run_id for run_id, _ in self.told]


@asynccontextmanager
async def watching(*, inbox: bool = False, sweep: bool = False) -> AsyncIterator[Watch]:
    watch = Watch()
    async with trio.open_nursery() as nursery:
        if inbox:
            await nursery.start(watch.observer.watch_inbox)
        if sweep:
            await nursery.start(watch.observer.sweep)
        yield watch
        nursery.cancel_scope.cancel()


async def test_a_bell_is_passed_on_at_once(autojump_clock: MockClock) -> None:
    async with watching(inbox=True) as w:
        await trio.sleep(3)
        await w.ring("a")
        await w.ring("b", owner="someone else")
        await wait_all_tasks_blocked()
        assert w.told == [("a", trio.current_time())]


async def test_bells_rung_before_it_watched_are_heard_once(autojump_clock: MockClock) -> None:
    async with watching() as w, trio.open_nursery() as nursery:
        for run_id in ("a", "b", "c"):
            await w.ring(run_id)
        nursery.start_soon(w.observer.watch_inbox)
        await trio.sleep(5 * BLOCK_SECONDS)
        assert w.told_runs == ["a", "b", "c"]
        nursery.cancel_scope.cancel()


async def test_one_blocking_read_waits_for_all_runs(autojump_clock: MockClock) -> None:
    async with watching(inbox=True) as w:
        await trio.sleep(10 * BLOCK_SECONDS + 1)
        assert w.store.calls["read_inbox"] == 11


async def test_the_position_outlives_an_outage_and_a_restart(autojump_clock: MockClock) -> None:
    async with watching() as w:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.observer.watch_inbox)
            await w.ring("a")
            await wait_all_tasks_blocked()
            w.store.down = True
            await trio.sleep(30)
            assert w.store.calls["read_inbox"] < 50, "an outage is no busy loop"
            w.store.down = False
            await w.ring("b")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await w.ring("c")
        with trio.move_on_after(1):
            await w.observer.watch_inbox()
        assert w.told_runs == ["a", "b", "c"]


async def test_a_bell_without_an_intent_means_nothing(autojump_clock: MockClock) -> None:
    async with watching(inbox=True) as w:
        w.run("a")
        await w.store.ring("me", "a")
        await w.store.ring("me", "never heard of")
        await trio.sleep(1)
        assert w.told == []


async def test_bells_whose_intents_could_not_be_read_are_heard_again(autojump_clock: MockClock) -> None:
    async def down(name: str) -> None:
        if name == "read_intents" and w.store.calls["read_intents"] < 3:
            raise StoreUnavailableError("on purpose")

    async with watching(inbox=True) as w:
        w.store.before = down
        await w.ring("a")
        await trio.sleep(5)
        assert w.told_runs == ["a"]


async def test_the_sweep_finds_intents_of_own_runs(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        w.run("quiet")
        w.run("cancelled", intent=True)
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["cancelled"]


async def test_the_sweep_asks_nothing_without_runs(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        await trio.sleep(20)
        assert w.store.calls["look"] == 0


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_the_sweep_tells_a_run_that_it_was_judged(autojump_clock: MockClock, status: str) -> None:
    async with watching(sweep=True) as w:
        w.expected = StopKind.SEALED
        w.run("judged")
        w.run("healthy")
        judged = w.store.runs["judged"]
        judged.record = judged.record.model_copy(update={"status": status})
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["judged"]


async def test_the_sweep_leaves_runs_alone_whose_node_is_away(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        w.run("far")
        w.run("near", intent=True)
        w.store.unreachable.add("far")
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["near"]


async def test_the_sweep_tells_a_run_that_its_record_is_gone(autojump_clock: MockClock) -> None:
    """R21: after FLUSHALL the local runs stop. One that is just being created is none of them."""
    async with watching(sweep=True) as w:
        w.expected = StopKind.RECORD_LOST
        w.run("gone")
        w.run("young")
        w.young.add("young")
        w.store.runs.clear()
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["gone"]


async def test_the_sweep_finds_the_intent_of_a_run_without_events(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        w.run("young", intent=True)
        w.young.add("young")
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["young"]


async def test_the_sweep_tells_a_run_that_its_record_cannot_be_read(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        w.expected = StopKind.RECORD_UNREADABLE
        w.run("spoilt")
        w.store.unreadable.add("spoilt")
        await trio.sleep(SWEEP_SECONDS + 0.1)
        assert w.told_runs == ["spoilt"]


async def test_an_outage_is_told_once_until_the_inbox_was_read_again(autojump_clock: MockClock) -> None:
    async with watching(inbox=True) as w:
        for outages in (1, 2):
            w.store.down = True
            await trio.sleep(25)
            assert w.outages == outages
            w.store.down = False
            await trio.sleep(25)


async def test_the_sweep_survives_an_outage(autojump_clock: MockClock) -> None:
    async with watching(sweep=True) as w:
        w.run("a", intent=True)
        w.store.down = True
        await trio.sleep(60)
        assert w.told == []
        w.store.down = False
        began = trio.current_time()
        await trio.sleep(SWEEP_SECONDS)
        assert w.told_runs == ["a"]
        assert w.told[0][1] - began <= SWEEP_SECONDS


async def test_a_bug_in_the_store_ends_the_service(autojump_clock: MockClock) -> None:
    async def bug(name: str) -> None:
        raise RuntimeError("a bug")

    async with watching() as w:
        w.run("a")
        w.store.before = bug
        with pytest.raises(RuntimeError):
            await w.observer.watch_inbox()
        with pytest.raises(RuntimeError):
            await w.observer.sweep()
