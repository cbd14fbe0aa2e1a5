"""The faults, one after another or at the same time, as the dice say."""

import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from tests.chaos.record import LEASE, VERDICT_SECONDS
from tests.chaos.world import Replica, World

STORM_SECONDS: Final = 20.0
CALM_SECONDS: Final = VERDICT_SECONDS + 1
"""Between two storms: long enough for every verdict to be due."""
PAUSE_SECONDS: Final = 0.8
"""Between two faults of a storm, on average."""

Fault = Callable[[World], Awaitable[None]]


def _victim(world: World) -> Replica | None:
    """One that may be hit: another one stays reachable, as in a cluster that is not lost as a whole."""
    reachable = world.reachable()
    return world.dice.choice(reachable) if len(reachable) > 1 else None


async def kill(world: World) -> None:
    """SIGKILL, and a new process a moment later."""
    if (victim := _victim(world)) is not None:
        world.note("SIGKILL")
        process = victim.process
        process.tell(signal.SIGKILL)
        await trio.sleep(world.dice.uniform(0.1, 1))
        await world.replace(victim, process)


async def freeze(world: World) -> None:
    """SIGSTOP for up to twice the lease, then SIGCONT."""
    if (victim := _victim(world)) is not None:
        world.note("SIGSTOP")
        process = victim.process
        victim.frozen = True
        with process.life.freezing():
            process.tell(signal.SIGSTOP)
            await trio.sleep(world.dice.uniform(0.1, 2 * LEASE))
            process.tell(signal.SIGCONT)
        if victim.process is process:
            victim.frozen = False


async def terminate(world: World) -> None:
    """SIGTERM, and a new process when the old one has drained."""
    if (victim := _victim(world)) is not None:
        world.note("SIGTERM")
        process = victim.process
        process.tell(signal.SIGTERM)
        await world.replace(victim, process)


async def restart_store(world: World) -> None:
    """The store is killed, and comes back from its log of writes."""
    async with world.store_busy:
        world.note("store killed")
        with world.record.store_away():
            await trio.to_thread.run_sync(world.store.kill)
            await trio.sleep(world.dice.uniform(0.1, 1.5 * LEASE))
            await trio.to_thread.run_sync(world.store.start)


async def freeze_store(world: World) -> None:
    """The store answers nothing for a while."""
    async with world.store_busy:
        world.note("store frozen")
        with world.record.store_away():
            world.store.freeze()
            await trio.sleep(world.dice.uniform(0.1, 1.5 * LEASE))
            world.store.thaw()


async def cut_connections(world: World) -> None:
    """Some connections to the store are reset."""
    world.note("connections cut")
    share = world.dice.choice([0.3, 1.0])
    for replica in world.replicas:
        at = time.time()
        if replica.process.wire.cut(world.dice, share):
            replica.process.life.cuts.append(at)
    await trio.lowlevel.checkpoint()


async def silence_connections(world: World) -> None:
    """All connections of one replica are half open: replies are lost, or commands too, and none is closed."""
    if (victim := _victim(world)) is not None:
        world.note("connections silenced")
        with victim.process.wire.silenced(commands=world.dice.random() < 0.5):
            await trio.sleep(world.dice.uniform(0.1, 2 * LEASE))


async def flush_scripts(world: World) -> None:
    """The store forgets the scripts."""
    async with world.store_busy:
        world.note("scripts flushed")
        with world.store.witness as witness:
            await trio.to_thread.run_sync(witness.script_flush)


FAULTS: Final[dict[Fault, int]] = {
    kill: 4,
    freeze: 4,
    terminate: 3,
    restart_store: 2,
    freeze_store: 2,
    cut_connections: 6,
    silence_connections: 4,
    flush_scripts: 1,
}
"""Each with its weight."""


async def play(world: World, seconds: float) -> None:
    """Storms for so long, with calms between them; returns when the last fault is over."""
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        async with trio.open_nursery() as storm:
            await _blow(world, storm, min(end, trio.current_time() + STORM_SECONDS))
        if trio.current_time() < end:
            await trio.sleep(CALM_SECONDS)


async def _blow(world: World, storm: trio.Nursery, until: float) -> None:
    """Start faults. They end by themselves, in ``storm``."""
    names, weights = list(FAULTS), list(FAULTS.values())
    with trio.move_on_at(until):
        while True:
            (fault,) = world.dice.choices(names, weights)
            storm.start_soon(fault, world)
            await trio.sleep(world.dice.expovariate(1 / PAUSE_SECONDS))
