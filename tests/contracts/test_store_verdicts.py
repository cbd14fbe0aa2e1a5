"""What a reaper needs of the store: leases, owners' sets, looks, and the verdict that seals a lost owner's run."""

import pytest
import trio
from tests.contracts.store_support import (
    MS,
    OWNER,
    batch,
    events,
    finish,
    intent,
    run_id,
    running,
    terminal,
    whole_log,
)

from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import KeyUnreadableError, Owner, RecordUnreadableError, RunLook, Verdict

LATER = Owner(OWNER.id, OWNER.epoch + 1)


@pytest.fixture
async def run(store):
    """A created run with two events."""
    run = run_id()
    await store.create_run(running(run), OWNER)
    assert await store.append([batch(run, START, *events(1, 2))]) == ["appended"]
    return run


def verdict(run, *, owner=OWNER, with_cancel=False, later=1):
    failed = terminal(run, "failed", error="owner lost", later=later)
    cancelled = terminal(run, "cancelled", error="user", later=later) if with_cancel else None
    return Verdict(run, owner, failed, cancelled)


async def test_leases(store, witness, prefix):
    assert await store.read_leases() == {}
    await store.heartbeat(OWNER, 15)
    await store.heartbeat(Owner("replica-2", 1), 15)
    witness.delete(f"{prefix}:owners:{{replica-2}}:alive")
    assert await store.read_leases() == {"replica-1": True, "replica-2": False}


async def test_an_owners_runs(store, run):
    other = run_id()
    await store.create_run(running(other), OWNER)
    assert sorted(await store.read_owned(OWNER.id)) == sorted([run, other])
    assert await store.read_owned("nobody") == []


async def test_a_look_reads_record_owner_and_intent(store, run):
    assert await store.look([run, "unknown"]) == {run: RunLook(running(run), OWNER, None), "unknown": None}
    await store.request_cancel(run, intent("user", "enough"))
    assert (await store.look([run]))[run].intent == intent("user", "enough")
    assert await store.look([]) == {}


@pytest.mark.parametrize("name", ["record", "owner", "cancel-intent"])
async def test_a_look_at_what_cannot_be_read(store, run, witness, prefix, name):
    """It says so of this run, and nothing else of the others."""
    other, key = run_id(), f"{prefix}:runs:{{{run}}}:{name}"
    await store.create_run(running(other), OWNER)
    looks = {run: RunLook(None, None, None), other: RunLook(running(other), OWNER, None), "unknown": None}
    bad = [b"{}", b"nonsense", "\u00b2:x".encode(), b"1:\xff", b"9" * 5000 + b":x", b"-1:x", b"1:", b":x"]
    for text in bad:  # an intent is a stream: a text in its place is of the wrong type
        witness.set(key, text, ex=600)
        assert await store.look([run, other, "unknown"]) == looks
    witness.delete(key)
    witness.hset(key, "a", "hash")
    witness.expire(key, 600)
    assert await store.look([run, other, "unknown"]) == looks


async def test_an_intent_of_a_wrong_type_is_none_among_many(store, run, witness, prefix):
    other = run_id()
    await store.create_run(running(other), OWNER)
    await store.request_cancel(other, intent("user", "enough"))
    witness.set(f"{prefix}:runs:{{{run}}}:cancel-intent", "a text", ex=600)
    assert await store.read_intents([run, other]) == {other: intent("user", "enough")}
    with pytest.raises(RecordUnreadableError, match="the run's cancel intent in the store cannot be read") as caught:
        await store.read_intent(run)
    assert (caught.value.run_id, caught.value.key) == (run, f"{prefix}:runs:{{{run}}}:cancel-intent")


async def test_a_set_of_runs_that_is_none_is_told_by_its_key(store, run, witness, prefix):
    key = f"{prefix}:owners:{{{OWNER.id}}}:runs"
    witness.delete(key)
    witness.hset(key, "a", "b")
    witness.expire(key, 600)
    with pytest.raises(KeyUnreadableError, match="an owner's set of runs in the store cannot be read") as caught:
        await store.read_owned(OWNER.id)
    assert (caught.value.key, caught.value.run_id) == (key, None)


def spoil(witness, key):
    """As another program would."""
    witness.delete(key)
    witness.hset(key, "a", "b")
    witness.expire(key, 600)


async def test_a_list_of_owners_that_is_none_is_told_by_its_key(store, run, witness, prefix):
    """The lease is renewed all the same, and the rest when the list has been deleted."""
    key = f"{prefix}:owners"
    spoil(witness, key)
    for operation in (store.heartbeat(OWNER, 15, [run]), store.read_leases()):
        with pytest.raises(KeyUnreadableError, match="the list of owners in the store cannot be read") as caught:
            await operation
        assert (caught.value.key, caught.value.run_id) == (key, None)
    assert witness.pttl(f"{prefix}:owners:{{{OWNER.id}}}:alive") > 14_000
    witness.delete(key)
    await store.heartbeat(OWNER, 15, [run])
    assert await store.read_leases() == {OWNER.id: True}


async def test_what_concerns_a_set_of_runs_that_is_none_does_the_rest(store, run, witness, prefix):
    key, other = f"{prefix}:owners:{{{OWNER.id}}}:runs", run_id()
    spoil(witness, key)
    witness.expire(f"{prefix}:runs:{{{run}}}:record", 100)
    operations = [
        store.heartbeat(OWNER, 15, [run]),
        store.create_run(running(other), OWNER),
        store.release_runs(OWNER.id, [run]),
        store.forget_owner(OWNER.id),
    ]
    for operation in operations:
        with pytest.raises(KeyUnreadableError, match="an owner's set of runs in the store cannot be read") as caught:
            await operation
        assert caught.value.key == key
    await store.touch_runs(OWNER, [run])
    assert witness.ttl(f"{prefix}:runs:{{{run}}}:record") > 100
    assert await store.read_leases() == {OWNER.id: True}
    assert witness.hgetall(key) == {b"a": b"b"}, "nothing is written there"
    witness.delete(key)
    await store.heartbeat(OWNER, 15, [run])
    assert await store.read_owned(OWNER.id) == [run]


async def test_an_inbox_and_a_doorbell_that_are_none_are_told_by_their_keys(store, run, witness, prefix):
    inbox, bell = (f"{prefix}:owners:{{{OWNER.id}}}:{name}" for name in ("inbox", "doorbell"))
    spoil(witness, inbox)
    spoil(witness, bell)
    operations = [
        (inbox, store.ring(OWNER.id, run)),
        (inbox, store.read_inbox(OWNER, "0-0", 0.1)),
        (bell, store.ring_doorbell(OWNER)),
        (bell, store.read_tails(OWNER, {run: EventId(MS, 2)}, "0-0", 0.1)),
    ]
    for key, operation in operations:
        with pytest.raises(KeyUnreadableError) as caught:
            await operation
        assert (type(caught.value), caught.value.key) == (KeyUnreadableError, key)
    await store.heartbeat(OWNER, 15)


async def test_a_heartbeat_names_the_runs(store, run, witness, prefix):
    """What a failover of the set's server has lost is there again, with a TTL; however many there are, in one go."""
    runs = [run, *(run_id() for _ in range(1000))]
    await store.heartbeat(OWNER, 15, runs)
    assert sorted(await store.read_owned(OWNER.id)) == sorted(runs)
    await store.release_runs(OWNER.id, runs[1:])
    await store.heartbeat(OWNER, 15)
    assert await store.read_owned(OWNER.id) == [run], "and takes none out"


async def test_names_that_are_no_ids_are_left_out(store, run, witness, prefix):
    await store.heartbeat(OWNER, 15)
    witness.sadd(f"{prefix}:owners", b"\xff")
    witness.sadd(f"{prefix}:owners:{{{OWNER.id}}}:runs", b"\xff")
    assert await store.read_leases() == {OWNER.id: True}
    assert await store.read_owned(OWNER.id) == [run]


def make_empty_intent(witness, prefix, run):
    """What is left when another program deletes the entries of a stream."""
    key = f"{prefix}:runs:{{{run}}}:cancel-intent"
    witness.xadd(key, {"payload": "{}"})
    witness.xtrim(key, maxlen=0, approximate=False)
    witness.expire(key, 600)
    assert witness.exists(key)


async def test_a_stream_without_entries_is_no_intent(store, run, witness, prefix):
    make_empty_intent(witness, prefix, run)
    assert await store.read_intent(run) is None
    assert (await store.look([run]))[run] == RunLook(running(run), OWNER, None)
    assert not (await store.finalize_cancel(terminal(run, "cancelled"))).applied
    assert (await store.finalize(terminal(run, "succeeded"))).applied


async def test_a_stream_without_entries_holds_no_verdict_up(store, run, witness, prefix):
    make_empty_intent(witness, prefix, run)
    assert await store.judge(verdict(run)) == "failed"


async def test_a_cancel_is_accepted_although_there_is_a_stream_without_entries(store, run, witness, prefix):
    make_empty_intent(witness, prefix, run)
    await store.request_cancel(run, intent("user", "enough"))
    assert await store.read_intent(run) == intent("user", "enough")
    assert await store.judge(verdict(run)) == "intent"
    assert (await store.finalize_cancel(terminal(run, "cancelled"))).applied


async def test_a_verdict_fails_the_run_and_seals_its_log(store, run):
    judged = verdict(run)
    assert await store.judge(judged) == "failed"
    assert (await store.read_record(run)) == judged.failed.record
    assert (await whole_log(store, run))[-1].id == EventId(MS, 3)
    assert await store.append([batch(run, EventId(MS, 2), *events(3, 4))]) == ["sealed"]
    assert not (await store.finalize(terminal(run, "succeeded"))).applied
    assert len(await whole_log(store, run)) == 3


async def test_a_verdict_may_be_repeated(store, run):
    judged = verdict(run)
    assert [await store.judge(judged) for _ in range(3)] == ["failed"] * 3
    assert len(await whole_log(store, run)) == 3
    assert await store.judge(verdict(run, later=2)) == "unapplied"


async def test_a_verdict_honours_an_accepted_cancel(store, run):
    await store.request_cancel(run, intent("user", "enough"))
    assert await store.judge(verdict(run)) == "intent"
    assert (await store.read_record(run)).status == "running"
    judged = verdict(run, with_cancel=True)
    assert [await store.judge(judged) for _ in range(2)] == ["cancelled", "cancelled"]
    assert (await store.read_record(run)).status == "cancelled"
    assert await store.read_intent(run) is None


async def test_a_verdict_that_saw_an_intent_which_is_gone_fails_the_run(store, run):
    """It cannot happen: intents are deleted by terminals only. The script's answer is defined all the same."""
    assert await store.judge(verdict(run, with_cancel=True)) == "failed"


@pytest.mark.parametrize("owner", [Owner("other", OWNER.epoch), LATER, None])
async def test_a_verdict_on_another_owner_changes_nothing(store, run, owner):
    assert await store.judge(verdict(run, owner=owner)) == "unapplied"
    assert (await store.read_record(run)).status == "running"
    assert len(await whole_log(store, run)) == 2


async def test_a_verdict_on_a_run_without_owner(store, run, witness, prefix):
    witness.delete(f"{prefix}:runs:{{{run}}}:owner")
    assert await store.judge(verdict(run, owner=None)) == "failed"


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_verdict_on_a_finished_run_changes_nothing(store, run, status):
    if status == "cancelled":
        await store.request_cancel(run, intent())
    await finish(store, terminal(run, status))
    before = await whole_log(store, run)
    assert await store.judge(verdict(run, later=5)) == "unapplied"
    assert await whole_log(store, run) == before


async def test_a_verdict_on_no_run(store):
    assert await store.judge(verdict(run_id())) == "missing"


async def test_verdict_owner_and_cancel_race(store, bare_store, run):
    """Ten rounds: whoever is first, the log has one terminal event and the record agrees with it."""
    for _ in range(10):
        raced = run_id()
        await bare_store.create_run(running(raced), OWNER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bare_store.judge, verdict(raced))
            nursery.start_soon(bare_store.finalize, terminal(raced, "succeeded"))
            nursery.start_soon(bare_store.request_cancel, raced, intent())
        record = await bare_store.read_record(raced)
        if record.status == "running":
            assert await bare_store.judge(verdict(raced, with_cancel=True)) == "cancelled"
        kinds = [event.type for event in await whole_log(bare_store, raced)]
        assert kinds == [f"run_{(await bare_store.read_record(raced)).status}"]


async def test_released_runs(store, run):
    other = run_id()
    await store.create_run(running(other), OWNER)
    await store.release_runs(OWNER.id, [run])
    assert await store.read_owned(OWNER.id) == [other]
    await store.release_runs(OWNER.id, [])
    await store.touch_runs(OWNER, [run])
    assert sorted(await store.read_owned(OWNER.id)) == sorted([run, other])


async def test_an_owner_is_forgotten_when_it_has_no_runs_and_was_not_seen_for_the_retention(
    store, run, witness, prefix
):
    await store.heartbeat(OWNER, 15)
    witness.delete(f"{prefix}:owners:{{{OWNER.id}}}:alive")
    await store.forget_owner(OWNER.id)
    assert await store.read_leases() == {OWNER.id: False}
    await store.release_runs(OWNER.id, [run])
    await store.forget_owner(OWNER.id)
    assert await store.read_leases() == {OWNER.id: False}, "it may be frozen in the middle of a create"
    witness.delete(f"{prefix}:owners:{{{OWNER.id}}}:seen")  # as its TTL does
    await store.forget_owner(OWNER.id)
    assert await store.read_leases() == {}
    await store.heartbeat(OWNER, 15)
    assert await store.read_leases() == {OWNER.id: True}


async def test_a_retired_owner_leaves_unfinished_runs_to_the_others(store, run, witness, prefix):
    await store.heartbeat(OWNER, 15)
    await store.retire(OWNER)
    assert await store.read_leases() == {OWNER.id: False}
    assert await store.read_owned(OWNER.id) == [run]
    assert 50 < witness.ttl(f"{prefix}:owners:{{{OWNER.id}}}:seen") <= 60
    await store.release_runs(OWNER.id, [run])
    await store.forget_owner(OWNER.id)
    assert await store.read_leases() == {OWNER.id: False}, "a create of its may still be on its way"
    witness.delete(f"{prefix}:owners:{{{OWNER.id}}}:seen")
    await store.forget_owner(OWNER.id)
    assert await store.read_leases() == {}
