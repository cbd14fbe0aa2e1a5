"""The reaper: whom it judges and when, on a virtual clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
import trio
from pydantic_core import from_json
from structlog.testing import capture_logs
from tests.unit.actors.fake_store import FakeRun, FakeStore
from tests.unit.actors.logs import record
from trio.testing import MockClock

from dify_agent.actors.lease_watch import POLL_SECONDS
from dify_agent.actors.publisher import KEEP_SECONDS
from dify_agent.actors.reaper import STRAY_SECONDS, Reaper
from dify_agent.errors import StoreUnavailableError
from dify_agent.metrics import Metrics
from dify_agent.store.base import CancelIntent, KeyUnreadableError, Owner

ME, LOST, OTHER = Owner("me", 1), Owner("lost", 7), Owner("other", 3)
LEASE = 15.0
SOON = LEASE + 3 * POLL_SECONDS
BOUND = LEASE + 5
"""What is promised, while the store is up (docs/operations.md)."""
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
async def reaping(keep_seconds: float = 0) -> AsyncIterator[Ward]:
    ward = Ward()
    ward.store.leases[ME.id] = float("inf")
    reaper = Reaper(
        ward.store,
        ME,
        lease_seconds=LEASE,
        own_runs=lambda: ward.active,
        metrics=ward.metrics,
        keep_seconds=keep_seconds,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(reaper.serve)
        yield ward
        nursery.cancel_scope.cancel()


async def test_a_lost_owners_run_fails_within_the_lease_and_five_seconds(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.beat(LOST)
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
        w.beat(LOST)  # long known, so that it has no time for being new in the list
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


async def test_an_owner_whose_lease_cannot_be_asked_for_is_not_judged_when_it_can_be_again(
    autojump_clock: MockClock,
) -> None:
    """On a cluster the node of its lease was away for longer than the lease, and all others answered. The owner has to
    have had a lease of time since, as after any outage; another that is lost has not to wait for that."""
    async with reaping() as w:
        w.beat(OTHER)
        w.store.leases["lost"] = trio.current_time() + 60 + LEASE
        await trio.sleep(60)
        w.beat(OTHER)
        run, lost = w.run("r", OTHER), w.run("lost", LOST)
        w.store.unreachable.add("other")
        await trio.sleep(2 * LEASE)
        assert lost.record.status == "failed"
        w.store.unreachable.clear()
        await trio.sleep(LEASE - 2 * POLL_SECONDS)
        assert run.record.status == "running"
        w.beat(OTHER)
        await trio.sleep(LEASE - 0.1)
        assert run.record.status == "running"
        await trio.sleep(5)
        assert run.record.status == "failed", "it was lost in the end"


async def test_a_store_that_took_no_heartbeat_condemns_nobody(autojump_clock: MockClock) -> None:
    """Full or read-only it answers all the same; when it takes writes again, this replica may be the first to renew."""
    async with reaping() as w:
        run = w.run("r")
        w.beat(LOST)
        w.store.leases[ME.id] = w.store.leases[LOST.id]
        await trio.sleep(3 * LEASE)
        w.store.leases[ME.id] = float("inf")
        await trio.sleep(LEASE - POLL_SECONDS)
        assert run.record.status == "running"
        w.beat(LOST)
        await trio.sleep(LEASE - 1)
        assert run.record.status == "running"
        await trio.sleep(1 + SOON)
        assert run.record.status == "failed"


async def test_an_owner_whose_node_fails_again_and_again_is_judged_once_it_answers(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = trio.current_time() + 20
        run = w.run("r")
        for _ in range(10):
            w.store.unreachable.add("lost")
            await trio.sleep(2 * POLL_SECONDS)
            w.store.unreachable.clear()
            await trio.sleep(LEASE - 2 * POLL_SECONDS)
        assert run.record.status == "running"
        await trio.sleep(5)
        assert run.record.status == "failed"


async def test_an_owner_that_is_new_in_the_list_has_a_lease_of_time(autojump_clock: MockClock) -> None:
    """The list itself may have been away or lost, and whoever put the owner in was not the owner."""
    async with reaping() as w:
        await trio.sleep(60)
        w.store.leases["lost"] = trio.current_time()
        run = w.run("r")
        await trio.sleep(LEASE - POLL_SECONDS)
        assert run.record.status == "running"
        await trio.sleep(4 * POLL_SECONDS)
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
        w.store.leases["lost"] = trio.current_time() + 60
        await trio.sleep(60)
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
        w.store.leases["lost"] = trio.current_time() + 60
        await trio.sleep(60)
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


FAULTS = {
    "no answer": StoreUnavailableError("connection cut"),
    "TRYAGAIN": StoreUnavailableError("TRYAGAIN: multiple keys request during rehashing of slot"),
    "a bug": ValueError("on purpose"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_verdict_that_fails_for_one_run_is_tried_again_at_once(autojump_clock: MockClock, fault: str) -> None:
    """The bound holds with one lost reply, and no other run waits for it."""
    async with reaping() as w:
        w.beat(LOST)
        await trio.sleep(60)
        w.beat(LOST)
        runs = [w.run(f"r{number}") for number in range(3)]

        async def fail(name: str) -> None:
            if name == "judge" and w.store.calls["judge"] == 1:
                raise FAULTS[fault]

        w.store.before = fail
        lost_at = trio.current_time()
        while runs[2].record.status == "running":  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.1)
        assert [run.record.status for run in runs] == ["running", "failed", "failed"]
        await trio.sleep_until(lost_at + BOUND)
        assert runs[0].record.status == "failed"
        assert w.store.owned["lost"] == set()


@pytest.mark.parametrize("operation", ["read_owned", "look", "judge", "release_runs", "forget_owner"])
async def test_one_lost_reply_keeps_nobody_past_the_bound(autojump_clock: MockClock, operation: str) -> None:
    """Of two lost owners; the next poll asks again, and a lease later would be too late."""
    async with reaping() as w:
        w.store.leases |= dict.fromkeys(("lost", "other"), trio.current_time() + 60)
        runs = [w.run("r1"), w.run("r2", OTHER)]
        await trio.sleep(60 - LEASE)
        lost_at = trio.current_time()
        failed = False

        async def fail(name: str) -> None:
            nonlocal failed
            # The reaper's questions about its own runs go on meanwhile.
            if name == operation and not failed and trio.current_time() > lost_at + LEASE:
                failed = True
                raise StoreUnavailableError("one reply lost on purpose")

        w.store.before = fail
        await trio.sleep_until(lost_at + BOUND)
        assert failed
        assert [run.record.status for run in runs] == ["failed", "failed"]


async def test_a_run_that_no_look_answered_for_is_looked_at_with_the_next_poll(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = trio.current_time() + 60
        run = w.run("r")
        w.store.owned["lost"].add("without a record")
        w.store.unreachable.add("r")
        await trio.sleep(62)
        w.store.unreachable.clear()  # its node was away for a moment
        await trio.sleep(POLL_SECONDS)
        assert run.record.status == "failed"


async def test_three_cancels_in_between_delay_a_verdict_by_one_poll(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.beat(LOST)
        run = w.run("r")

        async def cancel(name: str) -> None:
            if name == "judge" and w.store.calls["judge"] <= 3:
                run.intent = INTENT
            elif name == "look":
                run.intent = None

        w.store.before = cancel
        await trio.sleep(BOUND)
        assert w.store.calls["judge"] > 3
        assert run.record.status != "running"


async def test_only_a_set_without_records_waits_for_a_lease(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = 0
        w.store.owned["lost"] = {"without a record"}
        await trio.sleep(10 * LEASE)
        assert w.store.calls["forget_owner"] == pytest.approx(9, abs=1)


async def test_what_fails_again_and_again_is_told_once_in_a_lease(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases["lost"] = 0
        w.run("r")

        async def fail(name: str) -> None:
            if name == "judge":
                raise StoreUnavailableError("READONLY")

        w.store.before = fail
        with capture_logs() as lines:
            await trio.sleep(5 * LEASE)
        assert w.store.calls["judge"] > 3 * LEASE / POLL_SECONDS
        assert [line["event"] for line in lines].count("run not judged, it is tried again") == pytest.approx(4, abs=1)
        assert len(lines) <= 10


async def test_an_owner_that_came_back_while_another_was_judged_is_spared(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.store.leases |= dict.fromkeys(("lost", "other"), trio.current_time() + 60)
        await trio.sleep(60)
        lost, spared = w.run("r1"), w.run("r2", OTHER)

        async def revive(name: str) -> None:
            if name == "judge":
                w.beat(OTHER)

        w.store.before = revive
        await trio.sleep(3)
        assert (lost.record.status, spared.record.status) == ("failed", "running")


async def test_a_run_whose_own_actor_failed_is_not_told_that_its_replica_was_lost(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        stray = w.run("stray", ME)
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


UNREADABLE = KeyUnreadableError("a key", "the-key")


@pytest.mark.parametrize("operation", ["read_leases", "read_owned", "release_runs"])
async def test_a_key_of_owners_that_cannot_be_read_ends_no_reaper(autojump_clock: MockClock, operation: str) -> None:
    """The list of owners, this replica's set or the lost one's: told once in a lease; judged when it is mended."""
    async with reaping() as w:
        w.store.leases["lost"] = 0
        run = w.run("r")
        w.store.owned["me"] = {"stray"}
        spoilt = True

        async def refuse(name: str) -> None:
            if name == operation and spoilt:
                raise UNREADABLE

        w.store.before = refuse
        with capture_logs() as lines:
            await trio.sleep(5 * LEASE)
        told = [line for line in lines if line.get("key") == "the-key"]
        assert 3 <= len(told) <= 6
        assert {line["log_level"] for line in told} == {"error"}
        spoilt = False
        await trio.sleep(2 * SOON)
        assert run.record.status == "failed"
        assert w.store.owned["lost"] == set()


async def test_the_own_set_that_cannot_be_read_keeps_no_lost_owner_from_its_verdict(autojump_clock: MockClock) -> None:
    async with reaping() as w:
        w.beat(LOST)
        run = w.run("r")
        read_owned = w.store.read_owned

        async def refuse(owner_id: str) -> Sequence[str]:
            if owner_id == ME.id:
                raise UNREADABLE
            return await read_owned(owner_id)

        w.store.read_owned = refuse  # type: ignore[method-assign]
        await trio.sleep(BOUND)
        assert run.record.status == "failed"


# Ends that a failover may lose.


async def test_a_verdict_stands_before_its_run_is_released(autojump_clock: MockClock) -> None:
    """One shard of a cluster fails over right after it: what it has lost is found again, and judged once more."""
    async with reaping(keep_seconds=KEEP_SECONDS) as w:
        w.beat(LOST)
        kept, lost = w.run("kept"), w.run("lost")
        ended = w.run("ended")
        ended.record = ended.record.model_copy(update={"status": "succeeded"})
        while lost.record.status == "running":  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.1)
        await trio.sleep(KEEP_SECONDS - 0.2)
        assert w.store.owned["lost"] == {"kept", "lost", "ended"}
        for run in (lost, ended):
            run.record, run.events = record(run.record.run_id), []
        await trio.sleep(0.2 + 2 * POLL_SECONDS)
        assert w.store.owned["lost"] == {"lost", "ended"}
        assert [run.types for run in (kept, lost, ended)] == [["run_failed"]] * 3
        await trio.sleep(KEEP_SECONDS + 2 * POLL_SECONDS)
        assert w.store.owned["lost"] == set()
        assert w.store.calls["judge"] == 4, "none twice but the one that was lost"


async def test_what_cannot_be_read_is_told_once_although_it_is_kept(autojump_clock: MockClock) -> None:
    async with reaping(keep_seconds=KEEP_SECONDS) as w:
        w.store.leases["lost"] = 0
        w.run("odd")
        w.store.unreadable.add("odd")
        with capture_logs() as lines:
            await trio.sleep(2 * SOON)
        assert w.store.owned["lost"] == set()
        assert [line["event"] for line in lines] == ["record of a lost owner's run cannot be read, it is left alone"]
