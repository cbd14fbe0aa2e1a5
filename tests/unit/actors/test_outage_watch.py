"""The outage watch: every run counts, whatever it does, from the first question that is not answered."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock

from dify_agent.actors.cancel_observer import SWEEP_SECONDS, CancelObserver
from dify_agent.actors.messages import Stop, StopKind
from dify_agent.actors.outage_watch import LAST_CHANCE_SECONDS, OutageWatch
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import Owner, RunLook

ME = Owner("me", 1)
BOUND = 60.0
LATE = SWEEP_SECONDS + LAST_CHANCE_SECONDS
COMMAND_SECONDS = 5.0
"""How long a question to a store that has stopped takes to fail."""
SILENT = SWEEP_SECONDS + COMMAND_SECONDS
"""So long a store that has stopped may be taken for a slow one."""


class Desk:
    """A watch, a sweep over a fake store that reports to it, and what it said."""

    def __init__(self, bound: float) -> None:
        self.store = FakeStore()
        self.own: list[str] = []
        self.told: list[tuple[str, float]] = []
        self.watch = OutageWatch(outage_seconds=bound, tell=self.tell)
        self.observer = CancelObserver(
            self.store,
            ME,
            tell=self.tell,
            own_runs=lambda: self.own,
            has_events=lambda _run_id: True,
            outages=self.watch,
        )

    def tell(self, run_id: str, stop: Stop) -> bool:
        assert stop.kind is StopKind.STORE_UNAVAILABLE
        self.told.append((run_id, trio.current_time()))
        return True

    def run(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.store.runs[run_id] = FakeRun(record(run_id), ME)
            self.own.append(run_id)

    @property
    def told_runs(self) -> list[str]:
        return [run_id for run_id, _ in self.told]


@asynccontextmanager
async def watching(bound: float = BOUND) -> AsyncIterator[Desk]:
    desk = Desk(bound)
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.watch.serve)
        await nursery.start(desk.observer.sweep)
        yield desk
        nursery.cancel_scope.cancel()


def frozen(desk: Desk) -> Callable[[], None]:
    """Have every question wait until it fails, or until the store goes on; gives what makes it go on."""
    thawed = trio.Event()

    async def wait(_name: str) -> None:
        with trio.move_on_after(COMMAND_SECONDS):
            await thawed.wait()
            return
        desk.store.down = True

    def thaw() -> None:
        desk.store.before = None
        desk.store.down = False
        thawed.set()

    desk.store.before = wait
    return thaw


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("bound", [1.0, 7.0, BOUND])
async def test_all_runs_are_told_soon_after_the_bound_and_not_before(
    autojump_clock: MockClock, how: str, bound: float
) -> None:
    async with watching(bound) as d:
        d.run("a", "b")
        await trio.sleep(9.3)
        began = trio.current_time()
        if how == "killed":
            d.store.down = True
            latest = bound + LATE
        else:
            frozen(d)
            latest = max(bound + LATE, SILENT + LAST_CHANCE_SECONDS)
        await trio.sleep(latest + 0.01)
        assert sorted(d.told_runs) == ["a", "b"]
        assert all(bound <= at - began <= latest for _, at in d.told)


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("seconds", [BOUND - 0.01, BOUND - 3.3])
async def test_an_outage_within_the_bound_is_told_to_nobody(
    autojump_clock: MockClock, how: str, seconds: float
) -> None:
    async with watching() as d:
        d.run("a")
        for _ in range(3):  # several are not one long one
            await trio.sleep(SWEEP_SECONDS + 0.77)
            thaw = frozen(d) if how == "frozen" else None
            d.store.down = how == "killed"
            await trio.sleep(seconds)
            if thaw is not None:
                thaw()
            d.store.down = False
        await trio.sleep(2 * BOUND)
        assert d.told == []


async def test_a_node_that_comes_back_just_in_time_costs_no_run(autojump_clock: MockClock) -> None:
    """The sweep has answers of other nodes, so it is in no hurry."""
    async with watching() as d:
        d.run("near", "far")
        for tenth in range(20):
            d.store.unreachable.add("far")
            await trio.sleep(BOUND - 0.01)
            d.store.unreachable.clear()
            await trio.sleep(SWEEP_SECONDS + tenth / 10)
        await trio.sleep(BOUND)
        assert d.told == []


async def test_a_node_that_is_away_costs_its_own_runs_alone(autojump_clock: MockClock) -> None:
    async with watching() as d:
        d.run("near", "far", "near too")
        d.store.unreachable.add("far")
        await trio.sleep(BOUND + LATE + 1)
        assert d.told_runs == ["far"]
        await trio.sleep(BOUND / 2)
        assert d.told_runs == ["far"]


async def test_a_node_that_fell_silent_keeps_the_answers_of_the_others_waiting_and_costs_no_run_of_theirs(
    autojump_clock: MockClock,
) -> None:
    """With a bound below a command's time."""
    async with watching(1.0) as d:
        d.run("near", "far")
        await trio.sleep(SWEEP_SECONDS)
        real = d.store.look

        async def look(run_ids: Sequence[str]) -> dict[str, RunLook | None]:
            await trio.sleep(COMMAND_SECONDS)
            return await real(run_ids)

        d.store.look = look  # type: ignore[method-assign]
        d.store.unreachable.add("far")
        await trio.sleep(10 * COMMAND_SECONDS)
        assert set(d.told_runs) == {"far"}


async def test_a_run_has_a_time_of_its_own(autojump_clock: MockClock) -> None:
    async with watching() as d:
        d.run("old")
        await trio.sleep(10)
        began = trio.current_time()
        d.store.down = True
        await trio.sleep(30)
        d.run("young")
        await trio.sleep(BOUND)
        assert d.told_runs == ["old"]
        await trio.sleep(30 + LATE)
        assert d.told_runs[:2] == ["old", "young"]
        assert d.told[1][1] - began >= 30 + BOUND


async def test_a_run_that_begins_after_recovery_is_not_told(autojump_clock: MockClock) -> None:
    async with watching() as d:
        d.run("a")
        d.store.down = True
        await trio.sleep(BOUND + LATE + SWEEP_SECONDS)
        assert d.told_runs == ["a"]
        d.own.remove("a")
        d.store.down = False
        d.run("b")
        await trio.sleep(3 * BOUND)
        assert d.told_runs == ["a"]


async def test_a_run_under_the_id_of_one_that_ended_has_a_time_of_its_own(autojump_clock: MockClock) -> None:
    """A create that an outage refused, and its repeat with the same idempotency key."""
    async with watching() as d:
        d.run("a", "other")
        d.store.down = True
        await trio.sleep(BOUND / 2 + SWEEP_SECONDS / 2)  # not in the same moment as a sweep
        d.own.remove("a")
        await trio.sleep(SWEEP_SECONDS)
        again = trio.current_time()
        d.own.append("a")
        await trio.sleep(BOUND / 2 + LATE)
        assert d.told_runs == ["other"]
        await trio.sleep(BOUND / 2 + SWEEP_SECONDS)
        told_at = dict(reversed(d.told))["a"]
        assert BOUND <= told_at - again <= BOUND + LATE


@pytest.mark.parametrize("lost", [False, True], ids=["answer first", "time-out first"])
async def test_a_process_that_was_stopped_itself_blames_no_store(autojump_clock: MockClock, lost: bool) -> None:
    """Everything is late at once: the timer, the command's time-out, and the answer that waits in the socket."""
    async with watching() as d:
        d.run("a")
        goes_on = trio.Event()

        async def wait(_name: str) -> None:
            await goes_on.wait()
            d.store.before = None
            if lost:
                raise StoreUnavailableError("no answer in time")

        await trio.sleep(5)
        d.store.before = wait
        await trio.sleep(SWEEP_SECONDS)
        autojump_clock.jump(10 * BOUND)
        goes_on.set()
        await trio.sleep(BOUND)
        assert d.told == []


async def test_a_restart_forgets_no_outage(autojump_clock: MockClock) -> None:
    told: list[str] = []

    def tell(run_id: str, _stop: Stop) -> bool:
        told.append(run_id)
        return True

    watch = OutageWatch(outage_seconds=BOUND, tell=tell)
    watch.note(["a", "b"], {"b": None}, asked_at=trio.current_time())
    with trio.move_on_after(BOUND / 2):
        await watch.serve()
    assert told == []
    with trio.move_on_after(BOUND / 2 + LAST_CHANCE_SECONDS + 0.01):
        await watch.serve()
    assert told == ["a"]
