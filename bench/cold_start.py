"""From the start of the process to the first 200 of ``/readyz``, by the clock, on a store that is up."""

import time
from http import HTTPStatus
from http.client import HTTPConnection
from urllib.parse import urlsplit

import trio

from bench.figures import Effort, Measurement, Reading
from bench.loops import spread
from bench.replica import POLL_SECONDS, START_SECONDS, replica_on
from dify_agent.store.embedded import embedded_valkey

KEY = "cold_start_ms"


def _is_ready(url: str) -> bool:
    address = urlsplit(url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK
    finally:
        connection.close()


async def _start(store_url: str) -> float:
    began = time.perf_counter()
    async with replica_on(store_url) as server:  # from here on it listens
        with trio.fail_after(START_SECONDS):
            # Another process's state has no event to wait for.
            while not _is_ready(server.url):  # noqa: ASYNC110
                await trio.sleep(POLL_SECONDS)
        return 1000 * (time.perf_counter() - began)


async def _measure(effort: Effort) -> dict[str, Reading]:
    async with embedded_valkey() as store_url:
        await _start(store_url)  # the bytecode is written, and the files are in the system's cache
        return {KEY: spread([await _start(store_url) for _ in range(effort.samples)])}


def measure_cold_start(effort: Effort) -> dict[str, Reading]:
    """One start after the other."""
    return trio.run(_measure, effort)


COLD_START = Measurement([KEY], measure_cold_start)
