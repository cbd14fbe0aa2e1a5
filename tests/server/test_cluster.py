"""Two replicas of the server on a Redis Cluster: while slots move, when a replica is lost, when a node is."""

import signal
import time
from collections.abc import Iterator

import pytest
import redis
import trio
from tests.contracts.cluster_support import Cluster, Node, running_cluster
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of
from tests.server.clients import open_api, open_stream, stream_of
from tests.server.harness import Server, launched, serving, until

from dify_agent.store.keys import Keys

pytestmark = pytest.mark.full

LEASE = 2.0
AWAY = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as started:
        yield started


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Server]:
    with serving(cluster.url) as started:
        yield started


@pytest.fixture(scope="module")
def other(cluster: Cluster, server: Server) -> Iterator[Server]:
    with serving(cluster.url, prefix=server.prefix) as started:
        yield started


async def move_slots(cluster: Cluster, *keys: str) -> None:
    """Move each key's slot to another node, slowly enough to be met half-way."""
    for key in keys:
        move = cluster.begin_move(key, cluster.other(key))
        await trio.sleep(0.05)
        move.keys()
        await trio.sleep(0.05)
        move.finish()


async def test_a_run_is_followed_through_the_other_replica_while_its_slot_moves(cluster, server, other):
    async with open_api(server) as api, open_api(other) as remote:
        for _ in range(3):
            run_id = await api.create(run_of({"chunks": 40, "delay_ms": 25}))
            async with open_stream(other, run_id) as tail:
                first = await tail.frame()
                await move_slots(cluster, run_id, run_id)
                frames = [first, *await tail.rest()]
            assert frames == await stream_of(server, run_id) == await stream_of(other, run_id)
            assert frames[-1].event == "run_succeeded"
            ordinals = [int(frame.id.rpartition("-")[2]) for frame in frames]
            assert ordinals == list(range(1, len(frames) + 1))
            assert await remote.finished(run_id) == await api.finished(run_id)


@pytest.mark.parametrize("body", [run_of(HANG), run_of(STREAM_THEN_HANG)], ids=["silent", "streaming"])
async def test_a_cancel_at_the_other_replica_stops_the_run_within_a_second(cluster, server, other, body):
    async with open_api(server) as api, open_api(other) as remote:
        for _ in range(3):
            run_id = await api.create(body)
            await api.events_until(run_id, "run_started" if body == run_of(HANG) else "part_delta")
            async with open_stream(server, run_id) as local, open_stream(other, run_id) as tail:
                with trio.fail_after(1):
                    await remote.cancel(run_id, reason="workflow_aborted", message="from next door")
                    frames = await local.rest()
                assert await tail.rest() == frames
            assert frames[-1].event == "run_cancelled"
            assert frames[-1].json["data"]["reason"] == "workflow_aborted"
            assert (await remote.status(run_id))["status"] == "cancelled"


async def test_a_cancel_reaches_a_run_whose_slot_moves(cluster, server, other):
    async with open_api(server) as api, open_api(other) as remote:
        run_id = await api.create(run_of(STREAM_THEN_HANG))
        await api.events_until(run_id, "part_delta")
        async with open_stream(other, run_id) as tail, trio.open_nursery() as nursery:
            nursery.start_soon(move_slots, cluster, run_id)
            deadline = time.monotonic() + 10
            # Scripts wait for the end of the move: a request may be told 503, as in any outage.
            while (answer := await remote.try_cancel(run_id, reason="moved")).status_code == 503:
                assert time.monotonic() < deadline
                await trio.sleep(0.05)
            assert answer.status_code == 200
            frames = await tail.rest()
        assert frames[-1].event == "run_cancelled"
        assert frames[-1].json["data"]["reason"] == "moved"


async def test_many_runs_on_all_nodes_end_well_while_slots_move(cluster, server, other):
    async with open_api(server) as api, open_api(other) as remote:
        runs = []
        async with trio.open_nursery() as nursery:

            async def one(client, far):
                run_id = await client.create(run_of({"chunks": 10, "delay_ms": 20}))
                runs.append(run_id)
                async with open_stream(far, run_id) as tail:
                    frames = await tail.rest()
                assert frames[-1].event == "run_succeeded"

            for _ in range(10):
                nursery.start_soon(one, api, other)
                nursery.start_soon(one, remote, server)
            while not runs:  # noqa: ASYNC110 - of the two replicas, whichever is first
                await trio.sleep(0.005)
            await move_slots(cluster, *runs[:2])
        assert len(runs) == 20
        assert {(await api.status(run_id))["status"] for run_id in runs} == {"succeeded"}


@pytest.fixture
def durable_cluster() -> Iterator[Cluster]:
    """One of the test's own, whose nodes keep what they have when they crash; none is replaced."""
    with running_cluster(cluster_node_timeout="15000", appendonly="yes", appendfsync="always") as started:
        yield started


def owner_of(server: Server) -> str:
    return next(str(each["owner"]) for each in server.records() if each["event"] == "listening")


def holds(node: Node, key: str) -> bool:
    """Whether a node that has just been started has the key again."""
    try:
        return bool(node.client.exists(key))
    except redis.RedisError:
        return False


async def create_where(cluster, api, wanted, count=1):
    """Runs whose keys lie on a node that ``wanted`` accepts, which hang."""
    runs = []
    while len(runs) < count:
        run_id = await api.create(run_of(HANG))
        await api.events_until(run_id, "run_started")
        if wanted(cluster.owner(run_id)):
            runs.append(run_id)
        else:
            await api.cancel(run_id)
    return runs


async def test_a_killed_owners_runs_end_on_every_node(cluster):
    with serving(cluster.url, owner_lease_seconds=LEASE) as survivor:
        with launched(cluster.url, prefix=survivor.prefix, owner_lease_seconds=LEASE) as lost:
            lost.wait_listening()
            async with open_api(lost) as api:
                runs = [
                    run_id
                    for node in cluster.primaries
                    for run_id in await create_where(cluster, api, lambda found, node=node: found is node, 2)
                ]
            async with open_api(survivor) as api, open_stream(survivor, runs[0]) as tail:
                assert await tail.frame() is not None
                lost.process.kill()
                with trio.fail_after(LEASE + 5):
                    assert (await tail.rest())[-1].event == "run_failed"
                    for run_id in runs:
                        events = await api.finished(run_id)
                        assert [event["type"] for event in events] == ["run_started", "run_failed"]
                        assert events[-1]["data"]["reason"] == "owner_lost"
        assert not [each for each in survivor.records() if each["level"] == "error"]


async def test_a_run_whose_slot_moves_when_its_owner_is_to_be_judged_is_judged_in_time(cluster):
    """Scripts get TRYAGAIN meanwhile: the reaper asks again with its next poll, not a lease later."""
    lease = 6.0
    with serving(cluster.url, owner_lease_seconds=lease) as survivor:
        with launched(cluster.url, prefix=survivor.prefix, owner_lease_seconds=lease) as lost:
            lost.wait_listening()
            async with open_api(lost) as api:
                home = cluster.owner(Keys(survivor.prefix).runs(owner_of(lost)))
                moved, stayed = await create_where(cluster, api, lambda found: found is not home, 2)
            async with open_api(survivor) as api:
                lost.process.kill()
                with trio.fail_after(lease + 5):
                    move = cluster.begin_move(moved, cluster.other(moved))
                    assert (await api.finished(stayed))[-1]["data"]["reason"] == "owner_lost"
                    await trio.sleep(1)
                    move.keys()
                    move.finish()
                    assert (await api.finished(moved))[-1]["data"]["reason"] == "owner_lost"


async def test_a_node_that_is_away_for_longer_than_the_lease_condemns_nobody(durable_cluster):
    """Neither the owner whose lease it has, although all other nodes answer the reapers, nor any other."""
    cluster, options = durable_cluster, {"owner_lease_seconds": LEASE}
    with serving(cluster.url, **options) as one, serving(cluster.url, prefix=one.prefix, **options) as two:
        keys = Keys(one.prefix)
        node = cluster.owner(keys.alive(owner_of(one)))
        if cluster.owner(keys.owners) is node:
            cluster.move(keys.owners, cluster.other(keys.owners))
        async with open_api(one) as api, open_api(two) as other:
            elsewhere = lambda found: found is not node  # noqa: E731
            runs = await create_where(cluster, api, elsewhere, 3) + await create_where(cluster, other, elsewhere, 3)
            for _ in range(AWAY):
                await trio.sleep(1.5 * LEASE)  # both reapers have seen all of it healthy for a lease: they could judge
                await trio.to_thread.run_sync(node.stop)
                await trio.sleep(1.5 * LEASE)
                await trio.to_thread.run_sync(node.start)
                await until(lambda: holds(node, keys.alive(owner_of(one))), "the lease is renewed")
            for run_id in runs:
                assert (await other.status(run_id))["status"] == "running"
                await api.cancel(run_id)
                assert (await other.finished(run_id))[-1]["type"] == "run_cancelled"
        for replica in (one, two):
            assert "run judged" not in replica.log


async def test_an_end_that_a_failover_has_lost_is_found_and_judged():
    """The run's shard loses it, and not the shard of its owner's set. The run ends twice in all, and not never."""
    with running_cluster(replicas=3) as cluster, serving(cluster.url, owner_lease_seconds=LEASE) as server:
        keys = Keys(server.prefix)
        home = cluster.owner(keys.runs(owner_of(server)))
        async with open_api(server) as api:
            (run_id,) = await create_where(cluster, api, lambda found: found is not home)
            primary = cluster.owner(run_id)
            replica = next(
                node for node in cluster.nodes[3:] if node.client.info("replication")["master_port"] == primary.port
            )
            assert primary.client.wait(1, 5000) == 1
            # What is written from here on the replica never gets.
            replica.server.process.send_signal(signal.SIGSTOP)
            try:
                primary.client.client_kill_filter(_type="replica")
                await api.cancel(run_id)
                assert (await api.finished(run_id))[-1]["type"] == "run_cancelled"
                await trio.sleep(LEASE / 3 + 0.2)  # the next beat knows of it, and may not let go of the run yet
                primary.server.process.kill()
            finally:
                replica.server.process.send_signal(signal.SIGCONT)
            await until(lambda: replica.client.info("replication")["role"] == "master", "a failover")
            with trio.fail_after(20):
                while (answer := await api.client.get(f"/runs/{run_id}")).status_code != 200:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                assert answer.json()["status"] in ("running", "failed"), "the end is lost"
                events = await api.finished(run_id)
            assert [event["type"] for event in events] == ["run_started", "run_failed"]
            assert events[-1]["data"]["reason"] == "owner_lost"
            gone = lambda: home.client.scard(keys.runs(owner_of(server))) == 0  # noqa: E731
            await until(gone, "and it is let go of in the end")
