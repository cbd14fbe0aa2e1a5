"""One way to break each rule, by hand."""

from collections.abc import Awaitable, Callable
from typing import Final

from tests.contracts.store_support import run_id
from tests.doctor.world import DEAD, FROZEN, KEY, LIVING, RETENTION, World

from dify_agent.store.base import Claim, IdempotencyKey

Break = Callable[[World], Awaitable[str]]
"""Breaks something; returns the finding's subject."""


async def two_terminals(world: World) -> str:
    run = await world.run("succeeded")
    first = world.witness.xrevrange(world.keys.events(run), count=1)[0][0].decode()
    ms, n = first.split("-")
    world.add(run, int(n) + 1, "run_failed", ms=int(ms), error="twice")
    return run


async def event_after_terminal(world: World) -> str:
    run = await world.run("failed")
    world.add(run, 5)
    return run


async def record_running(world: World) -> str:
    run = await world.run()
    world.add(run, 4, "run_failed", error="it broke", error_type=None, reason="shutdown")
    return run


async def status_mismatch(world: World) -> str:
    run = await world.run("cancelled")
    world.set_record(run, status="succeeded", error=None)
    return run


async def terminal_missing(world: World) -> str:
    run = await world.run()
    world.set_record(run, status="succeeded")
    return run


async def hole(world: World) -> str:
    run = await world.run(events=5)
    world.witness.xdel(world.keys.events(run), world.witness.xrange(world.keys.events(run))[2][0])
    return run


async def tail_deleted(world: World) -> str:
    run = await world.run(events=5)
    world.witness.xdel(world.keys.events(run), world.witness.xrevrange(world.keys.events(run), count=1)[0][0])
    return run


async def ordinal_skipped(world: World) -> str:
    run = await world.run()
    world.add(run, 6)
    return run


async def ordinal_repeats(world: World) -> str:
    run = await world.run()
    newest = world.witness.xrevrange(world.keys.events(run), count=1)[0][0].decode()
    ms, n = map(int, newest.split("-"))
    world.add(run, n, ms=ms + 1)
    return run


async def front_deleted(world: World) -> str:
    run = await world.run(events=5)
    world.witness.xdel(world.keys.events(run), world.witness.xrange(world.keys.events(run))[0][0])
    return run


async def log_begun_anew(world: World) -> str:
    run = await world.run()
    world.witness.delete(world.keys.events(run))
    world.add(run, 4)
    world.witness.pexpire(world.keys.events(run), world.witness.pttl(world.keys.record(run)))
    return run


async def all_events_deleted(world: World) -> str:
    run = await world.run()
    for event_id, _ in world.witness.xrange(world.keys.events(run)):
        world.witness.xdel(world.keys.events(run), event_id)
    return run


def _written(text: Callable[[str], bytes], field_name: str = "payload") -> Break:
    async def write(world: World) -> str:
        run = await world.run()
        newest = world.witness.xrevrange(world.keys.events(run), count=1)[0][0].decode()
        ms, n = newest.split("-")
        world.raw(run, f"{ms}-{int(n) + 1}", text(run), field_name)
        return run

    return write


def _recorded(text: bytes) -> Break:
    async def record(world: World) -> str:
        run = await world.run()
        world.witness.set(world.keys.record(run), text, keepttl=True)
        return run

    return record


async def record_of_another(world: World) -> str:
    run = await world.run()
    world.set_record(run, run_id=run_id())
    return run


async def record_gone(world: World) -> str:
    run = await world.run(owner=LIVING)
    world.witness.delete(world.keys.record(run))
    world.witness.srem(world.keys.runs(LIVING.id), run)
    return run


async def record_is_a_list(world: World) -> str:
    run = await world.run()
    key = world.keys.record(run)
    ttl = world.witness.pttl(key)
    world.witness.delete(key)
    world.witness.rpush(key, "x")
    world.witness.pexpire(key, ttl)
    return run


async def list_of_owners_is_text(world: World) -> str:
    inbox = world.keys.inbox(DEAD.id)
    world.witness.set(inbox, "x", ex=RETENTION)
    return inbox


def _intent(world: World, run: str) -> None:
    key = world.keys.intent(run)
    world.witness.xadd(key, {"payload": "{}"})
    world.witness.expire(key, RETENTION)


async def intent_without_run(world: World) -> str:
    run = run_id()
    _intent(world, run)
    return run


async def intent_after_end(world: World) -> str:
    run = await world.run("failed")
    _intent(world, run)
    return run


async def owner_missing(world: World) -> str:
    run = await world.run()
    world.witness.delete(world.keys.owner(run))
    return run


async def owner_missing_for_long(world: World) -> str:
    run = await owner_missing(world)
    world.witness.srem(world.keys.runs(LIVING.id), run)
    for key in world.keys.run(run):
        world.witness.expire(key, RETENTION // 3)
    return run


async def owner_unreadable(world: World) -> str:
    run = await world.run()
    world.witness.set(world.keys.owner(run), "who?", keepttl=True)
    return run


async def owner_lost(world: World) -> str:
    return await world.run(owner=DEAD)


async def owner_lost_with_its_set(world: World) -> str:
    run = await world.run(owner=DEAD)
    world.witness.delete(world.keys.runs(DEAD.id))
    return run


async def owner_unlisted(world: World) -> str:
    run = await world.run()
    world.witness.srem(world.keys.runs(LIVING.id), run)
    return run


async def set_dangling(world: World) -> str:
    run, owned = run_id(), world.keys.runs(DEAD.id)
    world.witness.sadd(owned, run)
    world.witness.expire(owned, RETENTION)
    return run


async def set_of_the_frozen_dangling(world: World) -> str:
    """As a create leaves it whose owner was frozen between its two steps, for longer than its lease."""
    run = run_id()
    await world.store.heartbeat(FROZEN, 60)
    world.witness.sadd(world.keys.runs(FROZEN.id), run)
    world.witness.expire(world.keys.runs(FROZEN.id), RETENTION)
    world.witness.delete(world.keys.alive(FROZEN.id))
    return run


async def set_of_the_living_dangling(world: World) -> str:
    run = run_id()
    world.witness.sadd(world.keys.runs(LIVING.id), run)
    return run


async def no_ttl(world: World) -> str:
    run = await world.run()
    world.witness.persist(world.keys.events(run))
    return run


async def lease_without_ttl(world: World) -> str:
    alive = world.keys.alive(LIVING.id)
    world.witness.persist(alive)
    return alive


async def long_ttl(world: World) -> str:
    run = await world.run("succeeded")
    for key in world.keys.run(run):
        world.witness.expire(key, RETENTION * 3)
    return run


async def list_lives_too_long(world: World) -> str:
    world.witness.delete(world.keys.alive(LIVING.id))  # nobody is there to renew it
    world.witness.expire(world.keys.owners, RETENTION * 3)
    return world.keys.owners


async def owner_keeps_for_longer(world: World) -> str:
    seen = world.keys.seen(LIVING.id)
    world.witness.expire(seen, RETENTION * 2)
    return seen


async def owner_keeps_for_shorter(world: World) -> str:
    seen = world.keys.seen(LIVING.id)
    world.witness.expire(seen, RETENTION // 4)
    for run in world.healthy:
        for key in world.keys.run(run):
            world.witness.expire(key, RETENTION // 4)
    world.witness.expire(world.keys.idempotency(KEY.tenant, KEY.text), RETENTION // 4)
    return seen


async def drift(world: World) -> str:
    run = await world.run("succeeded")
    world.witness.expire(world.keys.record(run), RETENTION - 60)
    return run


async def claim_without_run(world: World) -> str:
    await world.store.claim(IdempotencyKey("tenant", "other"), Claim(run_id(), "d" * 64, "gone"))
    key = world.keys.idempotency("tenant", "other")
    world.witness.expire(key, RETENTION - 120)
    return key


async def claim_unreadable(world: World) -> str:
    key = world.keys.idempotency("tenant", "third")
    world.witness.set(key, "what", ex=RETENTION)
    return key


BROKEN: Final[dict[str, tuple[str, Break, bool]]] = {
    "two terminals": ("two-terminals", two_terminals, False),
    "an event behind the terminal": ("event-after-terminal", event_after_terminal, False),
    "running with a terminal": ("record-running", record_running, True),
    "another status": ("status-mismatch", status_mismatch, True),
    "no terminal": ("terminal-missing", terminal_missing, False),
    "a hole": ("ordinal-gap", hole, False),
    "no tail": ("ordinal-gap", tail_deleted, False),
    "an ordinal skipped": ("ordinal-gap", ordinal_skipped, False),
    "an ordinal twice": ("ordinal-order", ordinal_repeats, False),
    "no front": ("front-missing", front_deleted, False),
    "a log begun anew": ("front-missing", log_begun_anew, False),
    "an empty log": ("front-missing", all_events_deleted, False),
    "no JSON": ("payload-unreadable", _written(lambda _run: b'{"run_id":'), False),
    "a long payload that is no event": ("payload-unreadable", _written(lambda _run: b"x" * 20_000), False),
    "no object": ("payload-unreadable", _written(lambda _run: b"[]"), False),
    "another field": ("payload-unreadable", _written(lambda _run: b"{}", "other"), False),
    "an event of another run": (
        "payload-foreign",
        _written(lambda _run: b'{"run_id":"r","created_at":"2026-11-30T09:00:00Z","type":"x","data":{}}'),
        False,
    ),
    "a long event of another run": (
        "payload-foreign",
        _written(lambda _run: b'{"run_id":"r","created_at":"x","type":"x","data":"' + b"y" * 20_000 + b'"}'),
        False,
    ),
    "a record that is no record": ("record-unreadable", _recorded(b"{}"), False),
    "a record that is no JSON": ("record-unreadable", _recorded(b"\xff"), False),
    "a record of another run": ("record-unreadable", record_of_another, False),
    "no record": ("log-without-record", record_gone, False),
    "a record of another type": ("wrong-type", record_is_a_list, False),
    "an inbox of another type": ("wrong-type", list_of_owners_is_text, False),
    "an intent without a run": ("intent-without-run", intent_without_run, True),
    "an intent of an ended run": ("intent-after-end", intent_after_end, True),
    "no owner": ("owner-missing", owner_missing, False),
    "no owner for long": ("owner-missing", owner_missing_for_long, True),
    "an unreadable owner": ("owner-unreadable", owner_unreadable, False),
    "an owner nobody knows": ("owner-lost", owner_lost, True),
    "an owner nobody knows, without its set": ("owner-lost", owner_lost_with_its_set, True),
    "not in the owner's set": ("owner-unlisted", owner_unlisted, True),
    "a set that names no run": ("set-dangling", set_dangling, True),
    "a frozen owner's set that names no run": ("set-dangling", set_of_the_frozen_dangling, False),
    "a living owner's set that names no run": ("set-dangling", set_of_the_living_dangling, False),
    "a key without TTL": ("ttl-missing", no_ttl, True),
    "a lease without TTL": ("ttl-missing", lease_without_ttl, True),
    "too long a TTL": ("ttl-too-long", long_ttl, False),
    "a list that lives too long": ("ttl-too-long", list_lives_too_long, False),
    "a replica that keeps runs for longer": ("retention-differs", owner_keeps_for_longer, False),
    "a replica that keeps runs for shorter": ("retention-differs", owner_keeps_for_shorter, False),
    "TTLs apart": ("ttl-drift", drift, True),
    "a claim without a run": ("claim-without-run", claim_without_run, False),
    "an unreadable claim": ("claim-unreadable", claim_unreadable, False),
}
"""Rule, way to break it, and whether that is repaired."""
