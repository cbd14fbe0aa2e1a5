"""The figures by name: what each one means and its target. A measurement is a function that reads some of them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report. A figure with ``ratio_of`` is computed from two others, the rest are measured."""

    key: str
    unit: str
    meaning: str
    target: float | None = None
    """At most this much, unless ``more_is_better``: then at least. None: for information."""
    ratio_of: tuple[str, str] | None = None
    """Keys of the numerator and the denominator."""
    more_is_better: bool = False

    @property
    def bound(self) -> str:
        """The target as the report says it."""
        return "" if self.target is None else f"{'≥' if self.more_is_better else '≤'} {self.target:g}"

    def met(self, value: float) -> bool | None:
        """Whether the value meets the target; None without a target."""
        if self.target is None:
            return None
        return value >= self.target if self.more_is_better else value <= self.target


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured value, and what else there is to say about it."""

    value: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    samples: int
    """Of each CPU figure; the median counts."""
    loop_seconds: float
    """CPU seconds of one sample of the loop or of `Agent`."""
    server_runs: int
    """Runs in one sample of the server."""
    held_runs: int
    stream_deltas: int
    """Of the run whose events are delivered."""
    latencies: int
    """Of each kind."""


FULL = Effort(samples=5, loop_seconds=0.5, server_runs=200, held_runs=500, stream_deltas=5000, latencies=100)
QUICK = Effort(samples=3, loop_seconds=0.15, server_runs=50, held_runs=150, stream_deltas=1000, latencies=30)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A function, and the keys of the figures that it reads."""

    keys: Collection[str]
    run: Callable[[Effort], Mapping[str, Reading]]


def _rate(key: str, meaning: str, target: float | None = None) -> Figure:
    """Something delivered per second of CPU."""
    return Figure(key, "/s", meaning, target, more_is_better=True)


FIGURES = (
    Figure("agent_ms_20_deltas", "ms", "CPU of a run of 20 deltas, pydantic_ai.Agent on asyncio"),
    Figure("agent_ms_200_deltas", "ms", "the same with 200 deltas"),
    Figure("loop_ms_20_deltas", "ms", "CPU of a run of 20 deltas, our loop on Trio, same model"),
    Figure("loop_ms_200_deltas", "ms", "the same with 200 deltas"),
    Figure("lean_loop_ms_20_deltas", "ms", "our loop with the model of scripted.model, 20 deltas"),
    Figure("lean_loop_ms_200_deltas", "ms", "the same with 200 deltas"),
    Figure(
        "loop_20_deltas_vs_agent", "", "our loop / Agent, 20 deltas", 0.15, ("loop_ms_20_deltas", "agent_ms_20_deltas")
    ),
    Figure("loop_200_deltas_vs_agent", "", "the same, 200 deltas", 0.2, ("loop_ms_200_deltas", "agent_ms_200_deltas")),
    Figure(
        "lean_loop_20_deltas_vs_agent",
        "",
        "our loop with the lean model / Agent, 20 deltas",
        ratio_of=("lean_loop_ms_20_deltas", "agent_ms_20_deltas"),
    ),
    Figure(
        "lean_loop_200_deltas_vs_agent",
        "",
        "the same, 200 deltas",
        ratio_of=("lean_loop_ms_200_deltas", "agent_ms_200_deltas"),
    ),
    Figure("openai_agent_ms_200_chunks", "ms", "CPU of a run whose text comes by HTTP, Agent with its OpenAI adapter"),
    Figure("gateway_ms_200_chunks", "ms", "the same text from Dify's gateway, our loop and model on Trio"),
    Figure(
        "gateway_200_chunks_vs_agent",
        "",
        "our loop and gateway model / Agent and adapter, chunks sent as fast as possible",
        0.2,
        ("gateway_ms_200_chunks", "openai_agent_ms_200_chunks"),
    ),
    Figure("openai_agent_ms_200_paced_chunks", "ms", "Agent with its OpenAI adapter, 500 chunks a second"),
    Figure("gateway_ms_200_paced_chunks", "ms", "our loop and gateway model, 500 chunks a second"),
    Figure(
        "gateway_200_paced_chunks_vs_agent",
        "",
        "the same ratio, 500 chunks a second: each wakes the HTTP library, which both share",
        ratio_of=("gateway_ms_200_paced_chunks", "openai_agent_ms_200_paced_chunks"),
    ),
    Figure("server_cpu_ms_run_20_deltas", "ms", "CPU of the server process per run: create, 20 deltas, one SSE reader"),
    Figure("server_cpu_ms_run_20_deltas_at_10", "ms", "the same with 10 runs at a time"),
    Figure("agent_ms_20_deltas_beside_server", "ms", "Agent again, its samples taken in turn with the server's"),
    Figure("server_cpu_us_per_delta", "µs", "server CPU per delta: (200 − 20 deltas) / 180, one run at a time"),
    Figure(
        "server_run_20_deltas_vs_agent",
        "",
        "server CPU per run / Agent's alone",
        1.2,
        ("server_cpu_ms_run_20_deltas", "agent_ms_20_deltas_beside_server"),
    ),
    Figure(
        "redis_commands_per_run",
        "",
        "commands the server sends per run of 20 deltas, its services' included; not those inside scripts",
        15,
    ),
    Figure("rss_kib_per_held_run", "KiB", "memory of the server process per run whose model hangs after a delta", 60),
    _rate(
        "sse_live_events_per_cpu_s_1", "events to readers per server CPU second: SSE, one run at full speed, 1 reader"
    ),
    _rate("sse_live_events_per_cpu_s_50", "the same, 50 readers", 10_000),
    _rate("sse_live_events_per_cpu_s_100", "the same, 100 readers"),
    _rate("sse_paced_events_per_cpu_s_50", "50 readers of a run that says 200 deltas a second: a write each", 10_000),
    _rate("ws_live_events_per_cpu_s_50", "one run at full speed, 50 WebSocket readers", 10_000),
    _rate("sse_replay_events_per_cpu_s_1", "a finished run from its first event, 1 SSE reader", 20_000),
    _rate("sse_replay_events_per_cpu_s_50", "the same, 50 readers at a time", 20_000),
    _rate("sse_replay_events_per_cpu_s_100", "the same, 100 readers at a time", 20_000),
    Figure("create_to_first_event_ms", "ms", "from sending a create to a new SSE reader's first event, median"),
    Figure("create_to_first_event_p95_ms", "ms", "the same, 95th percentile"),
    Figure("cancel_to_terminal_ms", "ms", "from sending a cancel to a reader's terminal event, median"),
    Figure("cancel_to_terminal_p95_ms", "ms", "the same, 95th percentile"),
    Figure("cancel_to_terminal_remote_ms", "ms", "the same, both at a replica that does not execute the run, median"),
    Figure("cancel_to_terminal_remote_p95_ms", "ms", "the same, 95th percentile"),
    Figure("redis_connections_200_readers_200_runs", "", "of one server, the greater of two replicas' counts", 10),
    Figure("cold_start_ms", "ms", "from the start of the process to the first 200 of /readyz", 2000),
)


def needed(keys: Collection[str]) -> set[str]:
    """The keys, and those of the figures that ratios among them are computed from.

    Raises:
        ValueError: there is no such figure.
    """
    known = {figure.key: figure for figure in FIGURES}
    if unknown := sorted(set(keys) - known.keys()):
        raise ValueError(f"no such figure: {', '.join(unknown)}; there are {', '.join(known)}")
    return set(keys).union(*(known[key].ratio_of or () for key in keys))


def with_ratios(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """The readings, and the ratios that can be computed from them."""
    complete = dict(readings)
    for figure in FIGURES:
        if figure.ratio_of and all(key in readings for key in figure.ratio_of):
            numerator, denominator = (readings[key].value for key in figure.ratio_of)
            complete[figure.key] = Reading(numerator / denominator)
    return complete
