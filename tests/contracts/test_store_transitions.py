"""Every row of protocol 5.5, the table of 5.6 in sequence and as races, and the acceptance vectors C1 to C5."""

import itertools

import pytest
import trio
from tests.contracts.store_support import (
    MS,
    OWNER,
    batch,
    event,
    events,
    finish,
    intent,
    run_id,
    running,
    terminal,
    whole_log,
)

from dify_agent.errors import RunNotFoundError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import CancelOutcome, FinalizeOutcome, Owner, RunExistsError, StoredEvent

UNAPPLIED_RUNNING = FinalizeOutcome(applied=False, status="running", event_id=None)


def unapplied(status):
    return FinalizeOutcome(applied=False, status=status, event_id=None)


def applied(status, n, ms=MS):
    return FinalizeOutcome(applied=True, status=status, event_id=EventId(ms, n))


@pytest.fixture
async def run(store):
    """A created run with two events."""
    run = run_id()
    await store.create_run(running(run), OWNER)
    assert await store.append([batch(run, START, *events(1, 2))]) == ["appended"]
    return run


async def test_create_stores_the_record_and_may_be_repeated(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    await store.create_run(running(run), OWNER)
    assert await store.read_record(run) == running(run)


async def test_create_does_not_take_another_owners_run(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    with pytest.raises(RunExistsError):
        await store.create_run(running(run), Owner("replica-2", 1))
    assert (await store.request_cancel(run, intent())).owner_id == OWNER.id


async def test_create_does_not_revive_a_finished_run(store, run):
    await store.finalize(terminal(run, "succeeded"))
    with pytest.raises(RunExistsError):
        await store.create_run(running(run), OWNER)
    assert (await store.read_record(run)).status == "succeeded"


async def test_a_run_without_a_record_is_not_found(store):
    run = run_id()
    assert await store.read_record(run) is None
    assert await store.read_intent(run) is None
    for operation in (
        store.finalize(terminal(run, "succeeded")),
        store.finalize(terminal(run, "failed")),
        store.finalize_cancel(terminal(run, "cancelled")),
        store.request_cancel(run, intent()),
        store.read_events(run, START, 10),
    ):
        with pytest.raises(RunNotFoundError):
            await operation
    assert await store.append([batch(run, START, event(1))]) == ["missing"]


@pytest.mark.parametrize(("status", "error"), [("succeeded", None), ("failed", "boom")])
async def test_finalize_rewrites_the_record_and_appends_the_terminal_event(store, run, status, error):
    item = terminal(run, status, error=error)
    assert await store.finalize(item) == applied(status, 3)
    assert await store.read_record(run) == item.record
    page = await store.read_events(run, EventId(MS, 2), 10)
    assert page.status == status
    assert [(entry.id, entry.payload) for entry in page.events] == [(EventId(MS, 3), item.payload)]


async def test_finalize_of_an_empty_log_is_its_first_event(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    assert await store.finalize(terminal(run, "failed")) == applied("failed", 1)


@pytest.mark.parametrize(("owner_ms", "expected_ms"), [(MS - 5000, MS), (MS, MS), (MS + 5000, MS + 5000)])
async def test_the_terminal_id_never_goes_back_in_time(store, run, owner_ms, expected_ms):
    assert await store.finalize(terminal(run, "succeeded", ms=owner_ms)) == applied("succeeded", 3, expected_ms)


async def test_terminal_ids_are_exact_up_to_the_largest_integers_lua_has(store):
    run, high = run_id(), (1 << 53) - 2
    await store.create_run(running(run), OWNER)
    await store.append([batch(run, START, event(high - 1, ms=high))])
    outcome = await store.finalize(terminal(run, "succeeded", ms=high - 1))
    assert outcome.event_id == EventId(high, high)


# The last events, which go along with the terminal one.

STATUSES = ("succeeded", "failed", "cancelled")
TOP = EventId(MS, 2)


async def intend_for(store, run, status):
    if status == "cancelled":
        await store.request_cancel(run, intent())


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("last", [(), events(3, 3), events(3, 7)])
async def test_the_last_events_stand_before_the_terminal_one(store, run, status, last):
    await intend_for(store, run, status)
    item = terminal(run, status)
    ended = applied(status, 3 + len(last))
    for _ in range(2):  # a repeat after a lost reply
        assert await finish(store, item, batch(run, TOP, *last)) == ended
    ending = StoredEvent(ended.event_id, item.payload)
    assert await whole_log(store, run) == [*events(1, 2), *last, ending]


@pytest.mark.parametrize("status", STATUSES)
async def test_the_terminal_id_follows_the_last_event(store, run, status):
    await intend_for(store, run, status)
    last = (event(3), event(9, ms=MS + 70))
    assert await finish(store, terminal(run, status), batch(run, TOP, *last)) == applied(status, 10, MS + 70)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("last", [(), events(4, 5)])
@pytest.mark.parametrize("expected", [START, EventId(MS, 1), EventId(MS, 3)])
async def test_a_gap_before_the_last_events_ends_nothing(store, run, status, last, expected):
    await intend_for(store, run, status)
    outcome = await finish(store, terminal(run, status), batch(run, expected, *last))
    assert outcome == FinalizeOutcome(applied=False, status="running", event_id=None, gap=True)
    assert (await store.read_record(run)).status == "running"
    assert await whole_log(store, run) == list(events(1, 2))


async def test_what_does_not_end_the_run_leaves_its_last_events(store, run):
    last = batch(run, TOP, event(3))
    assert await store.finalize_cancel(terminal(run, "cancelled"), last) == UNAPPLIED_RUNNING
    await store.request_cancel(run, intent())
    assert await store.finalize(terminal(run, "succeeded"), last) == UNAPPLIED_RUNNING
    await store.finalize_cancel(terminal(run, "cancelled"))
    assert await store.finalize(terminal(run, "succeeded"), last) == unapplied("cancelled")
    assert [entry.type for entry in await whole_log(store, run)][2:] == ["run_cancelled"]


async def test_the_last_events_must_ascend(store, run):
    with pytest.raises(ValueError, match="ascend"):
        await store.finalize(terminal(run, "failed"), batch(run, TOP, event(4), event(3)))
    assert (await store.read_record(run)).status == "running"


async def test_an_append_of_nothing_tells_whether_the_log_is_as_expected(store, run):
    assert await store.append([batch(run, TOP)]) == ["appended"]
    assert await store.append([batch(run, START)]) == ["gap"]
    assert await whole_log(store, run) == list(events(1, 2))


async def test_request_cancel_stores_the_first_intent_and_names_the_owner(store, run):
    assert await store.request_cancel(run, intent("first", "one")) == CancelOutcome("running", OWNER.id)
    assert await store.request_cancel(run, intent("second", "two")) == CancelOutcome("running", OWNER.id)
    assert await store.read_intent(run) == intent("first", "one")  # C2


async def test_read_intents_finds_those_that_exist_among_many(store, run):
    other = run_id()
    await store.create_run(running(other), OWNER)
    await store.request_cancel(other, intent(None, None))
    many = [run_id() for _ in range(1100)]
    assert await store.read_intents([*many, run, other]) == {other: intent(None, None)}
    assert await store.read_intents([]) == {}


async def test_c3_an_intent_beats_later_success_and_failure(store, run):
    await store.request_cancel(run, intent())
    assert await store.finalize(terminal(run, "succeeded")) == UNAPPLIED_RUNNING
    assert await store.finalize(terminal(run, "failed")) == UNAPPLIED_RUNNING
    assert len(await whole_log(store, run)) == 2


async def test_c4_finalizing_a_cancellation_twice(store, run, witness, prefix):
    await store.request_cancel(run, intent())
    assert await store.finalize_cancel(terminal(run, "cancelled", error="stop")) == applied("cancelled", 3)
    assert await store.finalize_cancel(terminal(run, "cancelled", error="stop", later=9)) == unapplied("cancelled")
    assert [entry.type for entry in await whole_log(store, run)][2:] == ["run_cancelled"]
    assert not witness.exists(f"{prefix}:runs:{{{run}}}:cancel-intent")
    assert (await store.read_record(run)).error == "stop"


async def test_c5_finalizing_a_cancellation_without_intent(store, run):
    assert await store.finalize_cancel(terminal(run, "cancelled")) == UNAPPLIED_RUNNING
    assert len(await whole_log(store, run)) == 2


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_d6_nothing_is_appended_behind_a_terminal_event(store, run, status):
    if status == "cancelled":
        await store.request_cancel(run, intent())
    await finish(store, terminal(run, status))
    late = [batch(run, EventId(MS, 3), event(4)), batch(run, EventId(MS, 2), event(3)), batch(run, START, event(1))]
    assert [(await store.append([item]))[0] for item in late] == ["sealed"] * 3
    assert [entry.type for entry in await whole_log(store, run)][-1] == f"run_{status}"


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_repeated_terminal_transition_counts_as_applied(store, run, status):
    if status == "cancelled":
        await store.request_cancel(run, intent())
    first = await finish(store, terminal(run, status))
    assert await finish(store, terminal(run, status)) == first == applied(status, 3)
    assert len(await whole_log(store, run)) == 3


# Protocol 5.6. A step is (name, what it returns); the table says what the second of two steps returns.
async def step(store, run, name, *, later):
    if name == "request":
        return (await store.request_cancel(run, intent(f"reason{later}"))).status
    outcome = await finish(store, terminal(run, name, later=later))
    return (outcome.applied, outcome.status)


FIRST = {
    "succeeded": (True, "succeeded"),
    "failed": (True, "failed"),
    "request": "running",
    "cancelled": (False, "running"),
}
SECOND = {
    "succeeded": dict.fromkeys(["succeeded", "failed", "cancelled"], (False, "succeeded")) | {"request": "succeeded"},
    "failed": dict.fromkeys(["succeeded", "failed", "cancelled"], (False, "failed")) | {"request": "failed"},
    "request": {
        "succeeded": (False, "running"),
        "failed": (False, "running"),
        "request": "running",
        "cancelled": (True, "cancelled"),
    },
    "cancel finalized": dict.fromkeys(["succeeded", "failed", "cancelled"], (False, "cancelled"))
    | {"request": "cancelled"},
    "cancelled": FIRST,  # refused without an intent, so it counts as "nothing yet"
}


async def begin(store, run, first):
    if first == "cancel finalized":
        await store.request_cancel(run, intent())
        assert await step(store, run, "cancelled", later=1) == (True, "cancelled")
    else:
        assert await step(store, run, first, later=1) == FIRST[first]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SECOND, FIRST)))
async def test_who_wins_in_sequence(store, run, first, second):
    await begin(store, run, first)
    assert await step(store, run, second, later=2) == SECOND[first][second]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(FIRST, 2)))
async def test_who_wins_in_a_race(store, one, other):
    """C1 for every pair: two tasks on two connections; the outcome is one of the two orders, and record equals log."""
    for attempt in range(6):
        run = run_id()
        await store.create_run(running(run), OWNER)
        results = {}

        async def racer(name, later, run=run, results=results):
            results[later] = await step(store, run, name, later=later)

        async with trio.open_nursery() as nursery:
            for name, later in [(one, 1), (other, 2)][:: 1 if attempt % 2 else -1]:
                nursery.start_soon(racer, name, later)
        assert (results[1], results[2]) in [
            (FIRST[one], SECOND[one][other]),
            (SECOND[other][one], FIRST[other]),
        ]
        status = (await store.read_record(run)).status
        terminals = [entry.type for entry in await whole_log(store, run)]
        assert terminals == ([] if status == "running" else [f"run_{status}"])


async def test_an_unreadable_intent_still_cancels(store, witness, prefix):
    run = run_id()
    await store.create_run(running(run), OWNER)
    witness.xadd(f"{prefix}:runs:{{{run}}}:cancel-intent", {"payload": "{not json"})
    witness.expire(f"{prefix}:runs:{{{run}}}:cancel-intent", 60)
    assert "unreadable" in (await store.read_intent(run)).message
    assert list(await store.read_intents([run, "other"])) == [run]
