"""``serve --workers N``: processes behind one socket, replaced when they end, stopped together."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from tests.server.bodies import HANG, run_of, text_run
from tests.server.clients import open_api
from tests.server.endings import stored_run
from tests.server.harness import Server, StoreServer, launched, stored_records, until
from tests.server.test_metrics import read

pytestmark = pytest.mark.slow

WORKERS = 3
LEASE = 1.5
KILL_SECONDS = 3.0
"""After its own limit the parent ends what has not ended."""
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
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: gone(children), "the workers end")
    # Not from a stream: the worker that has it may not be the run's, and be gone before.
    assert stored_run(store.witness, server.prefix, run_id).ending == "failed: shutdown"


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


@pytest.mark.full
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
async def test_a_worker_killed_in_its_first_start_is_replaced_while_the_other_serves(store: StoreServer) -> None:
    with launched(store.url, arguments=("--workers", "2"), owner_lease_seconds=LEASE) as server:
        await until(lambda: len(pids(server)) == 2, "the second starts")
        youngest = max(psutil.Process(server.pid).children(), key=lambda child: child.create_time())
        youngest.kill()
        server.wait_listening()
        await all_listening(server)
        await one_run(server)
        assert server.stop() == 0
        (told,) = [each for each in server.records() if each["event"] == "worker ended, replacing it"]
        assert (told["worker"], told["status"]) == (2, 137)


async def test_a_hangup_of_the_parent_drains_all(store: StoreServer) -> None:
    with served(store, shutdown_grace_seconds=0.3) as server:
        await all_listening(server)
        children = pids(server)
        runs = {await fresh_create(server) for _ in range(3)}
        server.tell(signal.SIGHUP)
        assert await server.exit_status(within=8) == 0
        assert gone(children)
        assert {each.get("worker") for each in server.records() if each["event"] == "drained"} == {1, 2, 3}
    ended = {each["run_id"]: (each["status"], each["error"]) for each in stored_records(store, server.prefix)}
    assert ended == dict.fromkeys(runs, ("failed", "run cancelled during server shutdown"))


@pytest.mark.full
async def test_a_frozen_worker_does_not_keep_the_parent_from_ending(store: StoreServer) -> None:
    """It hears no SIGTERM, and its own watchdog is frozen with it. The others drain as ever."""
    with served(store, shutdown_limit_seconds=1, shutdown_grace_seconds=0) as server:
        await all_listening(server)
        children = pids(server)
        victim = min(children)
        os.kill(victim, signal.SIGSTOP)
        began = trio.current_time()
        server.tell(signal.SIGTERM)
        await until(lambda: server.log.count('"stopped"') == WORKERS - 1, "the others drain", 1 + KILL_SECONDS)
        assert await server.exit_status(within=1 + KILL_SECONDS + 2) == 75
        assert trio.current_time() - began >= 1 + KILL_SECONDS
        await until(lambda: gone(children), "nothing is left")
        (killed,) = [each for each in server.records() if each["event"] == "worker does not end, it is killed"]
        assert killed["level"] == "error"


def listened(server: Server) -> int:
    """How many workers have, so far."""
    return sum(each["event"] == "listening" and "owner" in each for each in server.records())


async def ended(server: Server, runs: int) -> None:
    """A run is counted a moment after its terminal event can be read."""
    with trio.fail_after(SLOW):
        async with open_api(server) as api:
            while (await read(api))["runs_ended_total", "succeeded"] < runs:
                pass
            assert (await read(api))["runs_ended_total", "succeeded"] == runs


def metric_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("dify-agent-metrics-*/*"))


@pytest.mark.full
async def test_metrics_of_a_crashed_worker_keep_its_counters_and_lose_its_gauges(
    store: StoreServer, tmp_path: Path
) -> None:
    with served(store, env={"TMPDIR": str(tmp_path)}, owner_lease_seconds=60) as server:
        await all_listening(server)
        files = metric_files(tmp_path)
        assert files == sorted(
            f"{kind}_{n}.db" for kind in ("counter", "gauge_livesum", "histogram") for n in (1, 2, 3)
        )
        for _ in range(6):
            await one_run(server)
        await ended(server, 6)
        run_id = await fresh_create(server)
        async with open_api(server) as api:
            await api.events_until(run_id, "run_started")
        owner = owner_of(server, store, run_id)
        (pid,) = [each["pid"] for each in server.records() if each.get("owner") == owner]
        async with open_api(server) as api:
            before = await read(api)
        assert (before["runs_ended_total", "succeeded"], before["runs_active", "running"]) == (6, 1)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.log.count("worker ended, replacing it") == 1, "its end is seen")
        for listening in (WORKERS, WORKERS + 1):  # without it, and with its successor
            await until(lambda n=listening: listened(server) >= n, "the successor listens")
            async with open_api(server) as api:
                found = await read(api)
            assert found["runs_active", "running"] == 0
            assert found["runs_ended_total", "succeeded"] == 6
            for name in ("create_run", "append"):
                key = ("store_operation_seconds_count", name, "ok")
                assert found[key] >= before[key] >= 7 - (name == "append")
        await one_run(server)
        await ended(server, 7)
        assert metric_files(tmp_path) == files
        assert server.stop() == 0


@pytest.mark.full
async def test_twenty_replacements_leave_no_more_files_and_lose_no_count(store: StoreServer, tmp_path: Path) -> None:
    runs = 0
    with served(store, env={"TMPDIR": str(tmp_path)}) as server:
        await all_listening(server)
        files = metric_files(tmp_path)
        for replaced in range(20):
            for _ in range(2):
                await one_run(server)
                runs += 1
            await ended(server, runs)
            oldest = min(psutil.Process(server.pid).children(), key=lambda child: child.create_time())
            oldest.kill()
            listening = WORKERS + replaced + 1
            await until(lambda n=listening: listened(server) >= n, "its successor listens", 30)
            async with open_api(server) as api:
                assert (await read(api))["runs_ended_total", "succeeded"] == runs
            assert metric_files(tmp_path) == files
        assert server.stop() == 0
    assert metric_files(tmp_path) == []


@pytest.mark.full
async def test_a_worker_that_ends_more_than_ten_times_within_a_minute_stops_all(store: StoreServer) -> None:
    """And whoever tells the parent to stop meanwhile cuts nothing off: the others drain already."""
    with served(store, shutdown_grace_seconds=2) as server:
        await all_listening(server)
        run_id = await fresh_create(server)
        owner = owner_of(server, store, run_id)
        (spared,) = [each["pid"] for each in server.records() if each.get("owner") == owner]
        victim = min(pids(server) - {spared})
        others = pids(server) - {victim}
        number = next(each["worker"] for each in server.records() if each.get("pid") == victim)
        for kills in range(11):
            os.kill(victim, signal.SIGKILL)
            await until(
                lambda n=kills: server.log.count("worker ended, replacing it") == n + 1 or n == 10, "it is seen"
            )
            if kills < 10:
                await until(lambda: len(pids(server)) == WORKERS, "it is replaced")
                (victim,) = pids(server) - others
        await until(lambda: server.log.count('"draining"') == WORKERS - 1, "the others drain")
        server.tell(signal.SIGTERM)
        assert await server.exit_status(within=20) == 70
        told = next(each for each in server.records() if each["event"].startswith("a worker ends again and again"))
        assert (told["level"], told["worker"]) == ("critical", number)
        assert "more than 10 times within 60 s" in told["problem"]
        assert gone(others)
    (record,) = stored_records(store, server.prefix)
    assert (record["status"], record["error"]) == ("failed", "run cancelled during server shutdown")
