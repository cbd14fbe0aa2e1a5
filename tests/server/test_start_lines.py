"""What an operator reads on stderr at a start and in an outage: one line each, once for all workers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import trio
from tests.server.bodies import text_run
from tests.server.clients import open_api
from tests.server.harness import Server, StoreServer, launched, serving, until
from tests.server.stores import durable_store

from dify_agent.store.embedded import ServerProcess, running_server, valkey_binary

pytestmark = [pytest.mark.slow, pytest.mark.full]

EVICTS = "the store deletes keys when its memory is full, and each is a lost run"
UNKNOWN = "unknown setting ignored"


def doctor(folder: Path, url: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    environment["DIFY_AGENT_REDIS_URL"] = url
    command = [sys.executable, "-m", "dify_agent", "doctor"]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def check_missing_database(record: dict[str, Any], event: str) -> None:
    assert (record["event"], record["setting"]) == (event, "DIFY_AGENT_REDIS_URL")
    assert record["cause"] == "the database 99 does not exist there"
    assert "exception" not in record
    assert "/0" in record["advice"]


async def test_a_database_that_does_not_exist_is_one_line(store: StoreServer) -> None:
    with launched(f"{store.url}?db=99") as server:
        assert await server.exit_status() == 1
        (record,) = server.records()
    check_missing_database(record, "cannot serve")


async def test_the_doctor_says_so_as_well(store: StoreServer, tmp_path: Path) -> None:
    done = await trio.to_thread.run_sync(doctor, tmp_path, f"{store.url}?db=99")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    check_missing_database(json.loads(line), "cannot examine the store")


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["one", "workers"])
async def test_a_misspelt_setting_is_said_once(store: StoreServer, arguments: tuple[str, ...]) -> None:
    with serving(store.url, env={"DIFY_AGENT_MAX_ACTIVE_RUN": "s3cret"}, arguments=arguments) as server:
        await listening(server, len(arguments))
        (record,) = events(server, UNKNOWN)
        assert (record["setting"], record["did_you_mean"]) == (
            "DIFY_AGENT_MAX_ACTIVE_RUN",
            "DIFY_AGENT_MAX_ACTIVE_RUNS",
        )
        assert "s3cret" not in server.log


def events(server: Server, event: str) -> list[dict[str, Any]]:
    return [each for each in server.records() if each["event"] == event]


async def listening(server: Server, workers: int) -> None:
    await until(lambda: not workers or any("workers" in each for each in server.records()), "all listen")


@contextmanager
def evicting(**options: str) -> Iterator[ServerProcess]:
    with running_server(valkey_binary(), {"maxmemory": "100mb", **options}) as process:
        yield process


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["one", "workers"])
async def test_a_store_that_evicts_is_warned_of_once(arguments: tuple[str, ...]) -> None:
    with evicting(**{"maxmemory-policy": "volatile-lru"}) as process:
        await process.wait_ready()
        with serving(process.url, arguments=arguments) as server:
            await listening(server, len(arguments))
            await until(lambda: bool(events(server, EVICTS)), "it is said")
        (record,) = events(server, EVICTS)
        assert (record["level"], record["maxmemory_policy"]) == ("warning", "volatile-lru")
        assert "noeviction" in record["advice"]


@pytest.mark.parametrize(
    ("policy", "acl"),
    [("noeviction", []), ("allkeys-lru", ["-info"])],
    ids=["keeps all", "does not say"],
)
async def test_other_stores_are_not_warned_of(policy: str, acl: list[str]) -> None:
    with evicting(**{"maxmemory-policy": policy}) as process:
        await process.wait_ready()
        with redis.Redis(unix_socket_path=str(process.socket)) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "on", "nopass", *acl)
        with serving(process.url) as server:
            async with open_api(server) as api:
                assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"
        assert events(server, EVICTS) == []
        assert not any("exception" in each for each in server.records())


async def test_a_refused_layer_type_names_the_setting_that_admits_it(store: StoreServer) -> None:
    with serving(store.url, scripted_layers=0) as server:
        async with open_api(server) as api:
            data = (await api.run(text_run()))[-1]["data"]
        assert data["error"] == "\"Layer type id 'scripted.model' is not registered.\""
        (record,) = events(server, "run names layer types that a setting withholds")
        assert (record["types"], record["setting"]) == (["scripted.model"], "DIFY_AGENT_SCRIPTED_LAYERS")


async def test_an_outage_is_said_at_once_and_when_it_is_over() -> None:
    with durable_store() as store, serving(store.url) as server:
        await trio.sleep(0.5)  # the inbox is being read
        store.kill()
        await until(lambda: bool(events(server, "lease not renewed")), "it is said at once", 2)
        await trio.sleep(3)
        store.start()
        await until(lambda: bool(events(server, "store is back, lease renewed")), "and when it is over", 3)
        (record,) = events(server, "lease not renewed")
        assert record["meaning"].startswith("runs go on; events wait in memory")
        (over,) = events(server, "store is back, lease renewed")
        assert over["seconds"] >= 3
