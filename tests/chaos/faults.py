"""The faults, one after another or at the same time, as the dice say."""

import signal
from collections.abc import Awaitable, Callable

import trio

from tests.chaos.world import LEASE, Replica, World

Fault = Callable[[World], Awaitable[None]]


def _victim(world: World) -> Replica | None:
    """One that may be hit: another one stays reachable, as in a cluster that is not lost as a whole."""
    reachable = world.reachable()
    return world.dice.choice(reachable) if len(reachable) > 1 else None


async def kill(world: World) -> None:
    """SIGKILL, and a new process a moment later."""
    if (victim := _victim(world)) is not None:
        world.note("SIGKILL")
        victim.tell(signal.SIGKILL)
        await trio.sleep(world.dice.uniform(0.1, 1))
        await world.replace(victim)


async def freeze(world: World) -> None:
    """SIGSTOP for up to twice the lease, then SIGCONT."""
    if (victim := _victim(world)) is not None:
        world.note("SIGSTOP")
        victim.frozen = True
        victim.tell(signal.SIGSTOP)
        await trio.sleep(world.dice.uniform(0.1, 2 * LEASE))
        victim.tell(signal.SIGCONT)
        victim.frozen = False


async def terminate(world: World) -> None:
    """SIGTERM, and a new process when the old one has drained."""
    if (victim := _victim(world)) is not None:
        world.note("SIGTERM")
        victim.tell(signal.SIGTERM)
        await world.replace(victim)


async def restart_store(world: World) -> None:
    """The store is killed, and comes back from its log of writes."""
    async with world.store_busy:
        world.note("store killed")
        await trio.to_thread.run_sync(world.store.kill)
        await trio.sleep(world.dice.uniform(0.1, 1.5 * LEASE))
        await trio.to_thread.run_sync(world.store.start)


async def freeze_store(world: World) -> None:
    """The store answers nothing for a while."""
    async with world.store_busy:
        world.note("store frozen")
        world.store.freeze()
        await trio.sleep(world.dice.uniform(0.1, 1.5 * LEASE))
        world.store.thaw()


async def cut_connections(world: World) -> None:
    """Some connections to the store are reset."""
    world.note("connections cut")
    world.wire.cut(world.dice, world.dice.choice([0.3, 1.0]))
    await trio.lowlevel.checkpoint()


async def flush_scripts(world: World) -> None:
    """The store forgets the scripts."""
    async with world.store_busy:
        world.note("scripts flushed")
        with world.store.witness as witness:
            await trio.to_thread.run_sync(witness.script_flush)


FAULTS: dict[Fault, int] = {
    kill: 4,
    freeze: 4,
    terminate: 3,
    restart_store: 2,
    freeze_store: 2,
    cut_connections: 6,
    flush_scripts: 1,
}
"""Each with its weight."""


async def play(world: World, nursery: trio.Nursery, seconds: float) -> None:
    """Start faults for so long. They end by themselves, in ``nursery``."""
    names, weights = list(FAULTS), list(FAULTS.values())
    with trio.move_on_after(seconds):
        while True:
            (fault,) = world.dice.choices(names, weights)
            nursery.start_soon(fault, world)
            await trio.sleep(world.dice.expovariate(1 / 0.8))
