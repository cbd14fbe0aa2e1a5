"""Three replicas on one store, each of which may die, freeze or be told to stop at any time, and is then replaced."""

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from tests.chaos.wire import Wire, open_wire
from tests.server.harness import Server, launched
from tests.server.stores import DurableStore, durable_store

REPLICAS = 3
LEASE = 2.0
GRACE = 1.0
OUTAGE = 15.0
STARTS = 5
START_FAILED = 1
LONGEST_RUN = 4.0
"""Of the bodies that are submitted; what a run may take beyond the faults."""


@dataclass
class Replica:
    """One place for a replica, and the process that is in it now."""

    number: int
    server: Server
    frozen: bool = False

    @property
    def alive(self) -> bool:
        return self.server.process.poll() is None

    def tell(self, number: int) -> None:
        if self.alive:
            os.kill(self.server.pid, number)


@dataclass
class World:
    """What the faults play with."""

    store: DurableStore
    wire: Wire
    prefix: str
    stack: ExitStack
    dice: random.Random
    replicas: list[Replica] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    store_busy: trio.Lock = field(default_factory=trio.Lock)
    past: list[Server] = field(default_factory=list)

    def reachable(self) -> list[Replica]:
        """Those that a client would try now."""
        return [each for each in self.replicas if each.alive and not each.frozen]

    async def launch(self) -> Server | None:
        """A new process; None when it ended because the store did not answer."""
        server = self.stack.enter_context(
            launched(
                f"redis://127.0.0.1:{self.wire.port}/0",
                prefix=self.prefix,
                owner_lease_seconds=LEASE,
                shutdown_grace_seconds=GRACE,
                store_outage_seconds=OUTAGE,
                run_retention_seconds=3600,
                run_event_stream_max_length=100_000,
            )
        )
        try:
            await trio.to_thread.run_sync(server.wait_listening)
        except AssertionError:
            if server.process.poll() != START_FAILED:
                raise
            return None
        return server

    async def started(self) -> Server:
        """As the platform does it: a start that met a cut connection is one that failed, and is tried again.

        Raises:
            AssertionError: a server failed in another way, or again and again.
        """
        for _ in range(STARTS):
            if (server := await self.launch()) is not None:
                return server
            self.note("start met a cut")
        raise AssertionError(f"{STARTS} starts in a row failed")

    async def replace(self, replica: Replica) -> None:
        """Put a new process into the place of one that has ended; while the store is away none starts."""
        await trio.to_thread.run_sync(replica.server.process.wait)
        self.past.append(replica.server)
        async with self.store_busy:
            replica.server = await self.started()
        replica.frozen = False

    def note(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1


@asynccontextmanager
async def open_world(seed: int, prefix: str = "chaos") -> AsyncIterator[World]:
    """Replicas and store, started; all are gone when the body has ended."""
    with durable_store() as store, ExitStack() as stack:
        async with open_wire(store.socket) as wire:
            world = World(store, wire, prefix, stack, random.Random(seed))
            for number in range(REPLICAS):
                world.replicas.append(Replica(number, await world.started()))
            yield world
            for replica in world.replicas:
                replica.tell(signal.SIGCONT)
