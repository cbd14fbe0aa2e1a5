"""Servers for the doctor's suite. One server per test process; every test has a key prefix of its own."""

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import redis
import trio
from tests.contracts.cluster_support import ClusterServer, ClusterWitness, running_cluster
from tests.contracts.store_support import OneServer, StoreServer
from tests.doctor.world import RETENTION, World

from dify_agent.store.deployments import open_executor
from dify_agent.store.embedded import running_server, valkey_binary
from dify_agent.store.redis import open_redis_store
from dify_agent.store.urls import parse_store_url


@pytest.fixture(
    scope="session",
    params=[
        "valkey",
        pytest.param("redis", marks=pytest.mark.real_redis),
        pytest.param("cluster", marks=pytest.mark.full),
    ],
)
def store_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """The embedded Valkey, the Redis that is installed here, or a Valkey cluster."""
    if request.param == "cluster":
        with running_cluster() as cluster, closing(ClusterWitness(cluster)) as witness:
            yield ClusterServer(cluster, witness)
        return
    binary = valkey_binary() if request.param == "valkey" else shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH; to run these tests: apt-get install redis-server")
    with running_server(binary, {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield OneServer(process.url, f"unix://{process.socket}-none", witness, process.socket)


@pytest.fixture
async def world(store_server: StoreServer) -> AsyncIterator[World]:
    prefix = f"t-[{uuid.uuid4().hex}]"  # a prefix may look like a pattern
    async with (
        open_redis_store(store_server.url, prefix=prefix, retention_seconds=RETENTION, max_length=100) as store,
        open_executor(parse_store_url(store_server.url), limit=10, timeout=5) as executor,
    ):
        world = World(store, executor, store_server.witness, prefix)
        await world.settle()
        yield world
        for key in world.all_keys():
            store_server.witness.delete(key)
