"""The heartbeat: three beats a lease, live runs kept alive, outages survived."""

import itertools
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.heartbeat import Heartbeat
from dify_agent.actors.publisher import KEEP_SECONDS
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import KeyUnreadableError, Owner

OWNER = Owner("me", 1)


class BeatStore(FakeStore):
    """Notes when it was beaten and which runs were touched."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[float] = []
        self.touched: list[tuple[float, tuple[str, ...]]] = []

    async def heartbeat(self, owner: Owner, lease_seconds: float, run_ids: Sequence[str] = ()) -> None:
        await super().heartbeat(owner, lease_seconds, run_ids)
        self.beats.append(trio.current_time())

    async def touch_runs(self, owner: Owner, run_ids: Sequence[str]) -> None:
        await super().touch_runs(owner, run_ids)
        self.touched.append((trio.current_time(), tuple(run_ids)))


@dataclass
class Runs:
    """A registry's two functions."""

    live: Sequence[str]
    ended: list[str] = field(default_factory=list)

    def run_ids(self) -> tuple[str, ...]:
        return tuple(self.live)

    def take_ended(self) -> tuple[str, ...]:
        ended = tuple(self.ended)
        self.ended.clear()
        return ended


def heartbeat(store: FakeStore, *, lease: float = 15, retention: float = 7200, runs: Sequence[str] = ()) -> Heartbeat:
    return Heartbeat(store, OWNER, lease_seconds=lease, retention_seconds=retention, runs=Runs(runs))


@asynccontextmanager
async def beating(store: BeatStore, **members: float) -> AsyncIterator[float]:
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        await nursery.start(heartbeat(store, runs=["a", "b"], **members).serve)
        yield began
        nursery.cancel_scope.cancel()


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


async def test_beats_three_times_a_lease_and_is_known_before_it_is_started(autojump_clock: MockClock) -> None:
    store = BeatStore()
    async with beating(store) as began:
        assert store.beats == [began]
        await trio.sleep(31)
    assert gaps(store.beats) == pytest.approx([5] * 6)


@pytest.mark.parametrize(
    ("lease", "retention"), [(15, 7200), (15, 1), (15, 15), (15, 20), (15, 25), (15, 60), (1, 100), (0.3, 1)]
)
async def test_live_runs_outlive_the_retention(autojump_clock: MockClock, lease: float, retention: float) -> None:
    store = BeatStore()
    async with beating(store, lease=lease, retention=retention) as began:
        await trio.sleep(4 * retention + 0.01)
    times = [began, *(time for time, _ in store.touched)]
    assert max(gaps(times)) <= retention / 2 + 1e-6, "one failed touch must still leave room for another"
    assert len(times) < 4 * retention / min(lease / 3, retention / 3) + 2
    assert all(run_ids == ("a", "b") for _, run_ids in store.touched)
    assert max(gaps(store.beats)) <= lease / 3 + 1e-6


async def test_touches_are_not_more_frequent_than_needed(autojump_clock: MockClock) -> None:
    store = BeatStore()
    async with beating(store, lease=15, retention=7200):
        await trio.sleep(7300)
    assert len(store.touched) == 3


async def test_renews_soon_after_an_outage(autojump_clock: MockClock) -> None:
    store = BeatStore()
    async with beating(store):
        await trio.sleep(7)
        store.down = True
        await trio.sleep(100)
        before = len(store.beats)
        store.down = False
        await trio.sleep(0.6)
        assert len(store.beats) == before + 1
        await trio.sleep(20)
        assert gaps(store.beats[before:]) == pytest.approx([5, 5, 5, 5][: len(store.beats) - before - 1])


def said(lines: Sequence[MutableMapping[str, Any]], event: str) -> list[float]:
    return [line["seconds"] for line in lines if line["event"] == event]


async def test_an_outage_is_said_at_once_then_seldom_and_when_it_is_over(autojump_clock: MockClock) -> None:
    store = BeatStore()
    service = heartbeat(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(6)
        with capture_logs() as lines:
            store.down = True
            service.doubt()
            await wait_all_tasks_blocked()
            assert said(lines, "lease not renewed") == [0]
            assert lines[0]["cause"] == "down on purpose"
            assert lines[0]["meaning"].startswith("runs go on; events wait in memory")
            await trio.sleep(31)
            assert said(lines, "lease not renewed") == pytest.approx([0, 10, 20, 30])
            store.down = False
            await trio.sleep(20)
            (seconds,) = said(lines, "store is back, lease renewed")
            assert seconds == pytest.approx(31, abs=0.6)
            assert len(lines) == 5
            store.down = True
            await trio.sleep(6)
            assert said(lines, "lease not renewed")[-1] == 0, "a new outage is said anew"
        nursery.cancel_scope.cancel()


async def test_a_doubt_without_an_outage_is_one_beat_and_no_line(autojump_clock: MockClock) -> None:
    store = BeatStore()
    service = heartbeat(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(1)
        with capture_logs() as lines:
            service.doubt()
            service.doubt()
            await trio.sleep(5.5)
        assert lines == []
        assert gaps(store.beats) == pytest.approx([1, 5])
        nursery.cancel_scope.cancel()


async def test_doubts_do_not_hurry_the_beats_of_an_outage(autojump_clock: MockClock) -> None:
    store = BeatStore()
    service = heartbeat(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        store.down = True
        await trio.sleep(6)
        before = store.calls["heartbeat"]
        for _ in range(100):
            service.doubt()
            await trio.sleep(0.05)
        assert store.calls["heartbeat"] - before <= 11
        nursery.cancel_scope.cancel()


async def test_runs_that_cannot_be_tended_are_said_seldom(autojump_clock: MockClock) -> None:
    """One node of a cluster is away, and the lease lies on another."""
    store = BeatStore()
    failing = True

    async def touch_fails(name: str) -> None:
        if name == "touch_runs" and failing:
            raise StoreUnavailableError("on purpose")

    store.before = touch_fails
    with capture_logs() as lines:
        async with beating(store, lease=3, retention=3):
            await trio.sleep(25)
            failing = False
            await trio.sleep(5)
    assert said(lines, "runs not tended, tried again with the next beat") == pytest.approx([0, 10, 20], abs=1)
    assert len(said(lines, "runs are tended again")) == 1


async def test_a_touch_that_failed_is_made_up_for(autojump_clock: MockClock) -> None:
    store = BeatStore()

    async def touch_fails(name: str) -> None:
        if name == "touch_runs" and store.calls["touch_runs"] < 3:
            raise StoreUnavailableError("on purpose")

    store.before = touch_fails
    async with beating(store, retention=60):
        await trio.sleep(32)
    assert [round(time - store.beats[0]) for time, _ in store.touched] == [30], "with the beats, not in between"
    assert gaps(store.beats) == pytest.approx([5] * (len(store.beats) - 1)), "and the lease is renewed meanwhile"


async def test_cannot_start_without_a_store(autojump_clock: MockClock) -> None:
    store = BeatStore()
    store.down = True
    with pytest.raises(StoreUnavailableError):
        await heartbeat(store).serve()


async def test_restarted_during_an_outage_it_waits_for_the_store(autojump_clock: MockClock) -> None:
    store = BeatStore()
    service = heartbeat(store)

    async def bug(name: str) -> None:
        raise RuntimeError("a bug")

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await service.serve()
        store.before = bug
        with trio.fail_after(6), pytest.raises(RuntimeError):
            await service.serve()
        store.before = None
        store.down = True
        nursery.start_soon(service.serve)
        await trio.sleep(30)
        before = len(store.beats)
        store.down = False
        await trio.sleep(1)
        assert len(store.beats) > before
        nursery.cancel_scope.cancel()


async def test_finished_runs_leave_the_owners_set_with_a_beat(autojump_clock: MockClock) -> None:
    store = BeatStore()
    store.owned["me"] = {"live", "one", "two"}
    for run_id in ("one", "two"):
        store.runs[run_id] = FakeRun(record(run_id).model_copy(update={"status": "succeeded"}), OWNER)
    runs = Runs(["live"], ended=["one", "two"])
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=runs)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        store.lose_replies["release_runs"] = 1
        await trio.sleep(5.1)
        assert service.in_hand() == ("live", "one", "two"), "the reply was lost: it is done again"
        await trio.sleep(5)
        assert service.in_hand() == ("live",)
        assert store.owned["me"] == {"live"}
        calls = store.calls["release_runs"]
        await trio.sleep(60)
        assert store.calls["release_runs"] == calls == 2
        nursery.cancel_scope.cancel()


async def test_a_run_without_an_end_stays_in_the_set_for_a_reaper(autojump_clock: MockClock) -> None:
    """Its actor failed, a refused create left its outcome unknown, or a failover has lost its end."""
    store = BeatStore()
    store.owned["me"] = {"running", "unknown", "over"}
    store.runs["running"] = FakeRun(record("running"), OWNER)
    store.runs["over"] = FakeRun(record("over").model_copy(update={"status": "cancelled"}), OWNER)
    runs = Runs([], ended=["running", "unknown", "over"])
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=runs)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(6)
        assert store.owned["me"] == {"running", "unknown"}
        assert service.in_hand() == ()
        nursery.cancel_scope.cancel()


async def test_runs_whose_node_is_away_stay_in_hand(autojump_clock: MockClock) -> None:
    """They are no strays, and are released when the node is back."""
    store = BeatStore()
    store.owned["me"] = {"far"}
    store.runs["far"] = FakeRun(record("far").model_copy(update={"status": "failed"}), OWNER)
    store.unreachable.add("far")
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=Runs([], ended=["far"]))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(16)
        assert service.in_hand() == ("far",)
        store.unreachable.clear()
        await trio.sleep(5)
        assert (service.in_hand(), store.owned["me"]) == ((), set())
        nursery.cancel_scope.cancel()


async def test_every_beat_names_the_live_runs(autojump_clock: MockClock) -> None:
    """A failover of the set's server may lose what create has written; who dies before it is there again leaves a run
    that nobody judges."""
    store = BeatStore()
    async with beating(store):
        await trio.sleep(6)
        store.owned["me"].clear()
        await trio.sleep(5)
        assert store.owned["me"] == {"a", "b"}
        assert (len(store.beats), store.calls["touch_runs"]) == (3, 0), "with the beats, all in one"


@pytest.mark.parametrize("lease", [1.5, 15])
async def test_an_end_is_kept_before_its_run_is_released(autojump_clock: MockClock, lease: float) -> None:
    """On a cluster a failover may lose it, as long as the replica behind may lack it, and not the release."""
    store = BeatStore()
    runs = Runs([])
    service = Heartbeat(store, OWNER, lease_seconds=lease, retention_seconds=7200, runs=runs, keep_seconds=KEEP_SECONDS)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(lease / 3 * 0.9)
        for run_id in ("kept", "lost"):
            store.owned.setdefault("me", set()).add(run_id)
            store.runs[run_id] = FakeRun(record(run_id).model_copy(update={"status": "succeeded"}), OWNER)
        runs.ended += ["kept", "lost"]
        await trio.sleep(KEEP_SECONDS - 0.01)
        assert store.owned["me"] == {"kept", "lost"}
        assert service.in_hand() == ("kept", "lost"), "no stray: the reaper has nothing to do with them"
        store.runs["lost"].record = record("lost")  # the failover
        await trio.sleep(KEEP_SECONDS + lease)
        assert store.owned["me"] == {"lost"}
        assert service.in_hand() == (), "the reaper's"
        assert store.calls["look"] == 1, "one question, however long it is kept"
        nursery.cancel_scope.cancel()


async def test_a_run_that_ends_again_is_looked_at_again(autojump_clock: MockClock) -> None:
    """A refused create ends when its caller has heard, and once more when its outcome is settled, by a verdict."""
    store = BeatStore()
    store.runs["refused"] = FakeRun(record("refused"), OWNER)
    runs = Runs([], ended=["refused"])
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=runs, keep_seconds=KEEP_SECONDS)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(9)
        runs.ended.append("refused")
        store.runs["refused"].record = record("refused").model_copy(update={"status": "failed"})
        assert service.in_hand() == ("refused",)
        await trio.sleep(2)
        assert "refused" in store.owned["me"], "1 s before the beat that could have released it"
        await trio.sleep(5)
        assert store.owned["me"] == set()
        nursery.cancel_scope.cancel()


async def test_a_leaving_replica_leaves_what_has_just_ended_to_the_others(autojump_clock: MockClock) -> None:
    store = BeatStore()
    runs = Runs([], ended=["old"])
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=runs, keep_seconds=KEEP_SECONDS)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        store.owned["me"] = {"old", "young"}
        for run_id in store.owned["me"]:
            store.runs[run_id] = FakeRun(record(run_id).model_copy(update={"status": "succeeded"}), OWNER)
        await trio.sleep(KEEP_SECONDS)
        runs.ended.append("young")
        await service.retire()
        assert store.owned["me"] == {"young"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("operation", ["heartbeat", "release_runs"])
async def test_a_key_that_cannot_be_read_stops_no_beat(autojump_clock: MockClock, operation: str) -> None:
    """The list of owners, or the set of runs. It is told at once and then seldom, and mended when it is deleted."""
    store = BeatStore()
    spoilt = True

    async def refuse(name: str) -> None:
        if name == operation and spoilt:
            store.leases["me"] = trio.current_time() + 15  # the lease comes first
            raise KeyUnreadableError("a key", "the-key")

    store.before = refuse
    runs = Runs(["a"])
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=runs)
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            for number in range(20):
                runs.ended.append(f"r{number}")
                store.runs[f"r{number}"] = FakeRun(record(f"r{number}").model_copy(update={"status": "failed"}), OWNER)
                await trio.sleep(5)
                assert store.leases["me"] > trio.current_time() + 9
                assert len(service.in_hand()) <= 3, "what ended is not asked for again and again"
            spoilt = False
            store.owned["me"] = set()
            await trio.sleep(5.1)
            assert store.owned["me"] == {"a"}
            nursery.cancel_scope.cancel()
    assert [line["log_level"] for line in lines] == ["error"] * 2
    assert {(line["event"], line["key"]) for line in lines} == {
        ("a key of this replica cannot be read, it is left alone", "the-key")
    }


async def test_a_retired_owner_beats_no_more(autojump_clock: MockClock) -> None:
    """A beat behind the deletion would list a replica that is gone."""
    store = BeatStore()
    service = Heartbeat(store, OWNER, lease_seconds=15, retention_seconds=7200, runs=Runs([]))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        await trio.sleep(7)
        beats = len(store.beats)
        await service.retire()
        await trio.sleep(60)
        assert len(store.beats) == beats
        assert store.calls["retire"] == 1
        nursery.cancel_scope.cancel()


async def test_runs_are_released_although_touching_fails(autojump_clock: MockClock) -> None:
    store = BeatStore()
    store.owned["me"] = {"over"}
    store.runs["over"] = FakeRun(record("over").model_copy(update={"status": "failed"}), OWNER)

    async def touch_fails(name: str) -> None:
        if name == "touch_runs":
            raise StoreUnavailableError("on purpose")

    store.before = touch_fails
    runs = Runs([], ended=["over"])
    async with trio.open_nursery() as nursery:
        await nursery.start(Heartbeat(store, OWNER, lease_seconds=1, retention_seconds=3, runs=runs).serve)
        await trio.sleep(5)
        assert store.owned["me"] == set()
        nursery.cancel_scope.cancel()
