"""TLS to all nodes of a cluster, and to sentinel and data servers: a real Redis, whose ports speak nothing else."""

import shutil
import ssl
import subprocess
from contextlib import contextmanager, suppress

import pytest
import redis
from tests.contracts.cluster_support import LOCAL, free_ports, running_cluster, tls_options, until
from tests.contracts.store_support import OWNER, batch, events, run_id, running, texts, whole_log

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START
from dify_agent.store.embedded import running_server
from dify_agent.store.redis import open_redis_store

pytestmark = [pytest.mark.full, pytest.mark.real_redis]


@pytest.fixture(scope="module")
def program():
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH; to run these tests: apt-get install redis-server")
    return binary


async def exercise(url, runs):
    async with open_redis_store(url, prefix="t", command_timeout=5) as store:
        for run in runs:
            await store.create_run(running(run), OWNER)
        assert await store.append([batch(run, START, *events(1, 3)) for run in runs]) == ["appended"] * len(runs)
        for run in runs:
            assert texts(await whole_log(store, run)) == texts(events(1, 3))


async def refused(url):
    async with open_redis_store(url, prefix="t", command_timeout=2) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
    return caught.value.cause


async def test_every_node_of_a_cluster_is_asked_over_tls(program, certificate):
    with running_cluster(encrypted=(program, certificate)) as cluster:
        nodes = ",".join(f"{LOCAL}:{node.port}" for node in cluster.nodes)
        runs = [cluster.run_ids(node, 1)[0] for node in cluster.primaries]
        await exercise(f"rediss+cluster://{nodes}?ssl_ca_certs={certificate}", runs)
        assert "certificate" in (await refused(f"rediss+cluster://{nodes}")).lower()
        assert await refused(f"redis+cluster://{nodes}")


async def test_sentinel_and_primary_are_asked_over_tls(program, certificate, tmp_path):
    port, watching = free_ports(2)
    with encrypted_primary(program, port, certificate), sentinel(program, tmp_path, watching, port, certificate):
        url = f"sentinel://{LOCAL}:{watching}/main/0"
        await exercise(f"rediss+{url}?ssl_ca_certs={certificate}", [run_id()])
        assert "certificate" in (await refused(f"rediss+{url}")).lower()
        assert await refused(f"redis+{url}")


@contextmanager
def encrypted_primary(program, port, certificate):
    with running_server(program, {"bind": LOCAL, **tls_options(port, certificate)}):
        with client(port, certificate) as server:
            until(lambda: pings(server), "the primary answers")
        yield


@contextmanager
def sentinel(program, folder, port, primary, certificate):
    config = folder / "sentinel.conf"
    options = {"bind": LOCAL, "dir": str(folder), **tls_options(port, certificate)}
    lines = [f"{name} {value}" for name, value in options.items()]
    config.write_text("\n".join([*lines, f"sentinel monitor main {LOCAL} {primary} 1", ""]))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        with client(port, certificate) as server:
            until(lambda: pings(server), "the sentinel answers")
        yield
    finally:
        process.kill()
        process.wait()


def client(port, certificate):
    return redis.Redis(host=LOCAL, port=port, ssl=True, ssl_ca_certs=str(certificate))


def pings(server):
    with suppress(redis.ConnectionError, ssl.SSLError):
        return server.ping()
    return False
