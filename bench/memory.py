"""Memory of the server process per held run: its model said one delta and hangs, and nobody reads."""

from typing import Any

import redis
import trio

from bench.caller import HELD_RUN, Caller, open_caller
from bench.figures import Effort, Measurement, Reading
from bench.replica import PREFIX, replica

KEY = "rss_kib_per_held_run"
HELD_BEFORE = 20
"""Held while the rest is measured: what the first runs of a process allocate once is not theirs."""
SETTLE_SECONDS = 30.0


async def _hold(caller: Caller, witness: redis.Redis, count: int) -> None:
    """So many runs, each with its delta in the store."""
    created = [await caller.create(HELD_RUN) for _ in range(count)]
    with trio.fail_after(SETTLE_SECONDS):
        for run_id in created:
            # Another process's state has no event to wait for.
            while not _said_something(witness, run_id):  # noqa: ASYNC110
                await trio.sleep(0.05)


def _said_something(witness: redis.Redis, run_id: str) -> bool:
    newest: Any = witness.xrevrange(f"{PREFIX}:runs:{{{run_id}}}:events", count=1)
    return any(b'"part_delta"' in text for _id, entry in newest for text in entry.values())


async def _measure(effort: Effort) -> dict[str, Reading]:
    async with replica() as server, open_caller(server) as caller:
        with redis.Redis.from_url(server.store_url) as witness:
            await _hold(caller, witness, HELD_BEFORE)
            before = server.rss_kib()
            await _hold(caller, witness, effort.held_runs)
            grown = server.rss_kib() - before
    return {KEY: Reading(grown / effort.held_runs, f"{effort.held_runs} runs, {grown / 1024:.1f} MiB")}


def measure_memory(effort: Effort) -> dict[str, Reading]:
    """Growth of the resident memory while the held runs are created, divided by their number."""
    return trio.run(_measure, effort)


MEMORY = Measurement([KEY], measure_memory)
