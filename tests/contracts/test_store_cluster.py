"""What only a cluster does: slots that move, nodes that die, stop or fail over. Nothing is lost, nothing doubled."""

import signal
from contextlib import suppress

import pytest
import trio
from redis.crc import key_slot
from tests.contracts.cluster_support import answered, running_cluster
from tests.contracts.store_support import (
    MS,
    OWNER,
    batch,
    event,
    events,
    intent,
    run_id,
    running,
    terminal,
    texts,
    whole_log,
)

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store import cluster_streams
from dify_agent.store.base import Owner
from dify_agent.store.redis import open_redis_store

pytestmark = pytest.mark.full

MOVES = 4
STEP_SECONDS = 0.05


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as started:
        yield started


@pytest.fixture
async def store(cluster):
    async with open_redis_store(cluster.url, prefix=run_id(), command_timeout=2, max_connections=10) as opened:
        yield opened


@pytest.fixture(params=["by keys", "atomically"])
def move(cluster, request):
    """Moves the slot of a key to another node and gives others time to meet every stage of it."""

    async def by_keys(key):
        move = cluster.begin_move(key, cluster.other(key))
        await trio.sleep(STEP_SECONDS)
        move.keys()
        await trio.sleep(STEP_SECONDS)
        move.finish()
        await trio.sleep(STEP_SECONDS)

    async def atomically(key):
        """Valkey 9: no redirection by ASK; the source says MOVED from one moment to the next."""
        target, slot = cluster.other(key), key_slot(key.encode())
        cluster.owner(key).client.execute_command(
            "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id
        )
        with trio.fail_after(10):
            while cluster.settled_owner(key) is not target:  # noqa: ASYNC110 - another process's state
                await trio.sleep(0.01)

    return by_keys if request.param == "by keys" else atomically


async def append_all(store, run, first, last):
    """Append one event after the other as the publisher does: what is unavailable is tried again unchanged."""
    for n in range(first, last + 1):
        item = batch(run, EventId(MS, n - 1) if n > 1 else START, event(n))
        with trio.fail_after(20):
            while (outcome := (await store.append([item]))[0]) != "appended":
                assert isinstance(outcome, StoreUnavailableError), outcome
                await trio.sleep(0.01)


async def follow(store, runs, last, seen):
    """Read tails as the hub does until each of the runs has its last event."""
    positions, doorbell = dict.fromkeys(runs, START), "0-0"
    while any(positions[run].n < last for run in runs):
        with suppress(StoreUnavailableError):
            read = await store.read_tails(OWNER, positions, doorbell, 10)
            doorbell = read.doorbell
            for run, news in read.events.items():
                seen[run] += news
                positions[run] = news[-1].id


async def test_a_slot_moves_during_appends(cluster, store, move):
    run, other = run_id(), run_id()
    for each in (run, other):
        await store.create_run(running(each), OWNER)
    done, grown = trio.Event(), trio.lowlevel.ParkingLot()
    written = 0

    async def append_until_done():
        nonlocal written
        while not done.is_set():
            await append_all(store, run, written + 1, written + 1)
            written += 1
            grown.unpark_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_until_done)
        for n in range(MOVES):
            await move(run)
            with trio.fail_after(5):
                while written < 5 * (n + 1):
                    await grown.park()
        done.set()
    assert texts(await whole_log(store, run)) == texts(events(1, written))
    assert (await store.finalize(terminal(run, "succeeded"))).applied


async def test_a_moving_slot_holds_up_no_other_run(cluster, store):
    """Scripts get TRYAGAIN until all keys of the run have moved."""
    run, other = cluster.run_ids(cluster.primaries[0], 1) + cluster.run_ids(cluster.primaries[1], 1)
    for each in (run, other):
        await store.create_run(running(each), OWNER)
    moving = cluster.begin_move(run, cluster.primaries[2])
    for n in range(1, 4):
        top = EventId(MS, n - 1) if n > 1 else START
        with trio.fail_after(1):
            outcomes = await store.append([batch(run, START, event(1)), batch(other, top, event(n))])
        assert isinstance(outcomes[0], StoreUnavailableError)
        assert outcomes[1] == "appended"
    moving.keys()
    moving.finish()
    assert await store.append([batch(run, START, event(1))]) == ["appended"]


async def test_keys_that_have_moved_ahead_of_their_slot_are_asked_for_where_they_are(cluster, store):
    """ASK: with all keys of a run on their way, even scripts work, ones that the other node does not know included."""
    run, owner = run_id(), Owner(run_id(), 1)
    await store.create_run(running(run), OWNER)
    await append_all(store, run, 1, 2)
    await store.request_cancel(run, intent())
    await store.ring(owner.id, "before")
    moves = [cluster.begin_move(key, cluster.other(key)) for key in (run, owner.id)]
    for move in moves:
        move.keys()
        move.target.client.script_flush()
    for n in (3, 4):  # unknown there, then known
        assert await store.append([batch(run, EventId(MS, n - 1), event(n))]) == ["appended"]
    assert (await store.read_record(run)).status == "running"
    await store.ring(owner.id, "meanwhile")
    assert [name for _, name in await store.read_inbox(owner, "0-0", 0)] == ["before", "meanwhile"]
    read = await store.read_tails(OWNER, {run: START}, "0-0", 1)
    assert texts(read.events[run]) == texts(events(1, 4))
    for move in moves:
        move.finish()
    assert texts(await whole_log(store, run)) == texts(events(1, 4))


async def test_a_slot_moves_during_a_blocking_inbox_read(cluster, store, move):
    owner = Owner(run_id(), 1)
    heard = []

    async def listen():
        position = "0-0"
        while len(heard) < 3 * MOVES:
            with suppress(StoreUnavailableError):
                entries = await store.read_inbox(owner, position, 30)
                heard.extend(run for _, run in entries)
                position = entries[-1][0] if entries else position

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            for number in range(MOVES):
                await store.ring(owner.id, f"{number} before")
                async with trio.open_nursery() as moving:
                    moving.start_soon(move, owner.id)
                    await trio.sleep(1.5 * STEP_SECONDS)
                    await store.ring(owner.id, f"{number} meanwhile")
                await store.ring(owner.id, f"{number} after")
    assert heard == [f"{number} {when}" for number in range(MOVES) for when in ("before", "meanwhile", "after")]


async def test_slots_move_during_a_blocking_read_of_tails(cluster, store, move):
    runs = [run for node in cluster.primaries for run in cluster.run_ids(node, 3)]
    seen = dict.fromkeys(runs, ())
    for run in runs:
        await store.create_run(running(run), OWNER)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, store, runs, 40, seen)
            for run in runs:
                nursery.start_soon(append_all, store, run, 1, 40)
            for run in runs[:: len(runs) // MOVES]:
                await move(run)
    assert {run: texts(log) for run, log in seen.items()} == dict.fromkeys(runs, texts(events(1, 40)))


async def test_a_followed_stream_that_moves_before_it_exists_is_found(cluster, store, monkeypatch):
    """No notice tells that nothing has moved; the safety net does."""
    monkeypatch.setattr(cluster_streams, "RECHECK_SECONDS", 0.5)
    run, seen = run_id(), {}
    seen[run] = ()
    await store.create_run(running(run), OWNER)
    async with open_redis_store(cluster.url, prefix=store._keys.prefix) as writer:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, store, [run], 2, seen)
                await trio.sleep(STEP_SECONDS)
                cluster.move(run, cluster.other(run))
                await append_all(writer, run, 1, 2)
    assert texts(seen[run]) == texts(events(1, 2))


async def test_the_server_tells_of_news(cluster, store):
    """Sooner than the safety net would find them, and again after each."""
    run, seen = run_id(), {}
    seen[run] = ()
    await store.create_run(running(run), OWNER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, store, [run], 3, seen)
        for n in range(1, 4):
            await trio.sleep(3 * STEP_SECONDS)  # the stream has been read by now
            await append_all(store, run, n, n)
            with trio.fail_after(cluster_streams.RECHECK_SECONDS / 3):
                while len(seen[run]) < n:  # noqa: ASYNC110
                    await trio.sleep(0.005)


async def test_followed_runs_cost_one_connection_a_node(cluster, store):
    runs = [run for node in cluster.primaries for run in cluster.run_ids(node, 30)]
    seen = dict.fromkeys(runs, ())
    for run in runs:
        await store.create_run(running(run), OWNER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, store, runs, 3, seen)
        for run in runs:
            nursery.start_soon(append_all, store, run, 1, 3)
    assert {run: texts(log) for run, log in seen.items()} == dict.fromkeys(runs, texts(events(1, 3)))
    for node in cluster.primaries:
        clients = [client for client in node.client.client_list() if client.get("lib-name") == "coredis"]
        assert 1 <= len(clients) <= 10
        assert sum("t" in client["flags"] for client in clients) == 1, "one that is tracked for"


async def test_where_tracking_is_not_allowed_tails_are_polled(cluster):
    for node in cluster.primaries:
        node.client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-client|tracking")
    run, seen = run_id(), {}
    seen[run] = ()
    login = cluster.url.replace("://", "://app:secret@")
    async with open_redis_store(login, prefix=run) as store:
        await store.create_run(running(run), OWNER)
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, store, [run], 5, seen)
                await append_all(store, run, 1, 5)
    assert texts(seen[run]) == texts(events(1, 5))
    async with open_redis_store(login.replace("secret", "wrong"), prefix=run) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.read_record(run)
    assert "wrong" not in caught.value.cause.replace("WRONGPASS", "")


async def test_a_cancelled_read_of_tails_breaks_no_connection_and_loses_nothing(cluster, store):
    runs = [cluster.run_ids(node, 1)[0] for node in cluster.primaries]
    seen = dict.fromkeys(runs, ())
    for run in runs:
        await store.create_run(running(run), OWNER)
    before = None
    for n in range(1, 6):
        for run in runs:
            await append_all(store, run, n, n)
        for _ in range(5):
            with trio.move_on_after(0.002):
                await store.read_tails(OWNER, dict.fromkeys(runs, START), "0-0", 10)
        if n > 1:
            tracked = {
                (node.port, client["id"])
                for node in cluster.primaries
                for client in node.client.client_list()
                if "t" in client["flags"]
            }
            assert before in (None, tracked)
            before = tracked
    with trio.fail_after(5):
        await follow(store, runs, 5, seen)
    assert {run: texts(log) for run, log in seen.items()} == dict.fromkeys(runs, texts(events(1, 5)))


# Nodes. Each test has a cluster of its own.


async def both_appended(store, cluster):
    """A store's two runs on the first and on the second node, two events in each."""
    runs = [cluster.run_ids(node, 1)[0] for node in cluster.primaries[:2]]
    for run in runs:
        await store.create_run(running(run), OWNER)
        await append_all(store, run, 1, 2)
    return runs


async def test_a_node_dies_and_comes_back():
    with running_cluster(appendonly="yes", appendfsync="always") as cluster:
        async with open_redis_store(cluster.url, command_timeout=2) as store:
            lost, kept = await both_appended(store, cluster)
            (new,) = cluster.run_ids(cluster.primaries[1], 1)
            cluster.primaries[0].stop()
            for n in range(3, 8):
                with trio.fail_after(1):
                    outcomes = await store.append(
                        [batch(lost, EventId(MS, 2), event(3)), batch(kept, EventId(MS, n - 1), event(n))]
                    )
                assert isinstance(outcomes[0], StoreUnavailableError)
                assert outcomes[1] == "appended"
            with pytest.raises(StoreUnavailableError):
                await store.read_record(lost)
            await store.ping()
            # Sweeps and reapers go on with what is there.
            assert (await store.look([lost, kept, new])).keys() == {kept, new}
            assert (await store.look([new]))[new] is None
            with pytest.raises(StoreUnavailableError):
                await store.look([lost])
            # A run that its owner's set cannot name is not created.
            with pytest.raises(StoreUnavailableError):
                await store.create_run(running(new), Owner(lost, 1))
            assert await store.read_record(new) is None
            # The tails of the others go on as well.
            seen = {kept: ()}
            with trio.fail_after(5):
                await follow(store, [kept], 7, seen)
                read = await store.read_tails(OWNER, {lost: START, kept: START}, "0-0", 5)
            assert texts(read.events[kept]) == texts(seen[kept]) == texts(events(1, 7))
            cluster.primaries[0].start()
            cluster.wait_ok()
            with trio.fail_after(5):
                await answered(store, lost)
                await append_all(store, lost, 3, 5)
                assert texts(await whole_log(store, lost)) == texts(events(1, 5))
                seen = {lost: ()}
                await follow(store, [lost], 5, seen)
            assert texts(seen[lost]) == texts(events(1, 5))


async def test_a_node_that_stops_answering_holds_the_others_up_once():
    with running_cluster(cluster_node_timeout="15000") as cluster:
        async with open_redis_store(cluster.url, command_timeout=0.5) as store:
            stuck, kept = await both_appended(store, cluster)
            process = cluster.primaries[0].server.process
            process.send_signal(signal.SIGSTOP)
            try:
                took = []
                for n in range(3, 8):
                    began = trio.current_time()
                    outcomes = await store.append(
                        [batch(stuck, EventId(MS, 2), event(3)), batch(kept, EventId(MS, n - 1), event(n))]
                    )
                    took.append(trio.current_time() - began)
                    assert isinstance(outcomes[0], StoreUnavailableError)
                    assert outcomes[1] == "appended"
            finally:
                process.send_signal(signal.SIGCONT)
            assert took[0] >= 0.4
            assert max(took[1:]) < 0.3
            with trio.fail_after(5):
                await answered(store, stuck)
                await append_all(store, stuck, 3, 4)
            assert texts(await whole_log(store, stuck)) == texts(events(1, 4))


async def test_leases_and_calls_in_flight_when_a_node_stops_answering():
    with running_cluster(cluster_node_timeout="15000") as cluster:
        async with open_redis_store(cluster.url, command_timeout=1) as store:
            stuck, kept = await both_appended(store, cluster)
            # The list of owners is on another node than the one that stops.
            stopped = cluster.owner(stuck)
            if cluster.owner("dify-agent:owners") is stopped:
                stopped, kept = cluster.owner(kept), stuck
            away, there = (cluster.run_ids(node, 1)[0] for node in (stopped, cluster.owner("dify-agent:owners")))
            for owner in (away, there):
                await store.heartbeat(Owner(owner, 1), 60)
            caught = []
            stopped.server.process.send_signal(signal.SIGSTOP)
            try:
                with trio.move_on_after(0.3) as scope:
                    try:
                        await store.append([batch(run, EventId(MS, 2), event(3)) for run in (away, there, kept)])
                    except BaseException as error:
                        caught.append(type(error))
                        raise
                assert scope.cancelled_caught
                assert caught == [trio.Cancelled], "not a group"
                assert await store.read_leases() == {away: None, there: True}
                with trio.fail_after(0.5):
                    await store.ping()
            finally:
                stopped.server.process.send_signal(signal.SIGCONT)
            with trio.fail_after(5):
                await answered(store, away)
                assert await store.read_leases() == {away: True, there: True}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["of a crashed node", "of a silent node"])
async def test_a_replica_takes_over(how):
    with running_cluster(replicas=1) as cluster:
        primary, replica = cluster.primaries[0], cluster.nodes[-1]
        async with open_redis_store(cluster.url, command_timeout=2) as store:
            run, kept = await both_appended(store, cluster)
            assert primary.client.wait(1, 5000) == 1
            primary.server.process.send_signal(how)
            seen = {run: (), kept: ()}
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow, store, [run, kept], 5, seen)
                    nursery.start_soon(append_all, store, kept, 3, 5)
                    await append_all(store, run, 3, 5)
            assert {each: texts(log) for each, log in seen.items()} == dict.fromkeys((run, kept), texts(events(1, 5)))
            assert replica.client.exists(f"dify-agent:runs:{{{run}}}:record")


async def test_a_server_without_cluster_support_is_named_so():
    with running_cluster(primaries=1, cluster_enabled="no") as cluster:
        async with open_redis_store(cluster.url) as store:
            with pytest.raises(StoreUnavailableError, match="unavailable") as caught:
                await store.ping()
    assert "cluster support disabled" in caught.value.cause
