"""The reaper: whom it judges and when, on a virtual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
import trio
from pydantic_core import from_json
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock

from dify_agent.actors.reaper import POLL_SECONDS, STRAY_SECONDS, Reaper
from dify_agent.metrics import Metrics
from dify_agent.store.base import CancelIntent, Owner

ME, LOST, OTHER = Owner("me", 1), Owner("lost", 7), Owner("other", 3)
LEASE = 15.0
SOON = LEASE + 3 * POLL_SECONDS
INTENT = CancelIntent("user", "enough", datetime.now(UTC))


@dataclass
class Ward:
    """A reaper over a fake store."""

    store: FakeStore = field(default_factory=FakeStore)
    active: set[str] = field(default_factory=set)
    metrics: Metrics = field(default_factory=Metrics)

    def run(self, run_id: str, owner: Owner = LOST, *, intent: CancelIntent | None = None) -> FakeRun:
        self.store.owned.setdefault(owner.id, set()).add(run_id)
        run = self.store.runs[run_id] = FakeRun(record(run_id), owner, intent=intent)
        return run

    def beat(self, owner: Owner) -> None:
        """A heartbeat now."""
        self.store.leases[owner.id] = trio.current_time() + LEASE


@asynccontextmanager
async def reaping() -> AsyncIterator[Ward]:
    ward = Ward()
    reaper = Reaper(ward.store, ME, lease_seconds=LEASE, own_runs=lambda: ward.active, metrics=ward.metrics)
    async with trio.open_nursery() as nursery:
        await nursery.start(reaper.serve)
        yield ward
        nursery.cancel_scope.cancel()


async def test_a_lost_owners_run_fails_within_the_lease_and_five_seconds(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        await trio.sleep(100)
        w.beat(LOST)
        run = w.run("r")
        await trio.sleep(LEASE - 0.1)
        assert run.record.status == "running", "its lease still holds"
        await trio.sleep(POLL_SECONDS + 0.1)
        assert run.record.status == "failed"
        data = from_json(run.events[-1].payload)["data"]
        assert (data["reason"], data["error_type"], data["session_snapshot"]) == ("owner_lost", None, None)
        assert "DIFY_AGENT_OWNER_LEASE_SECONDS" in data["error"]
        assert run.record.error == data["error"]
        assert w.store.owned["lost"] == set()
        assert "lost" in w.store.leases, "it may be frozen, and come back"
        await trio.sleep(w.store.retention + LEASE)
        assert "lost" not in w.store.leases
        assert w.metrics.registry.get_sample_value("dify_agent_verdicts_total", {"outcome": "failed"}) == 1


async def test_an_accepted_cancel_is_honoured_although_the_owner_is_dead(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.beat(LOST)
        run = w.run("r", intent=INTENT)
        await trio.sleep(SOON)
        assert run.types == ["run_cancelled"]
        data = from_json(run.events[-1].payload)["data"]
        assert (data["reason"], data["message"]) == ("user", "enough")
        assert run.intent is None


async def test_a_cancel_accepted_between_look_and_verdict_wins(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.beat(LOST)
        run = w.run("r")

        async def cancel(name: str) -> None:
            if name == "judge" and w.store.calls["judge"] == 1:
                run.intent = INTENT

        w.store.before = cancel
        await trio.sleep(SOON)
        assert run.record.status == "cancelled"


async def test_living_owners_and_their_runs_are_left_alone(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        run = w.run("r", OTHER)
        for _ in range(30):
            w.beat(OTHER)
            await trio.sleep(LEASE / 3)
        assert run.record.status == "running"
        assert w.store.calls["judge"] == 0


async def test_a_young_reaper_judges_nobody(autojump_clock: MockClock) -> None:
    """It has not seen for a lease that heartbeats had a chance: the store may have been back for a second only."""
    async with reaping() as w:
        w.store.leases["lost"] = 0
        run = w.run("r")
        await trio.sleep(LEASE - POLL_SECONDS)
        assert run.record.status == "running"


async def test_an_outage_of_the_store_condemns_nobody(autojump_clock: MockClock) -> None:
    """Longer than the lease: measured once to end every healthy run."""
    async with reaping() as w:
        await trio.sleep(60)
        w.beat(OTHER)
        run = w.run("r", OTHER)
        w.store.down = True
        await trio.sleep(2 * LEASE)
        w.store.down = False
        await trio.sleep(LEASE / 3)
        w.beat(OTHER)  # as a heartbeat does when the store is back
        await trio.sleep(LEASE - 1)
        assert run.record.status == "running"


async def test_a_single_failed_look_starts_the_time_anew(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases["lost"] = trio.current_time() + 1
        run = w.run("r")
        w.store.down = True
        await trio.sleep(POLL_SECONDS + 0.1)
        w.store.down = False
        await trio.sleep(LEASE - 2 * POLL_SECONDS)
        assert run.record.status == "running"
        await trio.sleep(5 * POLL_SECONDS)
        assert run.record.status == "failed"


async def test_a_reaper_that_was_stopped_starts_the_time_anew(autojump_clock: MockClock) -> None:
    """SIGSTOP, a suspended machine: it did not watch, so a missing lease proves nothing."""
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases["lost"] = trio.current_time() + 1
        run = w.run("r")

        async def stall(name: str) -> None:
            w.store.before = None
            await trio.sleep(60)

        w.store.before = stall
        await trio.sleep(60 + POLL_SECONDS)
        assert run.record.status == "running"
        await trio.sleep(SOON)
        assert run.record.status == "failed"


async def test_a_reaper_that_is_frozen_in_the_middle_of_a_pass_judges_nobody(autojump_clock: MockClock) -> None:
    """The store was away meanwhile, too: the lease is gone, and its owner had no chance to renew it yet."""
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases["lost"] = trio.current_time()
        run = w.run("r")

        async def freeze(name: str) -> None:
            if name == "read_owned":
                w.store.before = None
                await trio.sleep(60)

        w.store.before = freeze
        await trio.sleep(60 + 2 * POLL_SECONDS)
        assert run.record.status == "running"
        await trio.sleep(SOON)
        assert run.record.status == "failed"


async def test_an_owner_that_comes_back_while_it_is_judged_keeps_the_rest(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases["lost"] = trio.current_time()
        runs = [w.run(f"r{n:03}") for n in range(250)]

        async def revive(name: str) -> None:
            if name == "judge" and w.store.calls["judge"] == 150:
                w.beat(LOST)

        w.store.before = revive
        await trio.sleep(3)
        statuses = [run.record.status for run in runs]
        assert statuses == ["failed"] * 200 + ["running"] * 50
        assert len(w.store.owned["lost"]) == 50


async def test_runs_that_ended_or_have_another_owner_are_only_forgotten(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = 0
        ended, moved = w.run("ended"), w.run("moved")
        ended.record = ended.record.model_copy(update={"status": "succeeded"})
        moved.owner = OTHER
        w.store.owned["lost"].add("without a record")
        await trio.sleep(SOON)
        assert (ended.events, moved.events) == ([], [])
        assert moved.record.status == "running"
        assert w.store.owned["lost"] == {"without a record"}, "a frozen owner may yet write it"


async def test_a_record_that_a_frozen_owner_wrote_at_last_is_judged(autojump_clock: MockClock) -> None:
    """It was frozen between its set and the record, went on, and died before it could renew its lease."""
    async with reaping() as w:
        w.store.leases["lost"] = 0
        w.store.owned["lost"] = {"late"}
        await trio.sleep(SOON + LEASE)
        run = w.run("late")
        await trio.sleep(SOON)
        assert run.record.status == "failed"


async def test_own_entries_without_a_record_are_forgotten_in_the_end(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.owned["me"] = {"refused"}
        await trio.sleep(SOON + STRAY_SECONDS / 2)
        assert w.store.owned["me"] == {"refused"}
        await trio.sleep(STRAY_SECONDS)
        assert w.store.owned["me"] == set()


async def test_what_cannot_be_reached_or_read_keeps_nobody_else_from_a_verdict(autojump_clock: MockClock) -> None:
    """A node of a cluster is away, and a key of one run holds something else."""
    async with reaping() as w:
        w.store.leases |= {"lost": 0, "away": 0}
        good, odd, far = w.run("good"), w.run("odd"), w.run("far")
        other = w.run("other", Owner("away", 1))
        w.store.unreadable.add("odd")
        w.store.unreachable |= {"far", "away"}
        await trio.sleep(SOON)
        assert good.record.status == "failed"
        assert {run.record.status for run in (odd, far, other)} == {"running"}
        assert w.store.owned["lost"] == {"far"}
        w.store.unreachable.clear()
        await trio.sleep(SOON + LEASE)
        assert (far.record.status, other.record.status) == ("failed", "failed")


async def test_a_verdict_that_fails_for_one_run_is_tried_again(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = 0
        runs = [w.run(f"r{number}") for number in range(3)]

        async def fail(name: str) -> None:
            if name == "judge" and w.store.calls["judge"] == 1:
                raise ValueError("a key of the wrong type")

        w.store.before = fail
        await trio.sleep(SOON)
        assert [run.record.status for run in runs] == ["running", "failed", "failed"]
        assert w.store.owned["lost"] == {"r0"}
        await trio.sleep(SOON)
        assert runs[0].record.status == "failed"


async def test_an_owner_that_came_back_while_another_was_judged_is_spared(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases |= {"lost": trio.current_time(), "other": trio.current_time()}
        w.run("r1")
        spared = w.run("r2", OTHER)

        async def revive(name: str) -> None:
            if name == "judge":
                w.beat(OTHER)

        w.store.before = revive
        await trio.sleep(3)
        assert spared.record.status == "running"


async def test_a_run_whose_own_actor_failed_is_not_told_that_its_replica_was_lost(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        stray = w.run("stray", ME)
        w.beat(ME)
        await trio.sleep(SOON)
        assert stray.record.error == (
            "The replica that executed this run failed to end it. The run's result and snapshot are lost."
        )


async def test_own_runs_that_nobody_executes_are_judged(autojump_clock: MockClock) -> None:
    """An actor that failed left the run running."""
    async with reaping() as w:
        w.active.add("alive")
        alive, stray = w.run("alive", ME), w.run("stray", ME)
        for _ in range(6):
            w.beat(ME)
            await trio.sleep(LEASE / 3)
        assert alive.record.status == "running"
        assert stray.record.status == "failed"


@pytest.mark.parametrize("operation", ["read_leases", "read_owned", "look", "judge", "release_runs", "forget_owner"])
async def test_a_store_that_fails_in_the_middle_is_tried_again(autojump_clock: MockClock, operation: str) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = 0
        run = w.run("r")
        failed = False

        async def fail(name: str) -> None:
            nonlocal failed
            if name == operation and not failed and trio.current_time() >= LEASE:
                failed = w.store.down = True
            else:
                w.store.down = False

        w.store.before = fail
        await trio.sleep(2 * LEASE + 5)
        assert failed
        assert run.record.status == "failed"
        assert run.types == ["run_failed"]
        assert w.store.owned["lost"] == set()
