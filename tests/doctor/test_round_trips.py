"""How often the doctor asks: a keyspace full of garbage takes as many round trips as a sound one of its size."""

from collections.abc import Sequence

import pytest
from tests.contracts.store_support import run_id
from tests.doctor import broken
from tests.doctor.world import BOUNDS, DEAD, World

from dify_agent.doctor.keyspace import ExecutorKeyspace
from dify_agent.doctor.scan import Scan, ScanResult
from dify_agent.store.base import Owner
from dify_agent.store.executor import Item, Reply

OWNERS = 40
RUNS = 120


class Counting(ExecutorKeyspace):
    """Counts what it is asked."""

    asked = 0

    async def ask(self, items: Sequence[Item], *, in_order: bool = False) -> list[Reply]:
        self.asked += 1
        return await super().ask(items, in_order=in_order)


async def counted(world: World) -> tuple[ScanResult, int]:
    keyspace = Counting(world.executor)
    result = await Scan(keyspace, world.keys, BOUNDS, recheck_seconds=0.01).run()
    return result, keyspace.asked


async def lost_owners(world: World) -> None:
    for number in range(OWNERS):
        owner = Owner(f"lost-{number}", 1)
        await world.store.heartbeat(owner, 60)
        world.witness.delete(world.keys.alive(owner.id))


@pytest.mark.slow
async def test_runs_without_an_owner_beside_many_lost_owners(world: World) -> None:
    await lost_owners(world)
    _, before = await counted(world)
    runs = [await broken.owner_missing(world) for _ in range(RUNS)]
    result, asked = await counted(world)
    assert sorted(item.subject for item in result.findings if item.rule.id == "owner-missing") == sorted(runs)
    assert asked - before < RUNS / 2, "not one round trip for each, let alone for each and each lost owner"


@pytest.mark.slow
async def test_entries_of_sets_without_a_record(world: World) -> None:
    _, before = await counted(world)
    runs = [run_id() for _ in range(RUNS)]
    world.witness.sadd(world.keys.runs(DEAD.id), *runs)
    world.witness.expire(world.keys.runs(DEAD.id), 300)
    result, asked = await counted(world)
    assert sorted(item.subject for item in result.findings if item.rule.id == "set-dangling") == sorted(runs)
    assert asked - before < 20
