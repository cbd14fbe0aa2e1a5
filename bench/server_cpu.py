"""CPU of the whole server process per run, the store's process and the caller's not counted."""

import trio

from bench.caller import Caller, open_caller, text_run
from bench.figures import Effort, Measurement, Reading
from bench.loops import sample_side, spread
from bench.replica import Replica, replica

FEW, MANY = 20, 200
AT_ONCE = 10

ALONE = "server_cpu_ms_run_20_deltas"
TOGETHER = "server_cpu_ms_run_20_deltas_at_10"
AGENT_BESIDE = "agent_ms_20_deltas_beside_server"
PER_DELTA = "server_cpu_us_per_delta"


async def _cpu_ms(server: Replica, caller: Caller, deltas: int, runs: int, at_once: int = 1) -> float:
    body = text_run(deltas)
    before = server.cpu_seconds()
    await caller.runs(body, runs, at_once=at_once)
    return 1000 * (server.cpu_seconds() - before) / runs


async def _measure(effort: Effort) -> dict[str, Reading]:
    runs = effort.server_runs
    alone, together, long, agent = [], [], [], []
    async with replica() as server, open_caller(server) as caller:
        await caller.runs(text_run(FEW), runs // 2, at_once=AT_ONCE)  # warm-up
        for _ in range(effort.samples):
            alone.append(await _cpu_ms(server, caller, FEW, runs))
            long.append(await _cpu_ms(server, caller, MANY, runs))
            together.append(await _cpu_ms(server, caller, FEW, runs, AT_ONCE))
            # In turn with the server: the machine's speed changes by a quarter from one minute to the next.
            agent.append((await trio.to_thread.run_sync(sample_side, "agent", effort.loop_seconds))[FEW])
    per_delta = [1000 * (many - few) / (MANY - FEW) for few, many in zip(alone, long, strict=True)]
    return {
        ALONE: spread(alone),
        TOGETHER: spread(together),
        PER_DELTA: spread(per_delta),
        AGENT_BESIDE: spread(agent),
    }


def measure_server_cpu(effort: Effort) -> dict[str, Reading]:
    """The three kinds of sample in turn, on one server."""
    return trio.run(_measure, effort)


SERVER_CPU = Measurement([ALONE, TOGETHER, PER_DELTA, AGENT_BESIDE], measure_server_cpu)
