"""Three replicas on one store, each of which may die, freeze or be told to stop at any time, and is then replaced."""

import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from tests.chaos.record import LEASE, OUTAGE, STALL_SECONDS, Life, Record, Span
from tests.chaos.wire import Wire, Wires, open_wires
from tests.server.harness import Server, launched
from tests.server.stores import DurableStore, durable_store

REPLICAS: Final = 3
GRACE: Final = 1.0
STARTS: Final = 5
START_FAILED: Final = 1
LONGEST_RUN: Final = 4.0
"""Of the bodies that are submitted; what a run may take beyond the faults."""
_WATCH_SECONDS: Final = 0.1


@dataclass(eq=False)
class Process:
    """A replica as a process, with its own way to the store."""

    server: Server
    wire: Wire
    life: Life

    @property
    def alive(self) -> bool:
        return self.server.process.poll() is None

    def tell(self, number: int) -> None:
        """Send a signal; noted before it is sent, so that nothing it causes can seem to come first."""
        if not self.alive:
            return
        if number == signal.SIGKILL:
            self.life.killed = self.life.killed or time.time()
        elif number == signal.SIGTERM:
            self.life.told = self.life.told or time.time()
        os.kill(self.server.pid, number)


@dataclass
class Replica:
    """One place for a replica, and the process that is in it now."""

    process: Process
    frozen: bool = False

    @property
    def url(self) -> str:
        return self.process.server.url


@dataclass
class World:
    """What the faults play with."""

    store: DurableStore
    wires: Wires
    prefix: str
    stack: ExitStack
    dice: random.Random
    record: Record = field(default_factory=Record)
    replicas: list[Replica] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    store_busy: trio.Lock = field(default_factory=trio.Lock)
    processes: list[Process] = field(default_factory=list)
    """All that were ever started."""

    def reachable(self) -> list[Replica]:
        """Those that a client would try now."""
        return [each for each in self.replicas if each.process.alive and not each.frozen]

    async def launch(self, number: int) -> Process | None:
        """A new process; None when it ended because the store did not answer."""
        life = Life(number, time.time())
        wire = await self.wires.open(life.waiting)
        server = self.stack.enter_context(
            launched(
                f"redis://127.0.0.1:{wire.port}/0",
                prefix=self.prefix,
                owner_lease_seconds=LEASE,
                shutdown_grace_seconds=GRACE,
                store_outage_seconds=OUTAGE,
                run_retention_seconds=3600,
                run_event_stream_max_length=100_000,
            )
        )
        process = Process(server, wire, life)
        self.processes.append(process)
        try:
            await trio.to_thread.run_sync(server.wait_listening)
        except AssertionError:
            if server.process.poll() != START_FAILED:
                raise
            wire.close()
            return None
        life.owner = _owner(server)
        self.record.lives.append(life)
        return process

    async def started(self, number: int) -> Process:
        """As the platform does it: a start that met a cut connection is one that failed, and is tried again.

        Raises:
            AssertionError: a server failed in another way, or again and again.
        """
        for _ in range(STARTS):
            if (process := await self.launch(number)) is not None:
                return process
            self.note("start met a cut")
        raise AssertionError(f"{STARTS} starts in a row failed:\n{self.processes[-1].server.log}")

    async def replace(self, replica: Replica, process: Process) -> None:
        """Put a new process into the place of one that has ended; while the store is away none starts."""
        await trio.to_thread.run_sync(process.server.process.wait)
        process.life.ended = process.life.ended or time.time()
        process.wire.close()
        async with self.store_busy:
            if replica.process is not process:
                return  # another fault has hit the same one, and was quicker
            replica.process = await self.started(process.life.number)
        replica.frozen = False

    def note(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    async def watch_machine(self) -> None:
        """Note when the machine has not let even this process go on. Runs until it is cancelled."""
        while True:
            before = time.time()
            await trio.sleep(_WATCH_SECONDS)
            if (after := time.time()) - before > _WATCH_SECONDS + STALL_SECONDS:
                self.record.stalls.append(Span(before, after))

    def ended_by_themselves(self) -> list[str]:
        """Processes that are gone although nobody told them to go, with their status."""
        return [
            f"replica {each.life.number}: ended by itself with status {each.server.process.poll()}"
            for each in self.processes
            if each.life.owner and not each.alive and each.life.told is None and each.life.killed is None
        ]


def _owner(server: Server) -> str:
    (line,) = [line for line in server.log.splitlines() if '"listening"' in line]
    return str(json.loads(line)["owner"])


@asynccontextmanager
async def open_world(seed: int, prefix: str = "chaos") -> AsyncIterator[World]:
    """Replicas and store, started; all are gone when the body has ended."""
    with durable_store() as store, ExitStack() as stack:
        async with open_wires(store.socket) as wires, trio.open_nursery() as nursery:
            world = World(store, wires, prefix, stack, random.Random(seed))
            nursery.start_soon(world.watch_machine)
            for number in range(REPLICAS):
                world.replicas.append(Replica(await world.started(number)))
            yield world
            for replica in world.replicas:
                replica.process.tell(signal.SIGCONT)
            nursery.cancel_scope.cancel(reason="the test is over")
