"""The command and the scan beside real replicas: no false alarms, and runs that reapers judge after a repair."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
import trio
from tests.doctor import broken
from tests.doctor.world import BOUNDS, LIVING, RETENTION, World
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run
from tests.server.clients import Api, open_api
from tests.server.harness import BOUND_SECONDS, StoreServer, launched, serving, until
from typer.testing import CliRunner

from dify_agent.cli import doctor as command
from dify_agent.cli.commands import app
from dify_agent.doctor.keyspace import ExecutorKeyspace
from dify_agent.doctor.repair import Repairs
from dify_agent.doctor.scan import Scan, ScanResult
from dify_agent.store.deployments import open_executor
from dify_agent.store.embedded import running_server, valkey_binary
from dify_agent.store.keys import Keys
from dify_agent.store.redis import open_redis_store
from dify_agent.store.urls import parse_store_url

LEASE = 1.5
BUSY_SECONDS = 0.6
"""Within which looks begin; a look takes up to 3 s."""
LOOKING = 4
RUNS_SEEN = 20
"""Looking goes on until so many were there, however slow the machine is."""
MANY = 10_000
SCAN_SECONDS = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield StoreServer(process.url, witness)


@pytest.fixture
def prefix() -> str:
    return f"t-{uuid.uuid4().hex}"


async def scan(store: StoreServer, prefix: str, *, repair: bool = False) -> ScanResult:
    """As the command does it, with its pause before the second look."""
    keys = Keys(prefix)
    async with open_executor(parse_store_url(store.url), limit=10, timeout=10) as executor:
        keyspace = ExecutorKeyspace(executor)
        examination = Scan(keyspace, keys, BOUNDS)
        result = await examination.run()
        if repair:
            await Repairs(keyspace, keys, examination).apply(result.findings)
    return result


async def _keep_busy(api: Api) -> None:
    bodies = [text_run(), tool_run(result=1), run_of(STREAM_THEN_HANG), run_of(HANG), run_of({"error": "x"})]
    while True:
        for body in bodies:
            run = await api.create({**body, "idempotency_key": uuid.uuid4().hex})
            if "hang" in json.dumps(body):
                await api.cancel(run)


async def _keep_looking(store: StoreServer, prefix: str, until_time: float, seen: list[int]) -> None:
    while trio.current_time() < until_time or max(seen, default=0) <= RUNS_SEEN:
        result = await scan(store, prefix)
        assert result.findings == []
        seen.append(result.counts.runs)


async def test_no_findings_beside_busy_replicas(store: StoreServer, prefix: str) -> None:
    """Several at a time: whoever has suspected something waits for a while before it looks again."""
    with launched(store.url, prefix=prefix) as one, launched(store.url, prefix=prefix) as two:
        for server in (one, two):
            server.wait_listening()
        seen: list[int] = []
        async with open_api(one) as api, open_api(two) as other, trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(_keep_busy, api)
                nursery.start_soon(_keep_busy, other)
            until_time = trio.current_time() + BUSY_SECONDS
            with trio.fail_after(SCAN_SECONDS):
                async with trio.open_nursery() as looking:
                    for _ in range(LOOKING):
                        looking.start_soon(_keep_looking, store, prefix, until_time, seen)
                        await trio.sleep(BUSY_SECONDS / LOOKING / 2)
            nursery.cancel_scope.cancel(reason="it was looked at for long enough")
        assert len(seen) >= LOOKING
        for server in (one, two):
            server.tell(signal.SIGTERM)
        for server in (one, two):
            assert await server.exit_status() == 0  # not `stop`, which would tell it again
            server.check_log()
    assert (await scan(store, prefix)).findings == []


@pytest.mark.parametrize("breaking", [broken.owner_lost, broken.owner_missing_for_long])
async def test_reapers_judge_what_is_handed_to_them(store: StoreServer, prefix: str, breaking: broken.Break) -> None:
    with serving(store.url, prefix=prefix, owner_lease_seconds=LEASE) as server:
        async with (
            open_redis_store(store.url, prefix=prefix, retention_seconds=RETENTION) as opened,
            open_executor(parse_store_url(store.url), limit=10, timeout=5) as executor,
            open_api(server) as api,
        ):
            live = await api.create(run_of(HANG))
            world = World(opened, executor, store.witness, prefix)
            run = await breaking(world)
            result = await scan(store, prefix, repair=True)
            assert [item.subject for item in result.findings] == [run]
            await until(lambda: world.record(run)["status"] != "running", "the run is judged")
            last = (await api.page(run))["events"][-1]
            assert (last["type"], last["data"]["reason"]) == ("run_failed", "owner_lost")
            assert (await api.status(live))["status"] == "running"
            await until(lambda: store.witness.scard(Keys(prefix).owners) == 1, "the reaper forgets the lost owner")
            assert (await scan(store, prefix)).findings == []
            await api.cancel(live)
            await api.finished(live)


def environment_of(url: str, prefix: str) -> dict[str, str]:
    settings = {"REDIS_URL": url, "REDIS_PREFIX": prefix, "RUN_RETENTION_SECONDS": str(RETENTION)}
    return {f"DIFY_AGENT_{name}": value for name, value in settings.items()}


def doctor(folder: Path, url: str, prefix: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """The command as a process, with its pause before the second look."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    command = [sys.executable, "-m", "dify_agent", "doctor", *options]
    return subprocess.run(
        command,
        env=environment | environment_of(url, prefix),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS * 2,
        check=False,
    )


async def doctor_within(*options: str) -> tuple[int, str]:
    """The command in this process and without the pause: its status and what it prints."""
    result = await trio.to_thread.run_sync(CliRunner().invoke, app, ["doctor", *options])
    return result.exit_code, result.stdout


async def test_the_command_from_end_to_end(store: StoreServer, prefix: str, tmp_path: Path) -> None:
    """As a process, on a sound keyspace and on one with both kinds of findings."""
    results: dict[str, subprocess.CompletedProcess[str]] = {}

    async def run(name: str, *options: str) -> None:
        results[name] = await trio.to_thread.run_sync(doctor, tmp_path, store.url, name, *options)

    async with open_executor(parse_store_url(store.url), limit=10, timeout=5) as executor:
        sound, sick = f"{prefix}-sound", f"{prefix}-sick"
        worlds = []
        for name in (sound, sick):
            async with open_redis_store(store.url, prefix=name, retention_seconds=RETENTION) as opened:
                world = World(opened, executor, store.witness, name)
                await world.settle()
                if name == sick:
                    ended, hole = await broken.intent_after_end(world), await broken.hole(world)
                worlds.append(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, sound)
            nursery.start_soon(run, sick, "--repair")
    assert (results[sound].returncode, results[sound].stderr) == (0, "")
    assert results[sound].stdout.endswith("no broken rule\n")
    assert (results[sick].returncode, results[sick].stderr) == (3, "")
    _, first, second, *rest = results[sick].stdout.splitlines()
    keys = worlds[1].keys
    assert first.startswith(f"repaired intent-after-end     {keys.intent(ended)}: ")
    assert second.startswith(f"error    ordinal-gap          {keys.events(hole)}: ")
    assert rest[-1].endswith("1 findings, 1 repaired")


@pytest.fixture
def within(store: StoreServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `doctor_within` needs: the environment of the command, no pause, and the logging of this process."""
    for name in [name for name in os.environ if name.startswith("DIFY_AGENT_")]:
        monkeypatch.delenv(name)
    for name, value in environment_of(store.url, prefix).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "configure_logging", lambda: None)
    monkeypatch.setattr(command, "Scan", partial(Scan, recheck_seconds=0.01))


async def test_what_the_command_tells_and_repairs(store: StoreServer, prefix: str, within: None) -> None:
    async with (
        open_redis_store(store.url, prefix=prefix, retention_seconds=RETENTION) as opened,
        open_executor(parse_store_url(store.url), limit=10, timeout=5) as executor,
    ):
        world = World(opened, executor, store.witness, prefix)
        await world.settle()
        clean, text = await doctor_within()
        assert clean == 0
        where = f"store {store.url}?db=0, prefix {prefix}, retention {RETENTION} s, lease 15 s\n"
        assert text.startswith(where), "the store's URL, without a login"
        assert text.endswith("no broken rule\n")

        ended = await broken.intent_after_end(world)
        told, text = await doctor_within("--json")
        assert told == 3
        report = json.loads(text)
        assert report["remaining"] == 1
        assert report["counts"]["runs"] == len(world.healthy) + 1
        (finding,) = report["findings"]
        assert (finding["rule"], finding["run_id"]) == ("intent-after-end", ended)
        assert (finding["repairable"], finding["repaired"]) == (True, False)

        hole = await broken.hole(world)
        some, text = await doctor_within("--repair")
        assert some == 3
        _, first, second, *rest = text.splitlines()
        assert first.startswith(f"repaired intent-after-end     {world.keys.intent(ended)}: ")
        assert second.startswith(f"error    ordinal-gap          {world.keys.events(hole)}: ")
        assert rest[-1].endswith("1 findings, 1 repaired")

        store.witness.delete(*world.keys.run(hole))
        store.witness.srem(world.keys.runs(LIVING.id), hole)
        await broken.no_ttl(world)
        repaired, text = await doctor_within("--repair", "--json")
        assert repaired == 0
        assert [(item["rule"], item["repaired"]) for item in json.loads(text)["findings"]] == [("ttl-missing", True)]


async def test_another_retention_than_the_replicas_cuts_nothing_short(
    store: StoreServer, prefix: str, within: None
) -> None:
    kept = 864_000
    with serving(store.url, prefix=prefix, run_retention_seconds=kept) as server:
        async with open_api(server) as api:
            await api.run({**text_run(), "idempotency_key": "k"})
            live = await api.create(run_of(HANG))
            await api.events_until(live, "run_started")
            status, text = await doctor_within("--repair", "--json")
            report = json.loads(text)
            (finding,) = report["findings"]
            assert (status, report["remaining"], finding["repaired"]) == (3, 1, False)
            assert finding["rule"] == "retention-differs"
            assert finding["detail"] == (
                f"replicas here keep runs for {kept} s, this command was told {RETENTION} s: "
                "set DIFY_AGENT_RUN_RETENTION_SECONDS"
            )
            keys = [key for key in store.witness.scan_iter(match=f"{prefix}:*") if not key.endswith(b":alive")]
            assert len(keys) >= 9
            assert min(map(store.witness.ttl, keys)) > kept - BOUND_SECONDS
            await api.cancel(live)
            await api.finished(live)


async def test_a_prefix_that_nobody_uses_does_not_read_as_healthy(store: StoreServer, within: None) -> None:
    status, text = await doctor_within()
    assert status == 0
    assert "nothing under this prefix: is DIFY_AGENT_REDIS_PREFIX that of the replicas?" in text
    assert "no broken rule" not in text


async def test_a_store_that_may_evict_is_told_of(store: StoreServer, within: None) -> None:
    store.witness.config_set("maxmemory", "1gb")
    store.witness.config_set("maxmemory-policy", "allkeys-lru")
    try:
        _, text = await doctor_within()
    finally:
        store.witness.config_set("maxmemory-policy", "noeviction")
        store.witness.config_set("maxmemory", "0")
    assert "\nnote: the store deletes keys when its memory is full, and each is a lost run (maxmemory-policy " in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("unix:///nowhere/at/all", ["cannot examine the store", "DIFY_AGENT_REDIS_URL"]),
        ("http://x:secret@y", ["DIFY_AGENT_REDIS_URL"]),
    ],
)
def test_a_store_that_cannot_be_examined(tmp_path: Path, url: str, words: list[str]) -> None:
    failed = doctor(tmp_path, url, "p", "--json")
    assert (failed.returncode, failed.stdout) == (1, "")
    (line,) = failed.stderr.splitlines()
    assert json.loads(line)["level"] == "error"
    assert all(word in line for word in words)
    assert "secret" not in line


@pytest.mark.full
async def test_ten_thousand_runs_in_bounded_time(store: StoreServer, prefix: str) -> None:
    keys, pipe = Keys(prefix), store.witness.pipeline(transaction=False)
    async with open_redis_store(store.url, prefix=prefix, retention_seconds=RETENTION) as opened:
        world = World(opened, None, store.witness, prefix)  # type: ignore[arg-type]
        model = await world.run("succeeded")
    record, owner = store.witness.get(keys.record(model)), store.witness.get(keys.owner(model))
    log = [(event_id, fields[b"payload"]) for event_id, fields in store.witness.xrange(keys.events(model))]
    for _ in range(MANY):
        run = str(uuid.uuid4())
        pipe.set(keys.record(run), record.replace(model.encode(), run.encode()), ex=RETENTION)
        pipe.set(keys.owner(run), owner, ex=RETENTION)
        for event_id, text in log:
            pipe.xadd(keys.events(run), {"payload": text.replace(model.encode(), run.encode())}, id=event_id)
        pipe.expire(keys.events(run), RETENTION)
    pipe.execute()
    store.witness.config_set("slowlog-log-slower-than", 20_000)
    store.witness.slowlog_reset()
    began = time.monotonic()
    result = await scan(store, prefix)
    assert time.monotonic() - began < SCAN_SECONDS
    assert result.findings == []
    assert result.counts.runs >= MANY + 1
    slow = [entry for entry in store.witness.slowlog_get() if entry["command"].split()[0] != b"XADD"]
    assert slow == [], "no question of the doctor's holds the server for 20 ms"
    print(f"{time.monotonic() - began:.1f} s for {MANY} runs")
