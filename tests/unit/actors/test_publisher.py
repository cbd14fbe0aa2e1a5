"""The publisher: order, batches, budgets, lost replies, outages, and what it does when it is cancelled."""

from collections.abc import Sequence

import pytest
import structlog
import trio
from tests.unit.actors.logs import Desk, desk, event, flushed, payload
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.messages import StopKind
from dify_agent.actors.publisher import PIPELINE_BYTES, PIPELINE_RUNS, Publisher
from dify_agent.actors.run_log import BATCH_BYTES, BATCH_EVENTS, LogLostError, RunLog, batch_bytes
from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START
from dify_agent.store.base import AppendBatch, AppendOutcome, RecordUnreadableError


class Gate:
    """Holds every append until it is opened; counts those inside."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.inside = 0
        self.most = 0

    async def __call__(self, name: str) -> None:
        if name != "append":
            return
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        self.inside -= 1


async def test_keeps_each_runs_order(autojump_clock: MockClock) -> None:
    async with desk() as d:
        one, two = d.open("one"), d.open("two")
        for n in range(50):
            one.offer(f"a{n}")
            two.offer(f"b{n}")
            if n % 7 == 0:
                await trio.sleep(0.01)
        await flushed(one.log)
        await flushed(two.log)
        assert d.texts("one") == [f"a{n}" for n in range(50)]
        assert d.texts("two") == [f"b{n}" for n in range(50)]
        ids = [event.id for event in d.store.runs["one"].events]
        assert [event_id.n for event_id in ids] == list(range(1, 51))
        assert ids == sorted(ids)
        assert one.live.top == ids[-1]


async def test_events_pile_up_into_one_batch_while_another_is_in_flight(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.store.before = gate = Gate()
        log = d.open("one")
        log.offer("first")
        await wait_all_tasks_blocked()
        log.offer(*(f"{n}" for n in range(100)))
        other = d.open("two")
        other.offer("x")
        await wait_all_tasks_blocked()
        assert gate.inside == 1
        gate.open.set()
        await flushed(log.log)
        await flushed(other.log)
        assert d.store.calls["append"] == 2
        assert gate.most == 1
        assert d.texts("one") == ["first", *(f"{n}" for n in range(100))]


async def test_a_batch_is_bounded_in_events_and_bytes(autojump_clock: MockClock) -> None:
    async with desk(queue_bytes=1 << 30) as d:
        log = d.open("one")
        log.offer(*("x" for _ in range(2 * BATCH_EVENTS + 1)))
        await flushed(log.log)
        assert d.store.calls["append"] == 3
        half = "y" * (BATCH_BYTES // 2 + 1)
        log.offer(*(half for _ in range(4)))
        await flushed(log.log)
        assert d.store.calls["append"] == 5


async def test_more_runs_than_one_pipeline_takes_are_all_served(autojump_clock: MockClock) -> None:
    async with desk() as d:
        logs = [d.open(f"run{n}") for n in range(3 * PIPELINE_RUNS)]
        for log in logs:
            log.offer("x")
        for log in logs:
            await flushed(log.log)
        assert d.store.calls["append"] == 3


async def test_a_busy_run_does_not_keep_others_waiting(autojump_clock: MockClock) -> None:
    async with desk() as d:
        busy = [d.open(f"busy{n}") for n in range(PIPELINE_RUNS)]
        late = d.open("late")

        async def keep_busy(name: str) -> None:
            for log in busy:
                log.offer("more")

        d.store.before = keep_busy
        for log in busy:
            log.offer("x")
        late.offer("x")
        await flushed(late.log)
        d.store.before = None
        assert d.store.calls["append"] <= 3, "served by the second; the third may have begun"


def spoil(d: Desk, *run_ids: str) -> list[list[str]]:
    """Make these runs' batches fail with an error that may pass, for ever; gives each round trip's runs."""
    real_append = d.store.append
    sent: list[list[str]] = []

    async def append(batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        sent.append([batch.run_id for batch in batches])
        good = [batch for batch in batches if batch.run_id not in run_ids]
        outcomes = iter(await real_append(good))
        return [StoreUnavailableError("OOM") if batch.run_id in run_ids else next(outcomes) for batch in batches]

    d.store.append = append  # type: ignore[method-assign]
    return sent


async def test_a_round_trip_is_bounded_in_bytes_so_that_a_slow_link_gets_done(autojump_clock: MockClock) -> None:
    """A link of 1 MB/s with the store's time limit of 5 s: what does not fit into that is never written."""
    async with desk(queue_bytes=1 << 30) as d:
        real_append = d.store.append
        sent: list[str] = []

        async def append(batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
            size = sum(batch_bytes(batch) for batch in batches)
            assert size <= PIPELINE_BYTES + BATCH_BYTES + 100
            with trio.move_on_after(5):
                await trio.sleep(size / 1e6)
                sent.extend(batch.run_id for batch in batches)
                return await real_append(batches)
            raise StoreUnavailableError("no answer within 5 s")

        d.store.append = append  # type: ignore[method-assign]
        logs = [d.open(f"run{n}") for n in range(10)]
        for log in logs:
            log.offer("x" * BATCH_BYTES)
        with trio.fail_after(11):
            for log in logs:
                await flushed(log.log)
        assert sent == [f"run{n}" for n in range(10)]


# Budgets.


async def test_a_flooding_run_waits_alone(autojump_clock: MockClock) -> None:
    async with desk(queue_bytes=16_000) as d:
        d.store.before = gate = Gate()
        flood, other = d.open("flood"), d.open("other")
        flood.offer("x" * 1000)
        assert not flood.log.has_room
        assert other.log.has_room
        with pytest.raises(trio.TooSlowError), trio.fail_after(5):
            await flood.log.wait_for_room()
        gate.open.set()
        with trio.fail_after(1):
            await flood.log.wait_for_room()
        assert d.publisher.budget.used == 0


async def test_the_process_budget_stops_everyone(autojump_clock: MockClock) -> None:
    async with desk(queue_bytes=16_000) as d:
        d.store.before = gate = Gate()
        logs = [d.open(f"run{n}") for n in range(18)]
        for log in logs[:-1]:
            log.offer("x" * 950)
        assert not d.publisher.budget.has_room
        assert not logs[-1].log.has_room
        with pytest.raises(trio.TooSlowError), trio.fail_after(5):
            await logs[-1].log.wait_for_room()
        gate.open.set()
        with trio.fail_after(1):
            await logs[-1].log.wait_for_room()


async def test_a_lost_log_gives_its_bytes_back_and_wakes_its_producer(autojump_clock: MockClock) -> None:
    async with desk(queue_bytes=16_000) as d:
        d.store.before = gate = Gate()
        log = d.open("one")
        log.offer("x" * 1000)
        await wait_all_tasks_blocked()
        log.offer("y" * 1000)
        del d.store.runs["one"]
        gate.open.set()
        with trio.fail_after(1):
            await log.log.wait_for_room()
        assert log.log.lost is StopKind.RECORD_LOST
        assert d.publisher.budget.used == 0
        log.offer("dropped")
        assert d.publisher.budget.used == 0


# Lost replies and outages.


@pytest.mark.parametrize("lost", [1, 3])
async def test_lost_replies_leave_no_double_and_no_hole(autojump_clock: MockClock, lost: int) -> None:
    async with desk() as d:
        log = d.open("one")
        for n in range(20):
            if n % 5 == 0:
                d.store.lose_replies["append"] = lost
            log.offer(f"{n}", f"{n}'")
            await trio.sleep(0.1)
        await flushed(log.log)
        assert d.texts("one") == [text for n in range(20) for text in (f"{n}", f"{n}'")]
        assert [event.id.n for event in d.store.runs["one"].events] == list(range(1, 41))
        assert log.told == []


async def test_a_lost_reply_of_one_run_does_not_repeat_the_others(autojump_clock: MockClock) -> None:
    async with desk() as d:
        one, two = d.open("one"), d.open("two")
        d.store.lose_replies["append"] = 1
        one.offer("a")
        two.offer("b")
        await flushed(one.log)
        await flushed(two.log)
        assert (d.texts("one"), d.texts("two")) == (["a"], ["b"])


async def test_an_outage_queues_and_writes_in_order(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        log = d.open("one")
        d.store.down = True
        for n in range(50):
            log.offer(f"{n}")
            await trio.sleep(1)
        assert d.store.runs["one"].events == []
        assert d.store.calls["append"] < 80, "retries back off"
        d.store.down = False
        with trio.fail_after(2):
            await flushed(log.log)
        assert d.texts("one") == [f"{n}" for n in range(50)]
        assert log.told == []


async def test_an_outage_past_the_bound_is_told_once_and_keeps_the_events(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        log = d.open("one")
        d.store.down = True
        log.offer("before")
        await trio.sleep(59)
        assert log.told == []
        await trio.sleep(3)
        assert log.told == [(StopKind.STORE_UNAVAILABLE, "for 60 s")]
        await trio.sleep(100)
        assert len(log.told) == 1
        d.store.down = False
        with trio.fail_after(2):
            await flushed(log.log)
        assert d.texts("one") == ["before"]


async def test_two_short_outages_are_not_one_long_one(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        log = d.open("one")
        for _ in range(3):
            d.store.down = True
            log.offer("x")
            await trio.sleep(40)
            d.store.down = False
            await flushed(log.log)
        assert log.told == []


async def test_a_run_whose_batch_is_never_taken_stops_alone(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        bad, good, late = d.open("bad"), d.open("good"), d.open("late")
        sent = spoil(d, "bad")
        bad.offer("x")
        for n in range(590):
            good.offer(f"{n}")
            with trio.fail_after(0.01):  # the bad one's pauses are not its siblings'
                await flushed(good.log)
            await trio.sleep(0.1)
        assert bad.told == []
        await trio.sleep(3)
        late.offer("y")
        await flushed(late.log)
        assert bad.told == [(StopKind.STORE_UNAVAILABLE, "for 60 s")]
        assert good.told == late.told == []
        assert sum("bad" in runs for runs in sent) < 80, "it is not sent again with every round trip"


async def test_runs_that_have_events_during_anothers_trouble_are_not_blamed(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        bad, good = d.open("bad"), d.open("good")
        spoil(d, "bad")
        real_append = d.store.append

        async def append(batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
            if [batch.run_id for batch in batches] == ["bad"] and good.log.idle:
                good.offer("in the middle of a round trip without any answer")
            return await real_append(batches)

        d.store.append = append  # type: ignore[method-assign]
        bad.offer("x")
        await trio.sleep(100)
        assert len(bad.told) == 1
        assert good.told == []


async def test_an_outage_reaches_more_runs_than_a_round_trip_holds_in_time(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:

        async def hang(name: str) -> None:
            await trio.sleep(5)
            raise StoreUnavailableError("no answer within 5 s")

        d.store.before = hang
        logs = [d.open(f"run{n}") for n in range(8 * PIPELINE_RUNS)]
        for log in logs:
            log.offer("x")
        await trio.sleep(60)
        assert all(log.told == [] for log in logs)
        await trio.sleep(15)
        assert all(log.told == [(StopKind.STORE_UNAVAILABLE, "for 60 s")] for log in logs)
        d.store.before = None
        with trio.fail_after(10):
            for log in logs:
                await flushed(log.log)


async def test_runs_that_are_about_to_be_written_again_are_not_stopped(autojump_clock: MockClock) -> None:
    """The store is back just in time, but slow: what waits for its turn is not lost any more."""
    async with desk(outage_seconds=60) as d:
        logs = [d.open(f"run{n}") for n in range(4 * PIPELINE_RUNS)]
        d.store.down = True
        for log in logs:
            log.offer("x")

        async def slowly(name: str) -> None:
            await trio.sleep(3)

        await trio.sleep(55)
        d.store.before = slowly
        d.store.down = False
        for log in logs:
            await flushed(log.log)
        assert trio.current_time() > 65
        assert all(log.told == [] for log in logs)


async def test_trouble_and_its_end_are_logged_once(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        logs = [d.open(f"run{n}") for n in range(3)]
        with structlog.testing.capture_logs() as lines:
            d.store.down = True
            for _ in range(20):
                for log in logs:
                    log.offer("x")
                await trio.sleep(1)
            d.store.down = False
            for log in logs:
                await flushed(log.log)
        trouble = [(line["log_level"], line["event"]) for line in lines if line["log_level"] != "debug"]
        assert trouble == [("warning", "store unavailable, events are queued"), ("info", "store is back")]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        ("sealed", StopKind.SEALED),
        ("missing", StopKind.RECORD_LOST),
        ("gap", StopKind.SEALED),
    ],
)
async def test_a_log_that_takes_no_more_is_told_once(autojump_clock: MockClock, spoil: str, kind: StopKind) -> None:
    async with desk() as d:
        log, sibling = d.open("one"), d.open("two")
        log.offer("x")
        await flushed(log.log)
        run = d.store.runs["one"]
        if spoil == "sealed":
            run.record = run.record.model_copy(update={"status": "failed"})
        elif spoil == "missing":
            del d.store.runs["one"]
        else:
            run.events.append(event(2, ms=2**60, filler="of somebody else"))
        log.offer("y", "z")
        sibling.offer("s")
        with pytest.raises(LogLostError):
            await flushed(log.log)
        log.offer("late")
        await trio.sleep(5)
        assert [told for told, _ in log.told] == [kind]
        assert d.publisher.budget.used == 0
        assert d.texts("two") == ["s"]
        assert sibling.told == []


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_acknowledged_events_that_a_failover_lost_are_written_again(autojump_clock: MockClock, kept: int) -> None:
    """R21. Readers of this replica got them before and do not get them twice."""
    async with desk() as d:
        log, sibling = d.open("one"), d.open("two")
        for filler in "abcd":
            log.offer(filler)
            await flushed(log.log)
        run = d.store.runs["one"]
        del run.events[kept:]
        log.offer("e")
        sibling.offer("s")
        await flushed(log.log)
        await flushed(sibling.log)
        assert d.texts("one") == ["a", "b", "c", "d", "e"]
        assert [event.id.n for event in run.events] == [1, 2, 3, 4, 5]
        assert [event.id.n for event in log.live.after(START, 100)] == [1, 2, 3, 4, 5]
        assert log.told == []
        assert d.publisher.budget.used == 0
        log.offer("f")
        await flushed(log.log)
        assert d.texts("one")[-1] == "f"


async def test_only_the_last_seconds_are_kept_for_a_failover(autojump_clock: MockClock) -> None:
    """What is older is lost with the old primary; the run goes on, and the hole shows in the ordinals."""
    async with desk() as d:
        log = d.open("one")
        for filler in "abcd":
            log.offer(filler)
            await flushed(log.log)
            await trio.sleep(1.5)
        d.store.runs["one"].events.clear()
        log.offer("e")
        await flushed(log.log)
        assert d.texts("one") == ["c", "d", "e"]


async def test_what_is_kept_for_a_failover_is_bounded_for_all_runs_together(autojump_clock: MockClock) -> None:
    async with desk(queue_bytes=16 * 1000) as d:
        logs = [d.open(f"run-{number}") for number in range(60)]
        for log in logs:
            log.offer("x" * 200)
            await flushed(log.log)
        kept = [batch for log in logs for batch in d.publisher.kept(log.log.run_id)]
        assert 5 <= len(kept) <= 16
        assert d.publisher.kept(logs[-1].log.run_id)
        d.store.runs["run-0"].events.clear()
        logs[0].offer("last")
        await flushed(logs[0].log)
        assert d.texts("run-0") == ["last"], "what is not kept any more is lost, and the run goes on"


async def test_a_second_failover_in_the_middle_of_the_first(autojump_clock: MockClock) -> None:
    """The batch with the lost events in front was not answered, and the next primary has even less."""
    async with desk() as d:
        log, sibling = d.open("one"), d.open("two")
        for filler in "abcd":
            log.offer(filler)
            await flushed(log.log)
        run = d.store.runs["one"]
        del run.events[3:]
        seen = 0

        async def fail_over(name: str) -> None:
            nonlocal seen
            if name == "append" and d.store.calls["read_tops"] == 1 and not seen:
                seen = 1
                del run.events[1:]
                d.store.down = True
            elif name == "append":
                d.store.down = False

        d.store.before = fail_over
        log.offer("e")
        sibling.offer("s")
        await flushed(log.log)
        await flushed(sibling.log)
        assert seen
        assert d.texts("one") == ["a", "b", "c", "d", "e"]
        assert d.texts("two") == ["s"]
        assert d.publisher.budget.used == 0
        assert log.told == []


async def test_a_reply_lost_while_lost_events_are_written_again_doubles_nothing(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.open("one")
        for filler in "abc":
            log.offer(filler)
            await flushed(log.log)
        del d.store.runs["one"].events[1:]

        async def lose(name: str) -> None:
            if name == "read_tops":
                d.store.lose_replies["append"] = 1

        d.store.before = lose
        log.offer("d")
        await flushed(log.log)
        assert d.texts("one") == ["a", "b", "c", "d"]
        assert d.publisher.budget.used == 0


async def test_one_unreadable_record_does_not_stop_the_publisher(autojump_clock: MockClock) -> None:
    async with desk() as d:
        bad, good = d.open("bad"), d.open("good")
        real_append = d.store.append

        async def append(batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
            outcomes = list(await real_append(batches))
            for i, batch in enumerate(batches):
                if batch.run_id == "bad":
                    outcomes[i] = RecordUnreadableError("bad", "key")
            return outcomes

        d.store.append = append  # type: ignore[method-assign]
        bad.offer("x")
        good.offer("y")
        await flushed(good.log)
        with pytest.raises(LogLostError):
            await flushed(bad.log)
        assert [kind for kind, _ in bad.told] == [StopKind.RECORD_UNREADABLE]
        assert good.told == []


# Its own life.


async def test_a_restarted_publisher_sends_what_was_in_flight_again(autojump_clock: MockClock) -> None:
    async with desk(serve=False) as d:
        log = d.open("one")
        log.offer("a", "b")

        async def fail(name: str) -> None:
            raise RuntimeError("a bug")

        d.store.before = fail
        with pytest.raises(RuntimeError):
            await d.publisher.serve()
        d.store.before = None
        log.offer("c")
        await d.nursery.start(d.publisher.serve)
        await flushed(log.log)
        assert d.texts("one") == ["a", "b", "c"]


async def test_a_crash_between_the_answers_loses_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(serve=False) as d:
        one, two = d.open("one"), d.open("two")
        one.offer("a")
        two.offer("b")
        with trio.fail_after(1):
            async with trio.open_nursery() as waiting:
                waiting.start_soon(flushed, one.log)
                waiting.start_soon(flushed, two.log)
                await wait_all_tasks_blocked()
                with monkeypatch.context() as patch:
                    patch.setattr(two.live, "extend", lambda events: 1 / 0)
                    with pytest.raises(ZeroDivisionError):
                        await d.publisher.serve()
                await d.nursery.start(d.publisher.serve)
        two.offer("d")
        with trio.fail_after(1):
            await flushed(two.log)
        assert d.texts("one") == ["a"]
        assert d.texts("two") == ["b", "d"]


async def test_given_up_it_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    async with desk(serve=False, queue_bytes=16_000) as d:
        in_flight, waiting, idle = d.open("in flight"), d.open("waiting"), d.open("idle")

        async def fail(name: str) -> None:
            raise RuntimeError("a bug")

        d.store.before = fail
        in_flight.offer("x" * 2000)
        with pytest.raises(RuntimeError):
            await d.publisher.serve()
        in_flight.offer("y")
        waiting.offer("z" * 2000)
        ended: list[str] = []

        async def wait(run_id: str, log: RunLog) -> None:
            await log.wait_for_room()
            await flushed(log)
            ended.append(run_id)

        d.nursery.start_soon(wait, "in flight", in_flight.log)
        d.nursery.start_soon(wait, "waiting", waiting.log)
        await wait_all_tasks_blocked()
        assert ended == []
        d.publisher.give_up()
        d.publisher.give_up()
        await wait_all_tasks_blocked()
        assert sorted(ended) == ["in flight", "waiting"]
        late = d.open("late")
        for log in (in_flight, waiting, idle, late):
            log.offer("dropped")
            with trio.fail_after(1):
                await flushed(log.log)
            assert [kind for kind, _ in log.told] == [StopKind.STORE_UNAVAILABLE]
        assert d.publisher.budget.used == 0


async def test_giving_up_changes_nothing_for_logs_that_are_lost_already(autojump_clock: MockClock) -> None:
    async with desk(outage_seconds=60) as d:
        sealed, waiting = d.open("sealed"), d.open("waiting")
        d.store.runs["sealed"].record = d.store.runs["sealed"].record.model_copy(update={"status": "failed"})
        sealed.offer("x")
        with pytest.raises(LogLostError):
            await flushed(sealed.log)
        d.store.down = True
        waiting.offer("x")
        await trio.sleep(70)
        d.nursery.cancel_scope.cancel()
        d.publisher.give_up()
        assert [kind for kind, _ in sealed.told] == [StopKind.SEALED]
        assert waiting.told == [(StopKind.STORE_UNAVAILABLE, "for 60 s")], "told once, with the first reason"
        with pytest.raises(LogLostError):
            await flushed(sealed.log)


async def test_a_batch_whose_reply_was_cut_off_is_sent_again_unchanged(autojump_clock: MockClock) -> None:
    async with desk(serve=False, linger_seconds=0) as d:
        log = d.open("one")
        log.offer("a")
        real_append = d.store.append

        async def written_but_unanswered(batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
            await real_append(batches)
            await trio.sleep_forever()
            raise AssertionError

        d.store.append = written_but_unanswered  # type: ignore[method-assign]
        with trio.move_on_after(1):
            await d.publisher.serve()
        assert d.texts("one") == ["a"]
        d.store.append = real_append  # type: ignore[method-assign]
        log.offer("b")
        await d.nursery.start(d.publisher.serve)
        await flushed(log.log)
        assert d.texts("one") == ["a", "b"]


async def test_cancelled_it_lingers_until_the_logs_are_closed(autojump_clock: MockClock) -> None:
    async with desk(serve=False, linger_seconds=30) as d:
        log = d.open("one")
        ended: list[float] = []

        async def serve() -> None:
            with scope:
                await d.publisher.serve()
            ended.append(trio.current_time())

        scope = trio.CancelScope()
        d.nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        scope.cancel()
        await trio.sleep(10)
        log.offer("last words")
        await flushed(log.log)
        assert d.texts("one") == ["last words"]
        assert ended == []
        log.log.close()
        log.log.close()
        await wait_all_tasks_blocked()
        assert ended == [trio.current_time()]


async def test_lingering_is_bounded(autojump_clock: MockClock) -> None:
    async with desk(serve=False, linger_seconds=30) as d:
        d.open("never closed")
        began = trio.current_time()
        with trio.move_on_after(1):
            await d.publisher.serve()
        assert trio.current_time() - began == pytest.approx(31)


async def test_cancelled_without_open_logs_it_ends_at_once(autojump_clock: MockClock) -> None:
    async with desk(serve=False) as d:
        log = d.open("one")
        log.log.close()
        began = trio.current_time()
        with trio.move_on_after(1):
            await d.publisher.serve()
        assert trio.current_time() - began == pytest.approx(1)


async def test_the_end_of_the_last_run_asks_nothing_of_the_store(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.open("one")
        log.offer("x")
        await flushed(log.log)
        calls = d.store.calls["append"]
        log.log.close()
        await trio.sleep(5)
        assert d.store.calls["append"] == calls


async def test_parked_while_there_is_nothing_to_write(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.open("one")
        await trio.sleep(100)
        assert d.store.calls["append"] == 0


async def test_ids_do_not_go_back_with_the_clock(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2_000_000_000, 1_000_000_000, 3_000_000_000])
    monkeypatch.setattr("dify_agent.actors.run_log.time.time_ns", lambda: next(times))
    async with desk() as d:
        log = d.open("one")
        for _ in range(3):
            log.log.offer(payload())
        await flushed(log.log)
        assert [tuple(event.id) for event in d.store.runs["one"].events] == [(2000, 1), (2000, 2), (3000, 3)]


def test_the_budget_is_at_least_one_byte() -> None:
    publisher = Publisher(None, queue_bytes=4, outage_seconds=1, linger_seconds=1)  # type: ignore[arg-type]
    assert publisher.budget.limit == 4


async def test_waiting_events_are_those_of_all_runs_that_are_not_written(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.store.before = gate = Gate()
        one, two, ending = d.open("one"), d.open("two"), d.open("ending")
        one.offer("in flight")
        await wait_all_tasks_blocked()
        one.offer("a", "b")
        two.offer("c")
        ending.offer("d", "e")
        await ending.log.take_last()
        assert d.publisher.waiting_events == 6
        gate.open.set()
        await flushed(one.log)
        await flushed(two.log)
        assert d.publisher.waiting_events == 2
        ending.log.close()
        assert d.publisher.waiting_events == 0
