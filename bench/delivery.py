"""What a second of the server's CPU delivers: one run's events to several readers, while it goes on and afterwards."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from bench.caller import Caller, compose, open_caller, text_run
from bench.figures import Effort, Measurement, Reading
from bench.model import PIECE
from bench.replica import Replica, replica

ROOT = Path(__file__).parents[1]
GATE_SECONDS = 2.0
"""What a live run waits before its deltas, for its readers to be there."""
READ_SECONDS = 120.0
MOST_OTHER_EVENTS = 10
"""Of a run that calls one tool and says one text."""
PACE_MS = 5.0
"""Between the deltas of the paced run. 200 a second to 50 readers are the 10,000 of the target."""
PACED_SHARE = 5
"""The paced run has so many times fewer deltas than the others, which go as fast as they can."""
ONE_READER_TIMES = 5
"""One reader is served within a few ticks of the clock that counts the server's CPU, so it comes again and again."""

SETTINGS = {"stream_text_delta_coalescing_enabled": "false", "run_event_stream_max_length": 1_000_000}
"""Each delta is an event, and none is trimmed."""

CROWDS = (1, 50, 100)
LIVE = {count: f"sse_live_events_per_cpu_s_{count}" for count in CROWDS}
REPLAY = {count: f"sse_replay_events_per_cpu_s_{count}" for count in CROWDS}
PACED = "sse_paced_events_per_cpu_s_50"
WEBSOCKET = "ws_live_events_per_cpu_s_50"


def gated_run(deltas: int, pace_ms: float = 0) -> bytes:
    """A run that waits `GATE_SECONDS` in a tool and then says its deltas."""
    gate = {"name": "gate", "delay_ms": 1000 * GATE_SECONDS, "result": "open"}
    turns = [
        {"tool_calls": [{"name": "gate"}]},
        {"chunks": deltas, "chunk": PIECE, "delay_ms": pace_ms},
    ]
    return compose(
        {"name": "tools", "type": "scripted.tools", "config": {"tools": [gate]}},
        {"name": "llm", "type": "scripted.model", "config": {"turns": turns}},
    )


@dataclass(frozen=True)
class Delivery:
    """Events that reached readers, all readers together, and what it took."""

    events: int
    cpu_seconds: float
    seconds: float
    readers_cpu_seconds: float

    @property
    def per_cpu_second(self) -> float:
        """Events for each CPU second of the server."""
        return self.events / self.cpu_seconds

    @property
    def note(self) -> str:
        """How fast it was by the clock, and that it did not wait for the readers."""
        return (
            f"{self.events / self.seconds:,.0f}/s by the clock; CPU {self.cpu_seconds:.2f} s, "
            f"of the readers {self.readers_cpu_seconds:.2f} s"
        )


@contextmanager
def _readers(server: Replica, run_id: str, transport: str, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    address = urlsplit(server.url)
    path = f"/runs/{run_id}/events/{transport}"
    command = [sys.executable, "-m", "bench.readers", str(address.hostname), str(address.port), path, str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _attached(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    if process.stdout.readline() != b"attached\n":
        raise RuntimeError("the readers did not get their streams")


def _counted(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    said, _ = process.communicate(timeout=READ_SECONDS)
    if process.returncode:
        raise RuntimeError("the readers failed")
    counted: dict[str, Any] = json.loads(said)
    return counted


def _delivery(server: Replica, cpu_before: float, counted: dict[str, Any], readers: int, deltas: int) -> Delivery:
    spent = server.cpu_seconds() - cpu_before
    if not deltas < counted["events"] <= deltas + MOST_OTHER_EVENTS:
        raise RuntimeError(f"readers counted {counted['events']} events of a run with {deltas} deltas")
    return Delivery(counted["events"] * readers, spent, counted["seconds"], counted["cpu_seconds"])


async def _live(
    server: Replica, caller: Caller, readers: int, deltas: int, *, transport: str = "sse", pace_ms: float = 0
) -> Delivery:
    """From the open gate to the end of the last stream; the run's own work is in it, connecting is not."""
    began = time.monotonic()
    run_id = await caller.create(gated_run(deltas, pace_ms))
    with _readers(server, run_id, transport, readers) as process:
        _attached(process)
        if time.monotonic() - began > GATE_SECONDS:
            raise RuntimeError("the run began before its readers were there")
        before = server.cpu_seconds()
        counted = _counted(process)
    return _delivery(server, before, counted, readers, deltas)


def _replay(server: Replica, run_id: str, readers: int, deltas: int) -> Delivery:
    """From connecting to the end of the last stream."""
    before = server.cpu_seconds()
    with _readers(server, run_id, "sse", readers) as process:
        _attached(process)
        counted = _counted(process)
    return _delivery(server, before, counted, readers, deltas)


def _reading(*deliveries: Delivery) -> Reading:
    """All of them together."""
    total = Delivery(*(sum(values) for values in zip(*map(astuple, deliveries), strict=True)))
    return Reading(total.per_cpu_second, total.note)


def _times(readers: int) -> range:
    return range(ONE_READER_TIMES if readers == 1 else 1)


async def _measure(effort: Effort) -> dict[str, Reading]:
    deltas = effort.stream_deltas
    found: dict[str, Reading] = {}
    async with replica(**SETTINGS) as server, open_caller(server) as caller:
        await caller.run(text_run(deltas))  # warm-up
        finished = await caller.create(text_run(deltas))
        await caller.read(finished)
        for readers in CROWDS:
            found[LIVE[readers]] = _reading(*[await _live(server, caller, readers, deltas) for _ in _times(readers)])
            found[REPLAY[readers]] = _reading(*[_replay(server, finished, readers, deltas) for _ in _times(readers)])
        found[WEBSOCKET] = _reading(await _live(server, caller, 50, deltas, transport="ws"))
        found[PACED] = _reading(await _live(server, caller, 50, deltas // PACED_SHARE, pace_ms=PACE_MS))
    return found


def measure_delivery(effort: Effort) -> dict[str, Reading]:
    """One server, one run at a time."""
    return trio.run(_measure, effort)


DELIVERY = Measurement([*LIVE.values(), *REPLAY.values(), PACED, WEBSOCKET], measure_delivery)
