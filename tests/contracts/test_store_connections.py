"""Whose connections they are: lanes, time limits that keep what was answered, and a life as long as the body's."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import pytest
import trio
from tests.contracts.store_support import (
    MS,
    ONE_SERVER,
    OWNER,
    batch,
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
from dify_agent.store.connections import Connections, lasting_nursery, server_dial
from dify_agent.store.deployments import open_executor
from dify_agent.store.executor import LEAST_CONNECTIONS, SERVICE_CONNECTIONS, Command, Lane
from dify_agent.store.keys import Keys
from dify_agent.store.redis import RedisRunStore, open_redis_store
from dify_agent.store.urls import parse_store_url

LIMIT = LEAST_CONNECTIONS + 1

_REQUEST: ContextVar[str] = ContextVar("request")


async def all_gone(store_server, ids):
    with trio.fail_after(2):
        while ids:
            await trio.lowlevel.checkpoint()
            ids = ids & store_server.store_clients()


# Time limits.


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((True, 2, 2), id="loaded"),
        pytest.param((False, 4 + 2, 2), id="flushed"),
        pytest.param((False, 2, 0), id="before the source was sent"),
    ],
)
async def test_what_was_answered_in_time_stands(store, witness, store_server, prefix, case):
    loaded, replies, known = case
    async with (
        store_server.proxy() as proxy,
        open_redis_store(proxy.url, prefix=prefix, retention_seconds=600, command_timeout=0.2) as far,
    ):
        runs = store_server.run_ids(4)
        for run in runs:
            await store.create_run(running(run), OWNER)
        assert await far.append([batch(run, START, *events(1, 1)) for run in runs]) == ["appended"] * 4
        batches = [batch(run, EventId(MS, 1), *events(2, 3)) for run in runs]
        if not loaded:
            witness.script_flush()
        proxy.arm(replies, cut=False)
        outcomes = await far.append(batches)
        assert outcomes[:known] == ["appended"] * known
        assert [isinstance(outcome, StoreUnavailableError) for outcome in outcomes[known:]] == [True] * (4 - known)
        assert all(outcome.sent for outcome in outcomes[known:])
        proxy.stall = False
        await store_server.recovered(far)
        assert await far.append(batches) == ["appended"] * 4
        for run in runs:
            assert texts(await whole_log(store, run)) == texts(events(1, 3))


async def test_without_a_connection_nothing_was_sent(store_server, prefix):
    async with open_redis_store(store_server.nowhere, prefix=prefix) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
        assert not caught.value.sent
        (outcome,) = await store.append([batch(run_id(), START, *events(1, 1))])
        assert not outcome.sent


async def test_without_an_answer_it_is_unknown_and_in_the_queue_nothing_was_sent(store_server, prefix):
    url = parse_store_url(store_server.url)
    outcomes = []

    async def call(connections):
        try:
            outcomes.extend(await connections.execute([Command(b"BLPOP", (f"{prefix}:none", 5))]))
        except StoreUnavailableError as error:
            outcomes.append(error)

    async with open_executor(url, limit=LIMIT, timeout=0.1) as connections, trio.open_nursery() as nursery:
        for _ in range(4):  # two have a connection, two wait for one
            nursery.start_soon(call, connections)
    assert sorted((outcome.sent, outcome.cause) for outcome in outcomes) == [
        (False, "no connection within 0.1 s"),
        (False, "no connection within 0.1 s"),
        (True, "no answer within 0.1 s"),
        (True, "no answer within 0.1 s"),
    ]


@ONE_SERVER
async def test_a_connection_that_was_opened_while_all_were_broken_is_not_used(store_server):
    """Where it leads was asked before: after a failover, to the old primary."""
    url, dialled = parse_store_url(store_server.url), 0

    async def dial():
        nonlocal dialled
        dialled += 1
        if dialled == 1:
            connections.discard(lent=True)
        return await server_dial(url, None, 5, None)()

    async with lasting_nursery() as nursery:
        connections = Connections(nursery, dial, limits={Lane.REQUESTS: 1}, timeout=5)
        for _ in range(3):
            assert await connections.execute([Command(b"PING")]) == [b"PONG"]
    assert dialled == 2


# Lanes.


@asynccontextmanager
async def crowded(store_server, prefix, lane):
    """A store with a hundred callers in one lane, each of whom the server keeps waiting."""
    wait = [Command(b"BLPOP", (f"{prefix}:none:{{{store_server.run_ids(1)[0]}}}", 30))]
    async with open_executor(parse_store_url(store_server.url), limit=LIMIT, timeout=5) as connections:
        store = RedisRunStore(connections, Keys(prefix), retention_seconds=600, max_length=100)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(lambda: connections.execute(wait, lane=lane, block_seconds=30))
            await trio.testing.wait_all_tasks_blocked(0.01)
            yield store
            nursery.cancel_scope.cancel(reason="test over")


async def test_a_crowd_of_requests_holds_up_neither_services_nor_runs(store_server, prefix):
    run, other = store_server.run_ids(2)
    async with crowded(store_server, prefix, Lane.REQUESTS) as store:
        with trio.move_on_after(0.05) as asked:
            await store.read_record(run)
        assert asked.cancelled_caught, "there is no crowd"
        with trio.fail_after(2):
            await store.create_run(running(run), OWNER)
            await store.create_run(running(other), OWNER)
            await store.heartbeat(OWNER, 30)
            await store.touch_runs(OWNER, [run, other])
            assert await store.append([batch(run, START, *events(1, 2))]) == ["appended"]
            assert await store.read_intents([run, other]) == {}
            await store.ring_doorbell(OWNER)
            assert (await store.read_tails(OWNER, {run: START}, "0-0", 4)).events.keys() == {run}
            assert await store.read_inbox(OWNER, "0-0", 0.001) == []
            assert (await store.finalize(terminal(run, "failed"))).applied
            assert not (await store.finalize_cancel(terminal(other, "cancelled"))).applied
            await store.release_runs(OWNER.id, [run, other])


async def test_a_crowd_of_runs_does_not_hold_up_the_services(store_server, prefix):
    async with crowded(store_server, prefix, Lane.RUNS) as store:
        with trio.move_on_after(0.05) as asked:
            await store.create_run(running(*store_server.run_ids(1)), OWNER)
        assert asked.cancelled_caught, "there is no crowd"
        with trio.fail_after(2):
            await store.heartbeat(OWNER, 30)
            assert await store.append([batch(run_id(), START, *events(1, 1))]) == ["missing"]
            await store.ping()


async def test_every_service_has_a_connection_although_two_wait(store_server, prefix):
    """The inbox and the hub block on theirs; the other services never wait for one, nor for each other."""
    async with open_redis_store(store_server.url, prefix=prefix, max_connections=LIMIT) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(SERVICE_CONNECTIONS - 1):
                nursery.start_soon(store.read_inbox, OWNER, "0-0", 30)
            await trio.testing.wait_all_tasks_blocked(0.01)
            with trio.fail_after(1):
                await store.heartbeat(OWNER, 30)
            nursery.cancel_scope.cancel(reason="test over")


async def test_a_store_that_has_stopped_is_still_sent_the_heartbeat(store_server, witness, prefix):
    """Each of the other services has a call in flight that nobody answers, and none has the heartbeat's connection."""
    run, lease = store_server.run_ids(1)[0], f"{prefix}:owners:{{{OWNER.id}}}:alive"
    async with (
        store_server.proxy() as proxy,
        open_redis_store(proxy.url, prefix=prefix, max_connections=LIMIT) as store,
        trio.open_nursery() as nursery,
    ):
        await store.create_run(running(run), OWNER)
        async with trio.open_nursery() as opening:  # as many connections as there are services
            for _ in range(SERVICE_CONNECTIONS):
                opening.start_soon(store.read_inbox, OWNER, "0-0", 0.5)
        proxy.stall = True
        for call in (
            partial(store.append, [batch(run, START, *events(1, 1))]),  # publisher
            partial(store.read_inbox, OWNER, "0-0", 30),  # cancel inbox
            partial(store.look, [run]),  # cancel sweep
            partial(store.read_tails, OWNER, {run: START}, "0-0", 30),  # tail hub
            partial(store.ring_doorbell, OWNER),  # tail bell
            partial(store.read_owned, OWNER.id),  # reaper
        ):
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(store.heartbeat, OWNER, 30)
        with trio.fail_after(2):
            while not witness.exists(lease):  # noqa: ASYNC110 - another process's state
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel(reason="test over")


async def test_a_limit_that_leaves_none_for_requests_is_refused():
    with pytest.raises(ValueError, match="at least 10"):
        async with open_redis_store("redis://localhost", max_connections=9):
            pass


# Life.


async def test_cancelled_from_outside_it_works_until_the_body_has_ended(store_server, prefix, witness):
    run = run_id()
    done = False
    with trio.CancelScope() as outer:
        async with open_redis_store(store_server.url, prefix=prefix) as store:
            await store.create_run(running(run), OWNER)
            before = store_server.store_clients()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.read_inbox, OWNER, "0-0", 30)
                await trio.testing.wait_all_tasks_blocked(0.01)
                outer.cancel(reason="test")
                with trio.move_on_after(5, shield=True):
                    assert await store.append([batch(run, START, *events(1, 2))]) == ["appended"]
                    for client in before:
                        witness.client_kill_filter(_id=client)
                    await all_gone(store_server, before)
                    # On connections that are opened only now.
                    assert await store.append([batch(run, EventId(MS, 2), *events(3, 3))]) == ["appended"]
                    assert (await store.request_cancel(run, intent())).status == "running"
                    assert (await store.finalize_cancel(terminal(run, "cancelled"))).applied
                    after = store_server.store_clients()
                    done = True
    assert done
    assert outer.cancelled_caught
    assert after
    await all_gone(store_server, after)


def tasks_under(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks_under(child)


async def test_connections_keep_nothing_of_the_request_that_opened_them(store_server, prefix):
    root = trio.lowlevel.current_root_task()
    async with open_redis_store(store_server.url, prefix=prefix) as store:
        before = set(tasks_under(root))
        _REQUEST.set("body and token")
        await store.create_run(running(run_id()), OWNER)
        await store.ping()
        opened = set(tasks_under(root)) - before
        assert opened, "no connection was opened for the request"
        assert {task.name for task in opened if _REQUEST in task.context} == set()


async def test_callers_without_a_shield_are_cancelled(store_server, prefix):
    with trio.fail_after(2), trio.CancelScope() as outer:
        async with open_redis_store(store_server.url, prefix=prefix) as store, trio.open_nursery() as nursery:
            nursery.start_soon(store.read_inbox, OWNER, "0-0", 30)
            await store.ping()
            outer.cancel(reason="test")
    assert outer.cancelled_caught


async def test_a_body_that_fails_leaves_nothing_behind(store_server, prefix):
    with trio.fail_after(2), pytest.RaisesGroup(ZeroDivisionError):
        async with open_redis_store(store_server.url, prefix=prefix) as store:
            await store.ping()
            opened = store_server.store_clients()
            raise ZeroDivisionError
    assert opened
    await all_gone(store_server, opened)


async def test_opening_in_a_cancelled_scope_is_cancelled():
    entered = False
    with trio.fail_after(2), trio.CancelScope() as scope:
        scope.cancel(reason="test")
        async with open_redis_store("redis://localhost"):
            entered = True
    assert scope.cancelled_caught
    assert not entered
