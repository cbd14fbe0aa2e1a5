"""Connections of a server to Redis while 200 readers follow 200 runs, as Redis itself tells them (CLIENT LIST)."""

import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import redis
import trio

from bench.caller import HELD_RUN, Caller, open_caller
from bench.figures import Effort, Measurement, Reading
from bench.replica import Replica, replica, replica_on

KEY = "redis_connections_200_readers_200_runs"
RUNS = 200
AT_ONCE = 20
READ_SECONDS = 30.0
FOLLOW_SECONDS = 1.0
"""For a second replica's hub to follow what its readers read."""


async def _held_runs(caller: Caller) -> list[str]:
    """The runs, many created at a time, so that the server has a reason to open connections."""
    created: list[str] = []

    async def some() -> None:
        for _ in range(RUNS // AT_ONCE):
            created.append(await caller.create(HELD_RUN))

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(some)
    return created


def _followed(stack: ExitStack, server: Replica, run_ids: list[str]) -> None:
    """A reader for each run, all asking before the first one is answered; returns when each has an event."""
    address = urlsplit(server.url)
    readers = []
    for run_id in run_ids:
        reader = socket.create_connection((address.hostname, address.port), READ_SECONDS)
        readers.append(stack.enter_context(reader))
        reader.sendall(f"GET /runs/{run_id}/events/sse HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
    for reader in readers:
        text = b""
        while b"\ndata: " not in text:
            data = reader.recv(1 << 16)
            if not data:
                raise RuntimeError(f"a reader's stream ended:\n{text.decode()}")
            text += data


def _connections(witness: redis.Redis) -> int:
    """How many there are besides the one that asks."""
    clients: Any = witness.client_list()
    return len(clients) - 1


async def _measure(_effort: Effort) -> dict[str, Reading]:
    async with replica() as first, open_caller(first) as caller:
        with redis.Redis.from_url(first.store_url) as witness, ExitStack() as stack:
            run_ids = await _held_runs(caller)
            _followed(stack, first, run_ids)
            own = _connections(witness)
            async with replica_on(first.store_url) as second:
                _followed(stack, second, run_ids)
                await trio.sleep(FOLLOW_SECONDS)
                others = _connections(witness) - own
    return {KEY: Reading(max(own, others), f"executing the runs {own}, only reading them {others}")}


def measure_connections(effort: Effort) -> dict[str, Reading]:
    """On the replica that executes the runs, then on another one as well."""
    return trio.run(_measure, effort)


CONNECTIONS = Measurement([KEY], measure_connections)
