"""What a caller waits for, by the clock, with nothing else going on: a first event, the end after a cancel."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from statistics import quantiles
from urllib.parse import urlsplit

import trio

from bench.caller import HELD_RUN, RUN_SECONDS, text_run
from bench.figures import Effort, Measurement, Reading
from bench.loops import spread
from bench.replica import Replica, replica, replica_on

FIRST_EVENT, FIRST_EVENT_P95 = "create_to_first_event_ms", "create_to_first_event_p95_ms"
CANCEL, CANCEL_P95 = "cancel_to_terminal_ms", "cancel_to_terminal_p95_ms"
REMOTE_CANCEL, REMOTE_CANCEL_P95 = "cancel_to_terminal_remote_ms", "cancel_to_terminal_remote_p95_ms"

WARM_UPS = 10
SETTLE_SECONDS = 0.05
"""After a reader has what the store holds: a second replica's hub needs a moment to begin following the run."""
JSON = {"Content-Type": "application/json"}


class PlainCaller:
    """Blocking requests to one replica: the clock should see the server, not a client's event loop."""

    def __init__(self, server: Replica) -> None:
        address = urlsplit(server.url)
        self._host, self._port = str(address.hostname), address.port
        self._commands = HTTPConnection(self._host, self._port, timeout=RUN_SECONDS)

    def post(self, path: str, body: bytes) -> bytes:
        """Send a request on the connection that is kept for them, and give the answer's body."""
        self._commands.request("POST", path, body, JSON)
        answer = self._commands.getresponse()
        said = answer.read()
        if answer.status not in (200, 202):
            raise RuntimeError(f"{path} was answered {answer.status}: {said!r}")
        return said

    @contextmanager
    def stream(self, run_id: str) -> Iterator[HTTPResponse]:
        """A run's events on a connection of their own, which is open before the body begins."""
        connection = HTTPConnection(self._host, self._port, timeout=RUN_SECONDS)
        try:
            connection.request("GET", f"/runs/{run_id}/events/sse")
            yield connection.getresponse()
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection for requests."""
        self._commands.close()


@contextmanager
def plain_caller(server: Replica) -> Iterator[PlainCaller]:
    """A `PlainCaller` for as long as the body runs."""
    caller = PlainCaller(server)
    try:
        yield caller
    finally:
        caller.close()


def _run_id(answer: bytes) -> str:
    return answer.split(b'"run_id":"')[1].split(b'"')[0].decode()


def _read_to(stream: HTTPResponse, line: bytes) -> None:
    """Read until a line begins like this."""
    while not (got := stream.readline()).startswith(line):
        if not got:
            raise RuntimeError(f"the stream ended before {line!r}")


def _first_event(caller: PlainCaller) -> float:
    began = time.perf_counter()
    with caller.stream(_run_id(caller.post("/runs", text_run(1)))) as stream:
        _read_to(stream, b"data: ")
        waited = time.perf_counter() - began
        _read_to(stream, b"event: run_succeeded")
    return 1000 * waited


def _cancel(creator: PlainCaller, canceller: PlainCaller) -> float:
    """Cancel a hanging run, and read its end, both through ``canceller``."""
    run_id = _run_id(creator.post("/runs", HELD_RUN))
    with canceller.stream(run_id) as stream:
        _read_to(stream, b"event: pydantic_ai_event")
        time.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        canceller.post(f"/runs/{run_id}/cancel", b"{}")
        _read_to(stream, b"event: run_cancelled")
        return 1000 * (time.perf_counter() - began)


def _readings(name: str, p95_name: str, times: list[float]) -> dict[str, Reading]:
    return {name: spread(times), p95_name: Reading(quantiles(times, n=20)[-1])}


async def _measure(effort: Effort) -> dict[str, Reading]:
    count = effort.latencies
    async with replica() as first, replica_on(first.store_url) as second:
        with plain_caller(first) as local, plain_caller(second) as remote:
            for _ in range(WARM_UPS):
                _first_event(local)
                _cancel(local, remote)
            return {
                **_readings(FIRST_EVENT, FIRST_EVENT_P95, [_first_event(local) for _ in range(count)]),
                **_readings(CANCEL, CANCEL_P95, [_cancel(local, local) for _ in range(count)]),
                **_readings(REMOTE_CANCEL, REMOTE_CANCEL_P95, [_cancel(local, remote) for _ in range(count)]),
            }


def measure_latency(effort: Effort) -> dict[str, Reading]:
    """One after the other, on two replicas of one store."""
    return trio.run(_measure, effort)


LATENCY = Measurement(
    [FIRST_EVENT, FIRST_EVENT_P95, CANCEL, CANCEL_P95, REMOTE_CANCEL, REMOTE_CANCEL_P95], measure_latency
)
