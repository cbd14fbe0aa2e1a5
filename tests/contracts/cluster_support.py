"""A Redis Cluster of this process's own: nodes on loopback ports, slots assigned and moved by commands."""

import itertools
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis
import trio
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from tests.contracts.store_support import LossyProxy, StoreServer, run_id

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import RunStore
from dify_agent.store.embedded import ServerProcess, running_server, valkey_binary

LOCAL: Final = "127.0.0.1"
START_SECONDS: Final = 20.0
SLOTS: Final = 16384


@dataclass
class Node:
    """One server of a cluster; `stop` and `start` are a crash and a restart with the same files."""

    port: int
    options: dict[str, str]
    folder: Path
    """What it knows of the cluster, and its data."""
    binary: str = field(default_factory=valkey_binary)
    server: ServerProcess = field(init=False)
    client: redis.Redis = field(init=False)
    id: str = field(init=False, default="")
    _life: ExitStack = field(init=False)

    def start(self) -> None:
        """Blocks until the node answers."""
        self._life = ExitStack()
        options = {**self.options, "dir": str(self.folder)}
        self.server = self._life.enter_context(running_server(self.binary, options))
        until(lambda: answers(self.server.socket), "the node answers")
        self.client = self._life.enter_context(redis.Redis(unix_socket_path=str(self.server.socket)))

    def stop(self) -> None:
        self._life.close()

    def info(self, name: str) -> str:
        lines = self.client.execute_command("CLUSTER", "INFO")
        lines = lines.items() if isinstance(lines, dict) else (line.split(":") for line in lines.decode().split())
        return str(dict(lines)[name])


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def until(condition: Any, what: str, within: float = START_SECONDS) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.01)


class Cluster:
    """Primaries that share all slots evenly, and replicas behind them."""

    def __init__(self, nodes: Sequence[Node], primaries: int) -> None:
        self.nodes = list(nodes)
        self.primaries = self.nodes[:primaries]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{LOCAL}:{node.port}" for node in self.nodes)

    def owner(self, key: str) -> Node:
        """The primary that serves the key's slot, by its own word."""
        return next(node for node in self.primaries if port_of(node, key_slot(key.encode())) == node.port)

    def settled_owner(self, key: str) -> Node | None:
        """As `owner`, once all primaries say the same; None before."""
        slot = key_slot(key.encode())
        named = {port_of(node, slot) for node in self.primaries}
        return next((node for node in self.primaries if named == {node.port}), None)

    def form(self) -> None:
        """Assign the slots, introduce the nodes to each other, wait until all agree."""
        first, count = self.nodes[0], len(self.primaries)
        for number, node in enumerate(self.nodes):
            node.id = node.client.execute_command("CLUSTER", "MYID").decode()
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < count:
                start, end = SLOTS * number // count, SLOTS * (number + 1) // count - 1
                node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, end)
            if node is not first:
                node.client.execute_command("CLUSTER", "MEET", LOCAL, first.port, first.options["cluster-port"])
        until(lambda: all(node.info("cluster_known_nodes") == str(len(self.nodes)) for node in self.nodes), "met")
        for replica, primary in zip(self.nodes[count:], itertools.cycle(self.primaries)):
            until(lambda p=primary, r=replica: knows(r, p), "the replica knows its primary")
            replica.client.execute_command("CLUSTER", "REPLICATE", primary.id)
        self.wait_ok()

    def wait_ok(self) -> None:
        """Return when every node serves, and knows every slot's owner."""
        until(lambda: all(node.info("cluster_state") == "ok" for node in self.nodes), "the cluster is up")
        until(lambda: all(node.info("cluster_slots_ok") == str(SLOTS) for node in self.nodes), "all slots")
        for replica in self.nodes[len(self.primaries) :]:
            until(lambda r=replica: r.client.info("replication")["master_link_status"] == "up", "replication")

    def begin_move(self, key: str, target: Node) -> "Move":
        """Let the key's slot begin to move: new keys go to the target already, the others stay where they are."""
        source, slot = self.owner(key), key_slot(key.encode())
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return Move(self, source, target, slot)

    def move(self, key: str, target: Node) -> None:
        """Move the key's slot, with whatever it holds."""
        move = self.begin_move(key, target)
        move.keys()
        move.finish()

    def run_ids(self, node: Node, count: int) -> list[str]:
        """Ids of new runs that lie on the node."""
        found = (name for name in (run_id() for _ in itertools.count()) if self.owner(name) is node)
        return list(itertools.islice(found, count))

    def other(self, key: str) -> Node:
        """A primary that does not serve the key."""
        owner = self.owner(key)
        return next(node for node in self.primaries if node is not owner)


@dataclass(frozen=True)
class Move:
    cluster: Cluster
    source: Node
    target: Node
    slot: int

    def keys(self) -> None:
        """Move what is in the slot now."""
        while keys := self.source.client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            self.source.client.execute_command("MIGRATE", LOCAL, self.target.port, "", 0, 5000, "KEYS", *keys)

    def finish(self) -> None:
        """The target first: a crash in between leaves no slot without an owner."""
        for node in (self.target, self.source, *self.cluster.primaries):
            node.client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)


def port_of(node: Node, slot: int) -> int | None:
    """Who serves a slot, by a node's word."""
    rows = node.client.execute_command("CLUSTER", "SLOTS")
    return next((int(primary[1]) for first, last, primary, *_ in rows if first <= slot <= last), None)


def knows(replica: Node, primary: Node) -> bool:
    return primary.id in str(replica.client.execute_command("CLUSTER", "NODES"))


def free_ports(count: int) -> list[int]:
    """Ports nobody uses now, below those that outgoing connections take."""
    found: list[int] = []
    for port in random.sample(range(15_000, 32_000), 50 + count):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOCAL, port))
            found.append(port)
    return found[:count]


@contextmanager
def running_cluster(
    primaries: int = 3, replicas: int = 0, *, encrypted: tuple[str, Path] | None = None, **options: str
) -> Iterator[Cluster]:
    """A cluster that serves. Underscores of option names stand for hyphens. ``encrypted``: a program that can do TLS,
    which the embedded one cannot, and a certificate with its key."""
    ports = free_ports(2 * (primaries + replicas))
    settings = {name.replace("_", "-"): value for name, value in options.items()}
    with ExitStack() as life:
        folder = Path(life.enter_context(tempfile.TemporaryDirectory(prefix="dify-agent-test-")))
        nodes = []
        for port, bus_port in zip(ports[::2], ports[1::2], strict=True):
            own = folder / str(port)
            own.mkdir()
            node = Node(port, {**node_options(port, bus_port), **settings}, own)
            if encrypted:
                node.binary, certificate = encrypted
                node.options |= tls_options(port, certificate)
            node.start()
            life.callback(node.stop)
            nodes.append(node)
        cluster = Cluster(nodes, primaries)
        if settings.get("cluster-enabled") != "no":
            cluster.form()
        yield cluster


def node_options(port: int, bus_port: int) -> dict[str, str]:
    return {
        "bind": LOCAL,
        "port": str(port),
        "cluster-enabled": "yes",
        "cluster-port": str(bus_port),
        "cluster-node-timeout": "2000",
        "cluster-require-full-coverage": "no",
        "repl-diskless-sync-delay": "0",
    }


def tls_options(port: int, certificate: Path) -> dict[str, str]:
    """TLS only: for clients, between nodes, and for replication."""
    names = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
    ways = {"tls-auth-clients": "no", "tls-cluster": "yes", "tls-replication": "yes"}
    return {"port": "0", "tls-port": str(port), **dict.fromkeys(names, str(certificate)), **ways}


class ClusterWitness:
    """redis-py's cluster client for what has a key; what concerns servers goes to all of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_key = RedisCluster(startup_nodes=[ClusterNode(LOCAL, node.port) for node in cluster.nodes])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._by_key, name)

    def close(self) -> None:
        self._by_key.close()

    def each(self) -> list[redis.Redis]:
        return [node.client for node in self._cluster.primaries]

    def scan_iter(self, **options: Any) -> Iterator[bytes]:
        for client in self.each():
            yield from client.scan_iter(**options)

    def script_flush(self) -> None:
        for client in self.each():
            client.script_flush()

    def eval(self, script: str, keys: int) -> None:
        """On all nodes at once."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda client: client.eval(script, keys), self.each()))

    def script_kill(self) -> None:
        for client in self.each():
            client.script_kill()

    def config_get(self, name: str) -> dict[str, str]:
        return self.each()[0].config_get(name)

    def config_set(self, name: str, value: object) -> None:
        for client in self.each():
            client.config_set(name, value)

    def client_kill_filter(self, *, _id: str | None = None, **filters: Any) -> None:
        if _id is None:
            for client in self.each():
                client.client_kill_filter(**filters)
        else:
            number, _, client_id = _id.partition(":")
            self.each()[int(number)].client_kill_filter(_id=client_id)

    def store_clients(self) -> set[str]:
        """Connections of stores to any node."""
        return {
            f"{number}:{client['id']}"
            for number, node in enumerate(self.each())
            for client in node.client_list()
            if client.get("lib-name") == "coredis"
        }


class ClusterProxy(LossyProxy):
    """A proxy before each node; the nodes' own ports are replaced in what they say of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Path())
        self._cluster = cluster
        self._ports: dict[int, int] = {}

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{LOCAL}:{port}" for port in self._ports.values())

    def outgoing(self, reply: bytes) -> bytes:
        for port, shown in self._ports.items():
            reply = reply.replace(b":%d\r\n" % port, b":%d\r\n" % shown)
        return reply

    async def listen(self, nursery: trio.Nursery) -> None:
        for node in self._cluster.primaries:
            (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
            self._ports[node.port] = listener.socket.getsockname()[1]
            serve = partial(self.serve, node.server.socket)
            await nursery.start(trio.serve_listeners, serve, [listener])


@asynccontextmanager
async def cluster_proxy(cluster: Cluster) -> AsyncIterator[ClusterProxy]:
    proxy = ClusterProxy(cluster)
    async with trio.open_nursery() as nursery:
        await proxy.listen(nursery)
        yield proxy
        nursery.cancel_scope.cancel(reason="test over")


class ClusterServer(StoreServer):
    """The cluster as the suite's server."""

    def __init__(self, cluster: Cluster, witness: ClusterWitness) -> None:
        super().__init__(cluster.url, f"redis+cluster://{LOCAL}:{free_ports(1)[0]}", witness)
        self._cluster = cluster

    def proxy(self) -> AbstractAsyncContextManager[ClusterProxy]:
        return cluster_proxy(self._cluster)

    def store_clients(self) -> set[str]:
        return self.witness.store_clients()

    def run_ids(self, count: int) -> list[str]:
        return self._cluster.run_ids(self._cluster.primaries[0], count)

    async def recovered(self, store: RunStore) -> None:
        with trio.fail_after(5):
            for node in self._cluster.primaries:
                await answered(store, self._cluster.run_ids(node, 1)[0])


async def answered(store: RunStore, run: str) -> None:
    """Return when the store can be asked about the run."""
    while True:
        with suppress(StoreUnavailableError):
            await store.read_record(run)
            return
        await trio.sleep(0.01)
