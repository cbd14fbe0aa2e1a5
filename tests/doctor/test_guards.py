"""A repair whose reason has gone by the time it is applied changes nothing; a look changes nothing at all."""

import json
from collections.abc import Callable, Sequence

import pytest
from tests.contracts.store_support import ONE_SERVER, StoreServer, run_id, running
from tests.doctor import broken
from tests.doctor.world import BOUNDS, DEAD, FROZEN, LIVING, RETENTION, World, payload

from dify_agent.doctor import rules
from dify_agent.doctor.facts import NO_TTL
from dify_agent.doctor.keyspace import ExecutorKeyspace
from dify_agent.doctor.looks import MOST_ENTRIES, PAGE_BYTES, WHOLE_BYTES, Looks
from dify_agent.doctor.repair import NOBODY, Repairs
from dify_agent.doctor.scan import Scan
from dify_agent.doctor.scripts import LOOK, REWRITE_RECORD
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import Owner
from dify_agent.store.deployments import open_executor
from dify_agent.store.executor import Call, Item, Reply
from dify_agent.store.keys import Keys
from dify_agent.store.urls import parse_store_url

Change = Callable[[World, str], object]


def _end(world: World, run: str) -> None:
    world.set_record(run, status="failed")
    world.add(run, 4, "run_failed", error="x")


RACES: dict[str, tuple[broken.Break, Change]] = {
    "the log goes on": (broken.record_running, lambda world, run: world.add(run, 5)),
    "the record is written": (broken.record_running, lambda world, run: world.set_record(run, status="failed")),
    "the run begins": (
        broken.intent_without_run,
        lambda world, run: world.witness.set(world.keys.record(run), running(run).model_dump_json(), ex=RETENTION),
    ),
    "the run goes on": (broken.intent_after_end, lambda world, run: world.set_record(run, status="running")),
    "the run gets an owner": (
        broken.owner_missing_for_long,
        lambda world, run: world.witness.set(world.keys.owner(run), "7:replica-1", ex=RETENTION),
    ),
    "the run is touched": (
        broken.owner_missing_for_long,
        lambda world, run: world.witness.expire(world.keys.record(run), RETENTION),
    ),
    "the run ends": (broken.owner_lost, _end),
    "the run is created": (
        broken.set_dangling,
        lambda world, run: world.witness.set(world.keys.record(run), running(run).model_dump_json(), ex=RETENTION),
    ),
    "the owner comes back": (
        broken.set_dangling,
        lambda world, _run: world.witness.set(world.keys.alive(DEAD.id), 3, ex=15),
    ),
    "the owner was there": (
        broken.set_dangling,
        lambda world, _run: world.witness.set(world.keys.seen(DEAD.id), 3, ex=RETENTION),
    ),
}


@pytest.mark.parametrize(("breaking", "change"), RACES.values(), ids=RACES)
async def test_a_repair_that_comes_too_late_changes_nothing(
    world: World, breaking: broken.Break, change: Change
) -> None:
    subject = await breaking(world)
    scan = world.scan()
    found = [item for item in (await scan.run()).findings if item.subject == subject]
    assert any(item.repairable for item in found)
    change(world, subject)
    before = world.values()
    await Repairs(ExecutorKeyspace(world.executor), world.keys, scan).apply(found)
    assert world.values() == before


async def test_a_run_whose_record_comes_after_the_repair_is_still_named(world: World) -> None:
    """The owner was frozen between the two steps of a create, and for longer than its lease; then it goes on."""
    run = await broken.set_of_the_frozen_dangling(world)
    found, mended = await world.repair()
    assert ([item.rule.id for item in found], mended) == (["set-dangling"], [])
    for key, text in ((world.keys.record(run), running(run).model_dump_json()), (world.keys.owner(run), "5:replica-2")):
        world.witness.set(key, text, ex=RETENTION)
    assert list(await world.store.read_owned(FROZEN.id)) == [run]
    assert (await world.look()).findings == [], "reapers will judge it"


class _BeatingKeyspace(ExecutorKeyspace):
    """An owner's heartbeat comes behind every question about a record."""

    def __init__(self, world: World, owner: Owner) -> None:
        super().__init__(world.executor)
        self._world, self._owner = world, owner

    async def ask(self, items: Sequence[Item], *, in_order: bool = False) -> list[Reply]:
        replies = await super().ask(items, in_order=in_order)
        if any((item.key or "").endswith(":record") for item in items):
            await self._world.store.heartbeat(self._owner, 60)
        return replies


async def test_an_owner_that_beats_between_look_and_removal_keeps_its_entry(world: World) -> None:
    run = await broken.set_dangling(world)
    scan = world.scan()
    found = (await scan.run()).findings
    assert [(item.subject, item.repairable) for item in found] == [(run, True)]
    await Repairs(_BeatingKeyspace(world, DEAD), world.keys, scan).apply(found)
    assert list(await world.store.read_owned(DEAD.id)) == [run]


HEALED: dict[str, tuple[broken.Break, Change]] = {
    "run": (broken.intent_after_end, lambda world, run: world.witness.delete(world.keys.intent(run))),
    "key": (broken.lease_without_ttl, lambda world, key: world.witness.expire(key, 15)),
    "member": (broken.set_dangling, lambda world, run: world.witness.srem(world.keys.runs(DEAD.id), run)),
    "claim": (broken.claim_unreadable, lambda world, key: world.witness.delete(key)),
}


@pytest.mark.parametrize(("breaking", "heal"), HEALED.values(), ids=HEALED)
async def test_what_has_healed_is_not_confirmed(world: World, breaking: broken.Break, heal: Change) -> None:
    subject = await breaking(world)
    scan = world.scan()
    found = (await scan.run()).findings
    assert len(await scan.confirm(found)) == len(found) == 1
    heal(world, subject)
    assert await scan.confirm(found) == []


class _HealingKeyspace(ExecutorKeyspace):
    """Mends a run just before it is looked at for the second time."""

    def __init__(self, world: World, run: str, heal: Change) -> None:
        super().__init__(world.executor)
        self._world, self._run, self._heal = world, run, heal
        self.looks = 0

    async def ask(self, items: Sequence[Item], *, in_order: bool = False) -> list[Reply]:
        record = self._world.keys.record(self._run)
        if any(isinstance(item, Call) and item.script is LOOK and item.key == record for item in items):
            self.looks += 1
            if self.looks == 2:
                self._heal(self._world, self._run)
        return await super().ask(items, in_order=in_order)


async def test_what_only_the_first_look_sees_is_not_reported(world: World) -> None:
    breaking, heal = HEALED["run"]
    keyspace = _HealingKeyspace(world, await breaking(world), heal)
    result = await Scan(keyspace, world.keys, BOUNDS, recheck_seconds=0).run()
    assert (result.findings, result.counts.suspicions, keyspace.looks) == ([], 1, 2)


async def test_a_store_that_does_not_answer_is_an_error(store_server: StoreServer) -> None:
    async with open_executor(parse_store_url(store_server.nowhere), limit=10, timeout=1) as executor:
        with pytest.raises(StoreUnavailableError):
            await Scan(ExecutorKeyspace(executor), Keys("p"), BOUNDS).run()


@pytest.mark.parametrize("stale", ["record", "log"])
async def test_the_script_itself_refuses_a_stale_look(world: World, stale: str) -> None:
    run = await broken.record_running(world)
    seen = world.witness.get(world.keys.record(run))
    if stale == "record":
        world.set_record(run, error="changed")
    else:
        world.add(run, 5)
    before = world.values()
    top = world.witness.xrange(world.keys.events(run))[3][0]
    (reply,) = await world.executor.execute([Call(REWRITE_RECORD, world.keys.run(run), (seen, b"{}", top))])
    assert reply == 0
    assert world.values() == before


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_rewritten_record_is_what_the_script_would_have_written(world: World, status: str) -> None:
    run = await world.run(status)
    ended = world.record(run)
    world.set_record(run, status="running", error=None, updated_at=ended["created_at"])
    found, mended = await world.repair()
    assert [item.rule.id for item in found] == ["record-running"]
    assert mended == found
    event = json.loads(world.witness.xrevrange(world.keys.events(run), count=1)[0][1][b"payload"])
    expected = {**ended, "updated_at": event["created_at"], "error": {"failed": "it broke"}.get(status)}
    if status == "cancelled":
        expected["error"] = "stop"
    assert world.record(run) == expected


async def test_a_terminal_event_without_a_text_is_left_alone(world: World) -> None:
    run = await world.run()
    world.add(run, 4, "run_failed")  # no error
    before = world.values()
    found, mended = await world.repair()
    assert ([item.rule.id for item in found], mended) == (["record-running"], [])
    assert world.values() == before


async def test_levelled_ttls_are_the_longest_of_the_run(world: World) -> None:
    run = await broken.drift(world)
    await world.repair()
    ttls = [ttl for key in world.keys.run(run) if (ttl := world.witness.pttl(key)) != -2]
    assert len(ttls) == 3
    assert min(ttls) > (RETENTION - 30) * 1000
    assert max(ttls) - min(ttls) < 1000


@pytest.mark.parametrize("seconds", [None, RETENTION * 2])
async def test_a_mended_ttl_does_not_leave_the_others_behind(world: World, seconds: int | None) -> None:
    run = await world.run("succeeded")
    for key in world.keys.run(run):
        world.witness.expire(key, RETENTION // 2)
    events = world.keys.events(run)
    _ = world.witness.persist(events) if seconds is None else world.witness.expire(events, seconds)
    found, mended = await world.repair()
    assert mended == [item for item in found if item.rule is not rules.TTL_TOO_LONG]
    ttls = [ttl for key in world.keys.run(run) if (ttl := world.witness.pttl(key)) != -2]
    assert max(ttls) - min(ttls) < 1000
    left = {item.rule for item in (await world.look()).findings}
    assert left == (set() if seconds is None else {rules.TTL_TOO_LONG})


@pytest.mark.parametrize("breaking", [breaking for _, breaking, _ in broken.BROKEN.values()], ids=broken.BROKEN)
async def test_no_repair_shortens_a_ttl(world: World, breaking: broken.Break) -> None:
    await breaking(world)
    before = world.ttls()
    await world.repair()
    after = world.ttls()
    for key in before.keys() & after.keys():
        assert after[key] > before[key] - 5000 or before[key] == NO_TTL, key


OTHER_RETENTIONS: dict[str, tuple[broken.Break, str]] = {
    "a living owner keeps for longer": (
        broken.owner_keeps_for_longer,
        f"replicas here keep runs for {RETENTION * 2} s, this command was told {RETENTION} s: "
        "set DIFY_AGENT_RUN_RETENTION_SECONDS",
    ),
    "a living owner keeps for shorter": (
        broken.owner_keeps_for_shorter,
        f"replicas here keep runs for {RETENTION // 4} s, this command was told {RETENTION} s: "
        "set DIFY_AGENT_RUN_RETENTION_SECONDS",
    ),
    "another run is kept for longer": (
        broken.long_ttl,
        f"keys here are kept for longer, this command was told {RETENTION} s: set DIFY_AGENT_RUN_RETENTION_SECONDS",
    ),
}


@pytest.mark.parametrize(("differing", "why"), OTHER_RETENTIONS.values(), ids=OTHER_RETENTIONS)
async def test_what_depends_on_a_retention_that_is_in_doubt_is_not_repaired(
    world: World, differing: broken.Break, why: str
) -> None:
    await differing(world)
    keyless, ownerless = await broken.no_ttl(world), await broken.owner_missing_for_long(world)
    for key in world.keys.run(ownerless):
        world.witness.expire(key, RETENTION // 10)
    before = world.values()
    found, mended = await world.repair()
    assert (mended, world.values()) == ([], before)
    refused = {item.subject: item for item in found if item.rule in (rules.TTL_MISSING, rules.OWNER_MISSING)}
    assert refused.keys() == {keyless, ownerless}
    assert all(item.detail.endswith(f"; not repaired: {why}") for item in refused.values())
    assert world.witness.ttl(world.keys.events(keyless)) == NO_TTL


async def test_a_lease_is_given_its_ttl_whatever_the_retention(world: World) -> None:
    await broken.long_ttl(world)
    await broken.lease_without_ttl(world)
    _, mended = await world.repair()
    assert [item.rule for item in mended] == [rules.TTL_MISSING]


async def test_what_a_living_owner_renews_is_not_too_long(world: World) -> None:
    for key in (world.keys.owners, world.keys.runs(LIVING.id), world.keys.inbox(LIVING.id)):
        world.witness.expire(key, RETENTION * 3)
    assert (await world.look()).findings == []


async def test_an_adopted_run_has_no_owner_but_is_in_a_lost_ones_set(world: World) -> None:
    run = await broken.owner_missing_for_long(world)
    await world.repair()
    assert await world.store.read_leases() == {LIVING.id: True, NOBODY: False}
    assert list(await world.store.read_owned(NOBODY)) == [run]


@ONE_SERVER
async def test_a_look_needs_no_right_to_write(store_server: StoreServer, world: World) -> None:
    for _, breaking, _ in broken.BROKEN.values():
        await breaking(world)
    wanted = {item.place for item in (await world.look()).findings}
    rights = ["+@read", "+eval_ro", "+evalsha_ro", "+ping", "+hello", "+auth", "+client"]
    store_server.witness.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", *rights)
    url = store_server.url.replace("unix://", "unix://reader:secret@")
    async with open_executor(parse_store_url(url), limit=10, timeout=5) as executor:
        scan = Scan(ExecutorKeyspace(executor), world.keys, BOUNDS, recheck_seconds=0.01)
        assert {item.place for item in (await scan.run()).findings} == wanted


@ONE_SERVER
async def test_a_look_sends_no_writing_command(store_server: StoreServer, world: World) -> None:
    await broken.hole(world)
    world.witness.config_resetstat()
    await world.look()
    calls = {name.removeprefix("cmdstat_").partition("|")[0] for name in world.witness.info("commandstats")}
    table = world.witness.command()
    writing = {name for name in calls if "write" in table.get(name, {}).get("flags", ())}
    assert {"scan", "evalsha_ro", "xrange"} <= calls
    assert writing == set()


@pytest.mark.parametrize("size", [10, WHOLE_BYTES, 3 * PAGE_BYTES])
async def test_a_log_is_read_page_by_page(world: World, size: int) -> None:
    """Every entry comes once, however the pages fall; what is longer than a page comes alone."""
    count = 3 * MOST_ENTRIES + 7 if size == 10 else 40
    run = run_id()
    await world.store.create_run(running(run), LIVING)
    for n in range(1, count + 1):
        world.raw(run, f"{n // 3 + 1}-{n}", payload(run, text="x" * size))
    world.witness.pexpire(world.keys.events(run), world.witness.pttl(world.keys.record(run)))
    (facts,) = await Looks(ExecutorKeyspace(world.executor), world.keys).runs([run])
    assert (str(facts.log.first), str(facts.log.top)) == ("1-1", f"{count // 3 + 1}-{count}")
    assert not facts.log.gaps.count
    assert not facts.log.disorder.count
    assert (await world.look()).findings == []


async def test_other_programs_keys_are_left_alone(world: World) -> None:
    others = ["runs:x", "runs:{}:record", "owners:{a}:what", "idempotency:plain", "x", "runs:{a}:record:b"]
    for name in others:
        world.witness.set(f"{world.prefix}:{name}", "x", ex=RETENTION)
    world.witness.set(f"{world.prefix}:".encode() + b"runs:{\xff}:record", "x", ex=RETENTION)
    world.witness.set(f"{world.prefix}x:runs:{{a}}:record", "x", ex=RETENTION)
    assert (await world.look()).findings == []
    world.witness.delete(f"{world.prefix}x:runs:{{a}}:record")


async def test_a_pattern_is_the_prefix_literally(world: World) -> None:
    """The prefix of these tests has brackets: taken as a pattern it would match nothing of its own."""
    assert "[" in world.prefix
    assert (await world.look()).counts.runs == len(world.healthy)
    assert Keys(world.prefix).owners in {key.decode() for key in world.all_keys()}
