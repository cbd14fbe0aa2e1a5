"""One performance: load and faults together, then peace, then the audit."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

import httpx2
import trio

from tests.chaos import faults
from tests.chaos.audit import Audit, Told, audit, read_runs, statuses
from tests.chaos.load import CLIENT_SECONDS, Book, Clients, load
from tests.chaos.record import VERDICT_SECONDS, Record
from tests.chaos.wire import Counts
from tests.chaos.world import LONGEST_RUN, World, open_world

SETTLE_SECONDS: Final = max(VERDICT_SECONDS, LONGEST_RUN)
"""From the end of the last trouble and the last request to the last terminal event: by then every verdict was due."""
OVERTIME: Final = 30.0
"""What is waited longer, to tell late from never."""


@dataclass(frozen=True)
class Performance:
    """What happened."""

    audit: Audit
    book: Book
    faults: dict[str, int]
    wires: Counts
    record: Record
    settled: float
    """Seconds from the last trouble to the last terminal event."""
    tracebacks: list[str]

    @property
    def report(self) -> str:
        wires, stalls = self.wires, self.record.stalls
        stalled = sum(span.end - span.start for span in stalls)
        lines = [
            f"{self.audit.runs} runs, {len(self.book.cancelled)} cancels accepted, {self.book.unanswered} unanswered",
            f"faults: {_sum(Counter(self.faults), by_name=True)}",
            f"connections: {wires.cut} cut, {wires.silenced} silenced, which swallowed {wires.swallowed} bytes",
            f"endings: {_sum(self.audit.endings)}",
            f"owners of judged runs: {_sum(self.audit.losses)}",
            f"settled {self.settled:.1f} s after the last trouble, at most {SETTLE_SECONDS:g}; "
            f"the machine stood still {len(stalls)} times, {stalled:.1f} s",
        ]
        return "\n".join([*lines, *self.audit.findings, *self.tracebacks])


def _sum(counter: Counter[str], *, by_name: bool = False) -> str:
    items = sorted(counter.items()) if by_name else counter.most_common()
    return ", ".join(f"{name} {count}" for name, count in items) or "none"


async def perform(*, seconds: float, runs: int, seed: int) -> Performance:
    """Play for ``seconds`` with ``runs`` runs. One seed gives the same dice each time; the machine differs."""
    async with open_world(seed) as world:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=CLIENT_SECONDS, limits=limits) as client:
            clients = Clients(world, client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults.play, world, seconds)
                await load(world, clients, runs=runs, seconds=seconds)
        settled = await _settled(world)
        book = clients.book
        with world.store.witness as witness:
            found = await trio.to_thread.run_sync(lambda: list(read_runs(witness, world.prefix)))
        result = audit(found, Told(frozenset(book.created), frozenset(book.cancelled)), world.record)
        result.findings += world.ended_by_themselves()
        if settled > SETTLE_SECONDS:
            result.findings.append(f"runs ended {settled:.1f} s after the last trouble, at most {SETTLE_SECONDS:g}")
        tracebacks = [
            line for each in world.processes for line in each.server.log.splitlines() if '"exception"' in line
        ]
        return Performance(result, book, world.faults, world.wires.counts, world.record, settled, tracebacks)


async def _settled(world: World) -> float:
    """Wait until no run is running any more, and tell how long it took; what still runs then, the audit finds."""
    asked = time.time()
    with world.store.witness as witness:
        while True:
            found = await trio.to_thread.run_sync(statuses, witness, world.prefix)
            # A connection that was silenced long ago may be used only now: that is a trouble as any other.
            waited = time.time() - max(asked, world.record.last_trouble())
            if "running" not in found.values() or waited > SETTLE_SECONDS + OVERTIME:
                return max(0.0, waited)
            await trio.sleep(0.2)
