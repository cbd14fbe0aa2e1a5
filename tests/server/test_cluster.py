"""Two replicas of the server on a Redis Cluster, while slots move."""

import time
from collections.abc import Iterator

import pytest
import trio
from tests.contracts.cluster_support import Cluster, running_cluster
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of
from tests.server.clients import open_api, open_stream, stream_of
from tests.server.harness import Server, serving

pytestmark = pytest.mark.full


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
