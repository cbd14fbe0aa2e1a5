"""One performance: load and faults together, then peace, then the audit."""

from dataclasses import dataclass

import httpx2
import trio

from tests.chaos import faults
from tests.chaos.audit import Audit, audit, statuses
from tests.chaos.load import CLIENT_SECONDS, Book, Clients, load
from tests.chaos.world import LEASE, LONGEST_RUN, OUTAGE, World, open_world

SETTLE_SECONDS = LEASE + 5 + LONGEST_RUN + OUTAGE + 30
"""From the last fault to the last terminal event: verdict, longest run, what an outage held up, and a slow machine."""


@dataclass(frozen=True)
class Performance:
    """What happened."""

    audit: Audit
    book: Book
    faults: dict[str, int]
    tracebacks: list[str]

    @property
    def report(self) -> str:
        lines = [
            f"{self.audit.runs} runs, {len(self.book.cancelled)} cancels accepted, {self.book.unanswered} unanswered",
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            "endings: " + ", ".join(f"{name} {count}" for name, count in self.audit.endings.most_common()),
        ]
        return "\n".join([*lines, *self.audit.findings, *self.tracebacks])


async def perform(*, seconds: float, runs: int, seed: int) -> Performance:
    """Play for ``seconds`` with ``runs`` runs. One seed gives the same dice each time; the machine differs."""
    async with open_world(seed) as world:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=CLIENT_SECONDS, limits=limits) as client:
            clients = Clients(world, client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults.play, world, nursery, seconds)
                await load(world, clients, runs=runs, seconds=seconds)
        await _settled(world)
        with world.store.witness as witness:
            found = audit(witness, world.prefix, clients.book.cancelled, clients.book.created)
        servers = [*world.past, *(replica.server for replica in world.replicas)]
        tracebacks = [line for server in servers for line in server.log.splitlines() if '"exception"' in line]
        return Performance(found, clients.book, world.faults, tracebacks)


async def _settled(world: World) -> None:
    """Wait until no run is running any more; what still is then, the audit finds."""
    with trio.move_on_after(SETTLE_SECONDS), world.store.witness as witness:
        while "running" in (await trio.to_thread.run_sync(statuses, witness, world.prefix)).values():  # noqa: ASYNC110
            await trio.sleep(0.2)
