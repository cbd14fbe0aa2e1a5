"""After hundreds of runs of all endings the process holds what it held before: descriptors, threads, Redis clients."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run, upstream_model
from tests.server.clients import Api, open_api, open_stream
from tests.server.harness import Server, StoreServer, serving, settled, until
from tests.server.upstream import STREAMING, Endpoint, endpoint

from dify_agent.store.embedded import running_server, valkey_binary

OWN_THREADS = 2
"""The loop's and the watchdog's."""
THREAD_IDLE_SECONDS = 20
"""Trio keeps an idle worker thread for ten seconds."""
ROUNDS = 20
"""A leak in one kind of ending shows as so many."""
POOL_GROWTH = 10
"""The pool of store connections keeps what its busiest moment needed; the warm-up is busier than the test."""


class Holdings(NamedTuple):
    """What a process holds; ``descriptors`` without those of its Redis connections, which are counted by Redis."""

    descriptors: int
    threads: int
    redis_clients: int


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    """A store that only this module's server is connected to."""
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield StoreServer(process.url, witness)


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with endpoint() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(store: StoreServer, provider: Endpoint) -> Iterator[Server]:
    settings = {"run_timeout_seconds": 1.5, "model_base_urls": provider.base_url}
    with serving(store.url, env={"OPENAI_API_KEY": "none"}, **settings) as started:
        yield started


def holdings(store: StoreServer, server: Server) -> Holdings:
    redis_clients = len(store.witness.client_list()) - 1
    descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
    return Holdings(descriptors - redis_clients, len(os.listdir(f"/proc/{server.pid}/task")), redis_clients)


async def runs_of_all_endings(server: Server, provider: Endpoint, rounds: int, at_once: int) -> Counter[str]:
    ended: Counter[str] = Counter()
    limit = trio.CapacityLimiter(at_once)

    async def one(api: Api, kind: str, body: dict[str, Any]) -> None:
        async with limit:
            run_id = await api.create(body)
            if kind.startswith("cancel"):
                await api.cancel(run_id)
            if kind == "leave":
                async with open_stream(server, run_id) as stream:
                    await stream.frame()
            ended[(await api.finished(run_id))[-1]["type"]] += 1

    bodies = {
        "text": text_run(),
        "tool": tool_run(result=1),
        "thread": tool_run(result=1, thread=True, delay_ms=5),
        "failure": run_of({"error": "no"}),
        "cancel": run_of(HANG),
        "cancel tool": tool_run(hang=True),
        "deadline": run_of(STREAM_THEN_HANG),
        "provider's deadline": run_of(model=upstream_model(provider.base_url)),
        "leave": run_of({"chunks": 5, "delay_ms": 10}),
        "impossible": {"composition": {"layers": []}},
    }
    async with provider.answering(STREAMING), open_api(server) as api, trio.open_nursery() as nursery:
        for _ in range(rounds):
            for kind, body in bodies.items():
                nursery.start_soon(one, api, kind, body)
    return ended


@pytest.mark.slow
@pytest.mark.full
async def test_nothing_is_left_after_200_runs(store: StoreServer, server, provider: Endpoint):
    await runs_of_all_endings(server, provider, 3, at_once=30)
    before = await settled(lambda: holdings(store, server))
    ended = await runs_of_all_endings(server, provider, ROUNDS, at_once=10)
    assert ended == {"run_succeeded": 80, "run_failed": 80, "run_cancelled": 40}
    await until(lambda: holdings(store, server).threads == OWN_THREADS, "the worker threads go", THREAD_IDLE_SECONDS)
    after = await settled(lambda: holdings(store, server))
    assert after.descriptors <= before.descriptors
    assert after.redis_clients <= before.redis_clients + POOL_GROWTH < before.redis_clients + ROUNDS
