"""Servers and stores for the contract suites. One server per test process; every test has a key prefix of its own."""

import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
import trio
from tests.contracts.cluster_support import ClusterServer, ClusterWitness, running_cluster
from tests.contracts.store_support import CheckedStore, OneServer, StoreServer

from dify_agent.store.embedded import running_server, valkey_binary
from dify_agent.store.redis import RedisRunStore, open_redis_store

_NO_REDIS = "no redis-server on PATH; to run these tests: apt-get install redis-server"


@pytest.fixture(
    scope="session",
    params=[
        "valkey",
        pytest.param("redis", marks=pytest.mark.real_redis),
        pytest.param("cluster", marks=pytest.mark.full),
    ],
)
def store_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """The embedded Valkey or the real Redis that is installed here, on a private unix socket; or a Valkey cluster."""
    if request.param == "cluster":
        with running_cluster() as cluster, closing(ClusterWitness(cluster)) as witness:
            yield ClusterServer(cluster, witness)
        return
    binary = valkey_binary() if request.param == "valkey" else shutil.which("redis-server")
    if binary is None:
        pytest.skip(_NO_REDIS)
    with running_server(binary, {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield OneServer(process.url, f"unix://{process.socket}-none", witness, process.socket)


@pytest.fixture
def prefix(store_server: StoreServer) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex}"
    yield name
    for key in store_server.witness.scan_iter(match=f"{name}*", count=1000):
        store_server.witness.delete(key)


@pytest.fixture
def witness(store_server: StoreServer) -> redis.Redis:
    """An independent, synchronous client, which sees what the store really wrote."""
    return store_server.witness


@pytest.fixture
async def bare_store(store_server: StoreServer, prefix: str) -> AsyncIterator[RedisRunStore]:
    async with open_redis_store(store_server.url, prefix=prefix, retention_seconds=600, max_length=100) as opened:
        yield opened


@pytest.fixture
def store(bare_store: RedisRunStore, witness: redis.Redis, prefix: str) -> CheckedStore:
    """The store under test; each operation is followed by a check of every key's TTL."""
    return CheckedStore(bare_store, witness, prefix, retention_seconds=600)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one file; valid for servers and clients."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH; to run this test: apt-get install openssl")
    path = tmp_path / "server.pem"
    arguments = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test -addext subjectAltName=IP:127.0.0.1 -addext"
    usage = ["keyUsage=critical,digitalSignature,keyCertSign", "-addext", "extendedKeyUsage=serverAuth,clientAuth"]
    command = ["openssl", *arguments.split(), *usage, "-keyout", str(path), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + (tmp_path / "cert.pem").read_text())
    return path
