"""A replica inside the test's own process: to look at its tasks, and to stop time at one place of a create."""

import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run
from tests.server.clients import Api, open_stream
from tests.server.harness import StoreServer, settled, stored_records, until

from dify_agent.actors.run_actor import RunActor
from dify_agent.http.server import Address
from dify_agent.main import ExitStatus, Listen, serve
from dify_agent.settings import ServerSettings
from dify_agent.store.redis import RedisRunStore

pytestmark = pytest.mark.slow


@dataclass
class Inside:
    """A replica in this process: enough of a server for the clients."""

    port: int
    prefix: str
    stop: trio.Event
    status: ExitStatus | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def inside(store: StoreServer, prefix: str, **settings: Any) -> AsyncIterator[Inside]:
    values = {"drain_listen_seconds": 0, "shutdown_grace_seconds": 0, "scripted_layers": True, **settings}
    configured = ServerSettings(redis_url=store.url, redis_prefix=prefix, _env_file=None, **values)
    replica = Inside(0, prefix, trio.Event())

    async def run(*, task_status: trio.TaskStatus[list[Address]]) -> None:
        listen = Listen(host="127.0.0.1", port=0, on_listening=task_status.started, stop=replica.stop)
        replica.status = await serve(configured, listen)

    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(run)
        replica.port = addresses[0][1]
        yield replica
        replica.stop.set()
    assert replica.status is ExitStatus.DRAINED


@asynccontextmanager
async def client_of(replica: Inside) -> AsyncIterator[Api]:
    async with httpx2.AsyncClient(base_url=replica.url, timeout=20) as client:
        yield Api(client)


STORE_CONNECTION = "dify_agent.store.connections.Connections._serve"
PER_STORE_CONNECTION = (STORE_CONNECTION, "coredis.connection.")


def tasks() -> Counter[str]:
    """Every task of this event loop by name, but for the pool of store connections, which is as big as it ever was."""
    return Counter(name for name in every_task() if not name.startswith(PER_STORE_CONNECTION))


def store_connections() -> int:
    return sum(name == STORE_CONNECTION for name in every_task())


def every_task() -> Iterator[str]:
    """Every task of this event loop by name, its helpers' included."""

    def walk(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
        yield task
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from walk(child)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return (task.name for task in walk(root))


def descriptors() -> int:
    """Open descriptors of this process, without those of the store's connections."""
    return len(os.listdir("/proc/self/fd")) - store_connections()


def live_actors() -> int:
    gc.collect()
    return sum(isinstance(each, RunActor) for each in gc.get_objects())


async def every_ending(api: Api, replica: Inside, rounds: int, at_once: int) -> Counter[str]:
    """Runs of every ending; how they ended."""
    ended: Counter[str] = Counter()
    limit = trio.CapacityLimiter(at_once)

    async def one(kind: str, body: dict[str, Any]) -> None:
        async with limit:
            run_id = await api.create(body)
            if kind == "cancel":
                await api.cancel(run_id)
            if kind == "leave":
                async with open_stream(replica, run_id) as stream:
                    await stream.frame()
                with trio.move_on_after(0.01):
                    await api.page(run_id, after="9999999999999-1", wait=10)
            ended[(await api.finished(run_id))[-1]["type"]] += 1

    bodies = {
        "success": text_run(),
        "tool": tool_run(result=1),
        "failure": run_of({"error": "no"}),
        "tool failure": tool_run(error="no"),
        "cancel": run_of(STREAM_THEN_HANG),
        "deadline": tool_run(hang=True),
        "leave": run_of({"chunks": 5, "delay_ms": 10}),
        "unknown layer": {"composition": {"layers": [{"name": "x", "type": "no.such"}]}},
    }
    async with trio.open_nursery() as nursery:
        for _ in range(rounds):
            for kind, body in bodies.items():
                nursery.start_soon(one, kind, body)
    return ended


async def test_after_runs_of_all_endings_no_task_is_left(store: StoreServer):
    async with inside(store, "inside-tasks", run_timeout_seconds=1.5) as replica:
        async with client_of(replica) as api:
            await every_ending(api, replica, 3, at_once=24)
        before = await settled(tasks)
        open_before, pool_before = descriptors(), store_connections()
        async with client_of(replica) as api:
            ended = await every_ending(api, replica, 25, at_once=8)
        assert ended == {"run_succeeded": 75, "run_failed": 100, "run_cancelled": 25}
        await until(lambda: tasks() == before, f"the tasks are again {before}")
        await until(lambda: descriptors() <= open_before, f"at most {open_before} descriptors are open")
        assert store_connections() <= pool_before + 8, "a leak in one kind of ending shows as 25"
        assert live_actors() == 0
    assert not [name for name in tasks() if "dify_agent" in name or name.startswith(("run ", "service "))]


async def test_a_reader_that_leaves_takes_its_tasks_along_while_the_run_goes_on(store: StoreServer):
    async with inside(store, "inside-leave") as replica:
        async with client_of(replica) as api:
            run_id = await api.create(run_of(HANG))
            await api.events_until(run_id, "run_started")
        before = await settled(tasks)
        for _ in range(10):
            async with open_stream(replica, run_id) as stream:
                assert (await stream.frame()) is not None
                assert tasks() != before, "the stream has no task: this test would see nothing"
        await until(lambda: tasks() == before, "the tasks are as before")
        assert stored_records(store, replica.prefix)[0]["status"] == "running"


async def test_a_cancel_before_the_start_leaves_only_its_event(store: StoreServer, monkeypatch: pytest.MonkeyPatch):
    """Q19, O5 and C13: the record exists, the work has not begun; the snapshot of the request is not echoed."""
    created = RedisRunStore.create_run
    async with inside(store, "inside-cancel") as replica, client_of(replica) as api:
        snapshot = (await api.run(text_run()))[-1]["data"]["session_snapshot"]

        async def then_cancelled(self: RedisRunStore, record: Any, owner: Any) -> None:
            await created(self, record, owner)
            await api.cancel(record.run_id, reason="early", message="before it began")

        monkeypatch.setattr(RedisRunStore, "create_run", then_cancelled)
        run_id = await api.create(text_run(session_snapshot=snapshot))
        events = await api.finished(run_id)
        assert [event["type"] for event in events] == ["run_cancelled"]
        data = events[0]["data"]
        assert (data["reason"], data["message"], data["session_snapshot"]) == ("early", "before it began", None)
        async with open_stream(replica, run_id) as stream:
            assert [frame.json for frame in await stream.rest()] == events


async def test_a_create_that_meets_the_shutdown_returns_and_its_run_is_ended(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
):
    """C12 and O5: 202, then only run_failed; whoever comes later is refused and stores nothing."""
    created = RedisRunStore.create_run
    async with inside(store, "inside-stop") as replica, client_of(replica) as api:

        async def amid_shutdown(self: RedisRunStore, record: Any, owner: Any) -> None:
            replica.stop.set()
            with trio.fail_after(10):
                while (await api.client.get("/readyz")).json()["status"] != "draining":
                    pass
            late = await api.client.post("/runs", json=text_run())
            assert late.status_code == 503
            await created(self, record, owner)

        monkeypatch.setattr(RedisRunStore, "create_run", amid_shutdown)
        run_id = await api.create(run_of(HANG))
    record = stored_records(store, replica.prefix)
    assert [(each["run_id"], each["status"]) for each in record] == [(run_id, "failed")]
    assert record[0]["error"] == "run cancelled during server shutdown"
    entries = store.witness.xrange(f"{replica.prefix}:runs:{{{run_id}}}:events")
    assert len(entries) == 1
    assert b'"reason":"shutdown"' in next(iter(entries[0][1].values()))


async def test_a_replica_can_be_started_again_in_the_same_loop(store: StoreServer):
    before = tasks()
    for _ in range(2):
        async with inside(store, "inside-again") as replica, client_of(replica) as api:
            assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"
    assert tasks() == before
