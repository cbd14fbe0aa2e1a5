"""``serve --workers N``: processes behind one socket, replaced when they end, stopped together."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import trio
from tests.server.bodies import HANG, run_of, text_run
from tests.server.clients import open_api, open_stream
from tests.server.harness import Server, StoreServer, launched, until
from tests.server.test_metrics import read

pytestmark = pytest.mark.slow

WORKERS = 3
LEASE = 1.5
SLOW = 10.0
"""A reaper of a process that has just started watches for a lease first."""


@contextmanager
def served(store: StoreServer, **settings: Any) -> Iterator[Server]:
    options = {"owner_lease_seconds": LEASE, "arguments": ("--workers", str(WORKERS)), **settings}
    with launched(store.url, **options) as server:
        server.wait_listening()
        yield server


def pids(server: Server) -> set[int]:
    return {child.pid for child in psutil.Process(server.pid).children()}


def gone(numbers: set[int]) -> bool:
    return not any(psutil.pid_exists(number) for number in numbers)


async def all_listening(server: Server) -> None:
    await until(lambda: any("workers" in each for each in server.records()), "all workers listen")


async def test_workers_share_port_and_metrics_and_stop_together(store: StoreServer) -> None:
    with served(store) as server:
        await all_listening(server)
        children = pids(server)
        assert len(children) == WORKERS
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one_run, server)
        async with open_api(server) as api:
            found = await read(api)
            assert found["runs_ended_total", "succeeded"] == 30
            assert found["runs_active", "running"] == 0
        owners = store.witness.smembers(f"{server.prefix}:owners")
        assert len(owners) == WORKERS
        assert server.stop() == 0
        assert gone(children)
        assert len([each for each in server.records() if each["event"] == "drained"]) == WORKERS
        assert {each.get("worker") for each in server.records() if each["event"] == "drained"} == {1, 2, 3}


async def one_run(server: Server) -> None:
    async with open_api(server) as api:
        assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


async def test_a_crashed_worker_is_replaced_and_its_runs_are_judged(store: StoreServer) -> None:
    with served(store) as server:
        await all_listening(server)
        runs = [await fresh_create(server) for _ in range(6)]
        owners = {run_id: owner_of(server, store, run_id) for run_id in runs}
        victim = owners[runs[0]]
        (pid,) = [each["pid"] for each in server.records() if each.get("owner") == victim]
        lost = {run_id for run_id, owner in owners.items() if owner == victim}
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.log.count("run judged") >= len(lost), "the runs are judged", LEASE + 5 + SLOW)
        async with open_api(server) as api:
            for run_id in runs:
                if run_id not in lost:
                    assert (await api.status(run_id))["status"] == "running"
                    await api.cancel(run_id)
                data = (await api.finished(run_id))[-1]["data"]
                assert data["reason"] == ("owner_lost" if run_id in lost else None)
        await until(lambda: len(pids(server)) == WORKERS and pid not in pids(server), "the worker is replaced")
        assert server.log.count("worker ended, replacing it") == 1
        assert server.stop() == 0


def owner_of(server: Server, store: StoreServer, run_id: str) -> str:
    owner = store.witness.get(f"{server.prefix}:runs:{{{run_id}}}:owner")
    assert isinstance(owner, bytes)
    return owner.decode().partition(":")[2]


async def fresh_create(server: Server) -> str:
    """On a connection of its own: which worker takes it is the kernel's choice."""
    async with open_api(server) as api:
        return await api.create(run_of(HANG))


@pytest.mark.full
async def test_no_connection_is_refused_while_workers_are_replaced(store: StoreServer) -> None:
    with served(store) as server:
        await all_listening(server)
        for _ in range(3):
            victim = sorted(pids(server))[-1]
            os.kill(victim, signal.SIGKILL)
            listening = server.log.count('"listening"')
            for _ in range(20):
                await one_health_check(server)
            await until(lambda before=listening: server.log.count('"listening"') > before, "the new one listens")
        assert server.stop() == 0


async def one_health_check(server: Server) -> None:
    """A connection that a killed worker had taken is reset, which is not refused: then once more."""
    for _ in range(3):
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with stream:
            try:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
                if (await stream.receive_some(100)).startswith(b"HTTP/1.1 200"):
                    return
            except trio.BrokenResourceError:
                continue
    raise AssertionError("no answer")


async def test_workers_drain_when_their_parent_is_killed(store: StoreServer) -> None:
    with served(store, shutdown_grace_seconds=0) as server:
        await all_listening(server)
        children = pids(server)
        async with open_api(server) as api:
            run_id = await api.create(run_of(HANG))
            await api.events_until(run_id, "run_started")
        async with open_stream(server, run_id) as stream:
            os.kill(server.pid, signal.SIGKILL)
            frames = await stream.rest()
        assert frames[-1].json["data"]["reason"] == "shutdown"
        await until(lambda: gone(children), "the workers end")


@pytest.mark.full
async def test_a_second_signal_ends_all_at_once(store: StoreServer) -> None:
    with served(store, shutdown_grace_seconds=60) as server:
        await all_listening(server)
        children = pids(server)
        await fresh_create(server)
        server.tell(signal.SIGTERM)
        await until(lambda: server.log.count('"draining"') == WORKERS, "all drain")
        server.tell(signal.SIGTERM)
        assert await server.exit_status() == 143
        assert gone(children)


@pytest.mark.parametrize(
    ("url", "settings", "event"),
    [(None, {"run_retention_seconds": -1}, "invalid setting"), ("redis://127.0.0.1:1/0", {}, "cannot serve")],
)
async def test_what_keeps_a_worker_from_starting_is_told_once(
    store: StoreServer, url: str | None, settings: dict[str, Any], event: str
) -> None:
    with launched(url or store.url, arguments=("--workers", "3"), **settings) as server:
        assert await server.exit_status() == 1
        assert [each["event"] for each in server.records()].count(event) == 1


@pytest.mark.full
async def test_metrics_of_a_dead_worker_keep_their_counters(store: StoreServer) -> None:
    with served(store) as server:
        await all_listening(server)
        for _ in range(6):
            await one_run(server)
        os.kill(sorted(pids(server))[0], signal.SIGKILL)
        await until(lambda: len(pids(server)) == WORKERS, "replaced")
        async with open_api(server) as api:
            assert (await read(api))["runs_ended_total", "succeeded"] == 6
        assert server.stop() == 0
