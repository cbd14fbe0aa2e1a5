"""The store behind a sentinel: a primary, a replica, and the sentinel that names one of them."""

import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest
import redis
import trio
from tests.contracts.cluster_support import LOCAL, free_ports, until
from tests.contracts.store_support import MS, OWNER, batch, event, events, run_id, running, terminal, texts, whole_log

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.embedded import running_server, valkey_binary
from dify_agent.store.redis import open_redis_store

pytestmark = pytest.mark.full

SECRET = "data-secret"


@dataclass(frozen=True)
class Group:
    """Two data servers by their ports, and one sentinel."""

    data: dict[int, redis.Redis]
    processes: dict[int, subprocess.Popen]
    sentinel: redis.Redis
    url: str

    @property
    def primary(self):
        """The port, by the sentinel's word."""
        return int(self.sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])

    def role(self, port):
        return self.data[port].execute_command("ROLE")[0]


@contextmanager
def data_server(port, primary):
    options = {"bind": LOCAL, "port": str(port), "requirepass": SECRET, "masterauth": SECRET}
    options |= {"repl-diskless-sync-delay": "0"} if port == primary else {"replicaof": f"{LOCAL} {primary}"}
    with running_server(valkey_binary(), options) as server:
        with redis.Redis(host=LOCAL, port=port, password=SECRET) as client:
            until(lambda: pings(client), "the server answers")
            yield client, server.process


def pings(client):
    with suppress(redis.ConnectionError):
        return client.ping()
    return False


@contextmanager
def sentinel_server(folder, port, primary):
    config = folder / "sentinel.conf"
    config.write_text(
        f"bind {LOCAL}\nport {port}\ndir {folder}\nsentinel monitor main {LOCAL} {primary} 1\n"
        f"sentinel auth-pass main {SECRET}\nsentinel down-after-milliseconds main 1000\n"
        "sentinel failover-timeout main 5000\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([valkey_binary(), str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        with redis.Redis(host=LOCAL, port=port) as client:
            until(lambda: pings(client), "the sentinel answers")
            yield client
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def group(tmp_path):
    first, second, watching, nobody = free_ports(4)
    with ExitStack() as life:
        servers = {port: life.enter_context(data_server(port, first)) for port in (first, second)}
        sentinel = life.enter_context(sentinel_server(tmp_path, watching, first))
        data = {port: client for port, (client, _) in servers.items()}
        until(lambda: data[second].info("replication")["master_link_status"] == "up", "replication")
        until(lambda: sentinel.execute_command("SENTINEL", "REPLICAS", "main"), "the sentinel knows the replica")
        processes = {port: process for port, (_, process) in servers.items()}
        # The first sentinel of the URL is away.
        url = f"redis+sentinel://:{SECRET}@{LOCAL}:{nobody},{LOCAL}:{watching}/main/2"
        yield Group(data, processes, sentinel, url)


async def appended(store, run, n):
    """Append one event, however long a failover lasts."""
    item = batch(run, EventId(MS, n - 1) if n > 1 else START, event(n))
    with trio.fail_after(20):
        while (outcome := (await store.append([item]))[0]) != "appended":
            assert isinstance(outcome, StoreUnavailableError), outcome
            assert SECRET not in outcome.cause
            await trio.sleep(0.02)


async def until_async(condition):
    while not condition():  # noqa: ASYNC110 - another process's state
        await trio.sleep(0.02)


def clients(server):
    """Of the store."""
    return [client for client in server.client_list() if client.get("lib-name") == "coredis"]


def stored(client, run):
    client.execute_command("SELECT", 2)
    found = client.xrange(f"dify-agent:runs:{{{run}}}:events")
    client.execute_command("SELECT", 0)
    return [entry.decode() for entry, _ in found]


@pytest.mark.parametrize("how", ["on command", "by a crash"])
async def test_the_store_goes_on_with_the_new_primary(group, how):
    run, old = run_id(), group.primary
    (new,) = group.data.keys() - {old}
    heard = []

    async def listen(store):
        position = "0-0"
        while len(heard) < 2:
            with suppress(StoreUnavailableError):
                entries = await store.read_inbox(OWNER, position, 30)
                heard.extend(name for _, name in entries)
                position = entries[-1][0] if entries else position

    async with open_redis_store(group.url, command_timeout=2) as store:
        await store.create_run(running(run), OWNER)
        for n in range(1, 6):
            await appended(store, run, n)
        await store.ring(OWNER.id, "before")
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, store)
                # What is acknowledged inside the replication lag may be lost (R21): here nothing is.
                assert group.data[old].wait(1, 5000) == 1
                if how == "on command":
                    group.sentinel.execute_command("SENTINEL", "FAILOVER", "main")
                else:
                    group.processes[old].kill()
                await until_async(lambda: group.primary == new)
                if how == "on command":  # it goes on as a primary, and what it took would be lost
                    with trio.fail_after(4):
                        await until_async(lambda: not clients(group.data[old]))
                    assert group.role(old) == b"master"
                for n in range(6, 11):
                    await appended(store, run, n)
                while "after" not in heard:
                    with suppress(StoreUnavailableError):
                        await store.ring(OWNER.id, "after")
                        break
        assert heard == ["before", "after"]
        assert texts(await whole_log(store, run)) == texts(events(1, 10))
        assert (await store.finalize(terminal(run, "succeeded"))).applied
        assert group.primary == new
        assert len(stored(group.data[new], run)) == 11


async def test_a_demoted_primary_is_not_written_to(group):
    """The server takes writes no more and the sentinel does not know: unavailable, until it does."""
    run, old = run_id(), group.primary
    async with open_redis_store(group.url, command_timeout=1) as store:
        await store.create_run(running(run), OWNER)
        await appended(store, run, 1)
        group.data[old].execute_command("REPLICAOF", LOCAL, "1")
        (outcome,) = await store.append([batch(run, EventId(MS, 1), event(2))])
        assert isinstance(outcome, StoreUnavailableError)
        (outcome,) = await store.append([batch(run, EventId(MS, 1), event(2))])
        assert isinstance(outcome, StoreUnavailableError)
        assert "not the primary" in outcome.cause
        assert not outcome.sent
        group.data[old].execute_command("REPLICAOF", "NO", "ONE")
        await appended(store, run, 2)
        assert texts(await whole_log(store, run)) == texts(events(1, 2))


async def test_a_name_that_no_sentinel_knows(group):
    async with open_redis_store(group.url.replace("/main/", "/nobody/"), command_timeout=2) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
    assert "DIFY_AGENT_REDIS_URL" in caught.value.cause
    assert "'nobody'" in caught.value.cause
    assert SECRET not in caught.value.cause
