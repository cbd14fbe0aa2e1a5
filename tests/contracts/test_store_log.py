"""The log: batches, ordinals, trimming, pages, and records that cannot be read."""

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
    texts,
    whole_log,
)

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import RecordUnreadableError, Verdict
from dify_agent.store.keys import Keys
from dify_agent.store.redis import open_redis_store


@pytest.fixture
async def run(store):
    run = run_id()
    await store.create_run(running(run), OWNER)
    return run


async def test_payloads_come_back_byte_for_byte(store, run):
    payload = '{"type":"pydantic_ai_event","data":[],"n":12345678901234567890,"t":"é\\u0000\U0001f600"}'.encode()
    stored = type(event(1))(EventId(MS, 1), payload)
    assert await store.append([batch(run, START, stored)]) == ["appended"]
    assert (await store.read_events(run, START, 10)).events == (stored,)


async def test_a_repeated_batch_appends_only_what_is_missing(store, run):
    await store.append([batch(run, START, *events(1, 2))])
    assert await store.append([batch(run, START, *events(1, 4))]) == ["appended"]
    assert await store.append([batch(run, START, *events(1, 4))]) == ["appended"]
    assert texts(await whole_log(store, run)) == texts(events(1, 4))


async def test_a_batch_that_does_not_continue_the_log_is_a_gap(store, run):
    await store.append([batch(run, START, *events(1, 3))])
    for item in (
        batch(run, START, event(1)),
        batch(run, EventId(MS, 2), event(4)),
        batch(run, EventId(MS, 5), event(6)),
        batch(run, EventId(MS - 1, 3), event(7)),
    ):
        assert await store.append([item]) == ["gap"]
    assert texts(await whole_log(store, run)) == texts(events(1, 3))


async def test_an_id_is_compared_whole(store, run):
    await store.append([batch(run, START, event(1, ms=9))])
    assert await store.append([batch(run, EventId(9, 1), event(2, ms=10))]) == ["appended"]
    assert await store.append([batch(run, EventId(10, 1), event(3, ms=10))]) == ["gap"]


async def test_the_ids_of_a_batch_must_ascend(bare_store, run):
    """A mistake of whoever made the batch; the others of the round trip are none the worse."""
    for n, items in enumerate([[event(2), event(1)], [event(1), event(1)]]):
        other = run_id()
        await bare_store.create_run(running(other), OWNER)
        refused, outcome = await bare_store.append([batch(run, START, *items), batch(other, START, event(1))])
        assert outcome == "appended"
        with pytest.raises(ValueError, match="must ascend"):
            raise refused
        (refused,) = await bare_store.append([batch(run, START, *items)])
        assert isinstance(refused, ValueError), n
    assert await whole_log(bare_store, run) == []


async def test_batches_of_different_runs_share_a_round_trip_and_stand_alone(store, run):
    others = [run_id() for _ in range(3)]
    for other in others:
        await store.create_run(running(other), OWNER)
    await store.finalize(terminal(others[0], "failed"))
    outcomes = await store.append(
        [
            batch(run, START, *events(1, 3)),
            batch(others[0], START, event(1)),
            batch(others[1], EventId(MS, 4), event(5)),
            batch(run_id(), START, event(1)),
            batch(others[2], START, *events(1, 2)),
        ]
    )
    assert outcomes == ["appended", "sealed", "gap", "missing", "appended"]
    assert await store.append([]) == []


async def test_pages_are_exclusive_and_bounded(store, run):
    await store.append([batch(run, START, *events(1, 7))])
    page = await store.read_events(run, EventId(MS, 2), 3)
    assert [entry.id.n for entry in page.events] == [3, 4, 5]
    assert page.status == "running"
    assert (await store.read_events(run, EventId(MS, 7), 3)).events == ()
    assert [entry.id.n for entry in await whole_log(store, run, page=2)] == list(range(1, 8))


@pytest.mark.parametrize("cursor", [EventId(MS + 1, 0), EventId(1 << 63, 5), EventId((1 << 64) - 1, (1 << 64) - 1)])
async def test_a_cursor_in_the_future_reads_an_empty_page(store, run, cursor):
    await store.append([batch(run, START, event(1))])
    assert (await store.read_events(run, cursor, 10)).events == ()


@pytest.mark.parametrize("cursor", [START, EventId(5, 0), EventId(5, (1 << 64) - 1)])
async def test_a_cursor_in_the_past_reads_from_the_start(store, run, cursor):
    await store.append([batch(run, START, event(1))])
    assert len((await store.read_events(run, cursor, 10)).events) == 1


@pytest.mark.slow
async def test_c16_a_long_log_is_trimmed_and_keeps_its_end(store, run, witness, prefix):
    top = START
    for first in range(1, 1000, 50):
        items = events(first, first + 49)
        assert await store.append([batch(run, top, *items)]) == ["appended"]
        top = items[-1].id
        assert witness.xlen(f"{prefix}:runs:{{{run}}}:events") <= 200
    await store.finalize(terminal(run, "succeeded"))
    assert 100 <= witness.xlen(f"{prefix}:runs:{{{run}}}:events") <= 200
    log = await whole_log(store, run)
    # The ordinals tell how much is missing: the first kept one minus one.
    assert [entry.id.n for entry in log] == list(range(log[0].id.n, 1002))
    assert log[0].id.n - 1 == 1001 - len(log)
    assert log[-1].type == "run_succeeded"


@pytest.mark.parametrize(
    "text",
    [b"", b"not json", b"[]", b"null", b'{"status":7}', b'{"status":null}', b'"running"', b'{"status":"queued"}'],
)
async def test_nothing_is_written_to_a_run_whose_record_cannot_be_read(bare_store, witness, prefix, text):
    run = run_id()
    witness.set(f"{prefix}:runs:{{{run}}}:record", text)
    (outcome,) = await bare_store.append([batch(run, START, event(1))])
    assert outcome == "sealed" if b"queued" in text else isinstance(outcome, RecordUnreadableError)
    for operation in (
        bare_store.read_record(run),
        bare_store.finalize(terminal(run, "failed")),
        bare_store.finalize_cancel(terminal(run, "cancelled")),
        bare_store.request_cancel(run, intent()),
        bare_store.read_events(run, START, 5),
    ):
        with pytest.raises(RecordUnreadableError):
            await operation
    assert [key async for key in keys_of(witness, prefix)] == [f"{prefix}:runs:{{{run}}}:record"]
    assert witness.get(f"{prefix}:runs:{{{run}}}:record") == text


@pytest.mark.parametrize(("which", "what"), list(enumerate(["record", "log", "owner", "cancel intent"])))
async def test_nothing_is_written_to_a_run_one_of_whose_keys_has_a_wrong_type(bare_store, witness, prefix, which, what):
    run = run_id()
    await bare_store.create_run(running(run), OWNER)
    key = Keys(prefix).run(run)[which]
    witness.delete(key)
    witness.hset(key, "status", "running")
    before = {name: witness.type(name) for name in Keys(prefix).run(run)}
    concerned = {
        "record": [0, 1, 2, 3, 4, 5],
        "log": [1, 2, 4, 5],
        "owner": [5],
        "cancel intent": [1, 2, 3, 5],
    }[what]
    operations = [
        lambda: bare_store.read_record(run),
        lambda: bare_store.finalize(terminal(run, "failed")),
        lambda: bare_store.finalize_cancel(terminal(run, "cancelled")),
        lambda: bare_store.request_cancel(run, intent()),
        lambda: bare_store.read_events(run, START, 5),
        lambda: bare_store.judge(Verdict(run, OWNER, terminal(run, "failed"), None)),
    ]
    if what == "log":  # which a cancellation without an intent does not come to
        concerned.remove(2)
    for number in concerned:
        with pytest.raises(RecordUnreadableError, match=f"the run's {what} in the store cannot be read") as caught:
            await operations[number]()
        assert (caught.value.run_id, caught.value.key) == (run, key)
    if what in ("record", "log"):
        (outcome,) = await bare_store.append([batch(run, START, event(1))])
        assert isinstance(outcome, RecordUnreadableError)
    assert {name: witness.type(name) for name in before} == before


async def keys_of(witness, prefix):
    for key in witness.scan_iter(match=f"{prefix}:*", count=1000):
        await trio.lowlevel.checkpoint()
        yield key.decode()


async def test_c15_a_record_of_an_older_writer_is_read_and_finalized(bare_store, witness, prefix):
    run = run_id()
    text = (
        f'{{"updated_at": "2026-11-30T12:25:14.626848+00:00", "run_id": "{run}", "status": "running",'
        '"error":null,"created_at":"2026-11-30T12:25:13.560357Z"}'
    )
    witness.set(f"{prefix}:runs:{{{run}}}:record", text, ex=100)
    record = await bare_store.read_record(run)
    assert (record.status, record.error_type) == ("running", None)
    assert await bare_store.append([batch(run, START, event(1))]) == ["appended"]
    assert (await finish(bare_store, terminal(run, "succeeded"))).applied


FILLER = "y" * 20_000


async def append_all(store, run, count, seen):
    """What a publisher does: batches in order, each repeated until its outcome is known."""
    done = 0
    while done < count:
        last = min(done + 3, count)
        items = tuple(event(n, text=FILLER) for n in range(done + 1, last + 1))
        top = EventId(MS, done) if done else START
        (outcome,) = await store.append([batch(run, top, *items)])
        if outcome == "appended":
            done = last
            seen["written"].set()
        else:
            assert isinstance(outcome, StoreUnavailableError)
            assert "OOM" in outcome.cause
            seen["refusals"] += 1
            seen["refused"].set()


async def toggle_memory(witness, seen):
    while True:
        for limit, wanted in (("1", "refused"), ("0", "written")):
            seen[wanted] = trio.Event()
            witness.config_set("maxmemory", limit)
            await seen[wanted].wait()


@pytest.mark.parametrize(
    "count", [pytest.param(1000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.full)]
)
async def test_out_of_memory_loses_and_doubles_nothing(store_server, prefix, witness, count):
    run, seen = run_id(), {"written": trio.Event(), "refused": trio.Event(), "refusals": 0}
    async with open_redis_store(store_server.url, prefix=prefix, max_length=count * 2) as store:
        await store.create_run(running(run), OWNER)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(toggle_memory, witness, seen)
                await append_all(store, run, count, seen)
                nursery.cancel_scope.cancel(reason="all appended")
        finally:
            witness.config_set("maxmemory", "0")
        assert seen["refusals"] > 50
        log = await whole_log(store, run)
        assert [entry.id.n for entry in log] == list(range(1, count + 1))
        assert all(entry.payload == event(entry.id.n, text=FILLER).payload for entry in log)


async def test_out_of_memory_refuses_transitions_whole(bare_store, witness, prefix):
    run = run_id()
    await bare_store.create_run(running(run), OWNER)
    before = {key async for key in keys_of(witness, prefix)}
    witness.config_set("maxmemory", "1")
    try:
        for operation in (
            bare_store.create_run(running(run_id()), OWNER),
            bare_store.finalize(terminal(run, "failed")),
            bare_store.request_cancel(run, intent()),
            bare_store.heartbeat(OWNER, 15),
            bare_store.ring(OWNER.id, run),
        ):
            with pytest.raises(StoreUnavailableError) as caught:
                await operation
            assert "OOM" in caught.value.cause
        assert (await bare_store.read_record(run)).status == "running"
    finally:
        witness.config_set("maxmemory", "0")
    assert {key async for key in keys_of(witness, prefix)} == before


def large(n, size):
    return type(event(1))(EventId(MS, n), b'{"type":"pydantic_ai_event","t":"' + b"x" * size + b'"}')


async def test_a_page_is_bounded_in_bytes_and_always_goes_on(store, run):
    sizes = [10, 10, 10, 10, 10, 50_000, 50_000, 500_000, 10, 200_000, 10]
    items = [large(n, size) for n, size in enumerate(sizes, 1)]
    await store.append([batch(run, START, *items)])
    pages, cursor = [], START
    while page := (await store.read_events(run, cursor, 100, 120_000)).events:
        pages.append([item.id.n for item in page])
        cursor = page[-1].id
    assert pages == [[1, 2, 3, 4, 5, 6, 7], [8], [9], [10], [11]]
    assert [item.id.n for item in (await store.read_events(run, START, 3, 1)).events] == [1]


async def test_a_page_of_small_events_is_bounded_in_number(store, run):
    await store.append([batch(run, START, *events(1, 90))])
    for limit in (1, 3, 4, 5, 20, 21, 89, 90, 100):
        page = await store.read_events(run, START, limit)
        assert texts(page.events) == texts(events(1, min(limit, 90)))


async def test_the_tops_of_logs(store, run):
    other = run_id()
    assert await store.read_tops([run, other]) == {run: START, other: START}
    await store.append([batch(run, START, *events(1, 3))])
    assert await store.read_tops([run, other]) == {run: EventId(MS, 3), other: START}
    assert await store.read_tops([]) == {}
