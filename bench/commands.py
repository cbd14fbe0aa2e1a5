"""Commands that the server's connections send to Redis per run, as Redis itself tells them (MONITOR)."""

from collections import Counter
from typing import Any

import redis
import trio

from bench.caller import open_caller, text_run
from bench.figures import Effort, Measurement, Reading
from bench.replica import replica

KEY = "redis_commands_per_run"
WARM_UP_RUNS = 20
END_MARK = "end-of-bench"
SHOWN = 6


async def _measure(effort: Effort) -> dict[str, Reading]:
    body = text_run(20)
    async with replica() as server, open_caller(server) as caller:
        await caller.runs(body, WARM_UP_RUNS)
        with redis.Redis.from_url(server.store_url) as witness, witness.monitor() as monitor:
            await caller.runs(body, effort.server_runs)
            witness.echo(END_MARK)
            sent = _read(monitor)
    per_run = {name: count / effort.server_runs for name, count in sent.most_common()}
    note = ", ".join(f"{name} {count:.3g}" for name, count in list(per_run.items())[:SHOWN])
    return {KEY: Reading(sum(per_run.values()), note)}


def _read(monitor: Any) -> Counter[str]:
    """Count what redis-py's monitor was told up to the mark. A script is one command; its own calls do not count."""
    sent: Counter[str] = Counter()
    for report in monitor.listen():
        name, _, rest = report["command"].partition(" ")
        if rest == END_MARK:
            break
        if report["client_type"] != "lua":
            sent[name.lower()] += 1
    return sent


def measure_commands(effort: Effort) -> dict[str, Reading]:
    """One run at a time, each read by one SSE reader."""
    return trio.run(_measure, effort)


COMMANDS = Measurement([KEY], measure_commands)
