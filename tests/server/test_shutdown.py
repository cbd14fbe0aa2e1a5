"""SIGTERM: what is running may end, what is left is ended and told so, and the process leaves with a status."""

import json
import signal

import httpx2
import pytest
import trio
from tests.server.bodies import HANG, run_of, text_run, tool_run
from tests.server.clients import TERMINALS, Api, open_api, open_stream
from tests.server.harness import Server, StoreServer, launched, serving, stored_records, until

pytestmark = pytest.mark.slow


async def ready_says(api: Api) -> tuple[int, str]:
    response = await api.client.get("/readyz")
    return response.status_code, response.json()["status"]


async def wait_draining(server: Server) -> None:
    await until(lambda: '"draining"' in server.log, "the drain begins")


async def test_a_run_that_ends_within_the_grace_succeeds_on_its_open_stream(store: StoreServer):
    """Q20."""
    with serving(store.url, shutdown_grace_seconds=10) as server:
        async with open_api(server) as api:
            assert await ready_says(api) == (200, "ready")
            run_id = await api.create(run_of({"chunks": 20, "delay_ms": 100}))
            async with open_stream(server, run_id) as stream:
                assert (await stream.frame()) is not None
                server.tell(signal.SIGTERM)
                await wait_draining(server)
                # What the drain still answers, on connections old and new.
                assert await ready_says(api) == (503, "draining")
                response = await api.client.post("/runs", json=text_run())
                assert response.status_code == 503
                assert response.json() == {"detail": "run scheduler is shutting down"}
                assert response.headers["retry-after"].isdigit()
                assert response.headers["connection"] == "close"
                assert (await api.client.get("/healthz")).status_code == 200
                assert (await api.status(run_id))["status"] == "running"
                frames = await stream.rest()
            assert frames[-1].event == "run_succeeded"
            assert frames[-1].json["data"]["output"] == "tok " * 20
        assert await server.exit_status(within=5) == 0
    assert [record["status"] for record in stored_records(store, server.prefix)] == ["succeeded"]


@pytest.mark.parametrize("grace", [0, 0.5])
@pytest.mark.parametrize("body", [run_of(HANG), tool_run(hang=True)], ids=["model", "tool"])
async def test_a_run_that_outlives_the_grace_fails_with_reason_shutdown(store: StoreServer, body, grace):
    """C8."""
    with serving(store.url, shutdown_grace_seconds=grace) as server:
        async with open_api(server) as api:
            run_id = await api.create(body)
            await api.events_until(run_id, "run_started")
            async with open_stream(server, run_id) as stream:
                began = trio.current_time()
                server.tell(signal.SIGTERM)
                frames = await stream.rest()
                assert grace <= trio.current_time() - began < grace + 5
        data = frames[-1].json["data"]
        assert frames[-1].event == "run_failed"
        assert data["error"] == "run cancelled during server shutdown"
        assert (data["reason"], data["error_type"]) == ("shutdown", None)
        assert {layer["lifecycle_state"] for layer in data["session_snapshot"]["layers"]} == {"suspended"}
        assert await server.exit_status(within=5) == 0
    record = stored_records(store, server.prefix)[0]
    assert (record["run_id"], record["status"], record["error"]) == (run_id, "failed", data["error"])


async def test_a_cancel_during_the_drain_is_honoured(store: StoreServer):
    with serving(store.url, shutdown_grace_seconds=20) as server:
        async with open_api(server) as api:
            run_id = await api.create(run_of(HANG))
            async with open_stream(server, run_id) as stream:
                server.tell(signal.SIGTERM)
                await wait_draining(server)
                await api.cancel(run_id, message="enough")
                frames = await stream.rest()
        assert frames[-1].event == "run_cancelled"
        assert frames[-1].json["data"]["message"] == "enough"
        assert await server.exit_status(within=5) == 0


async def test_an_accepted_cancel_beats_the_shutdown(store: StoreServer):
    """C9: the intent is stored, then the grace of 0 is over at once."""
    with serving(store.url) as server:
        async with open_api(server) as api:
            run_ids = [await api.create(run_of(HANG)) for _ in range(10)]
            async with trio.open_nursery() as nursery:
                for run_id in run_ids:
                    nursery.start_soon(lambda run_id=run_id: api.cancel(run_id, reason="user"))
            server.tell(signal.SIGTERM)
        assert await server.exit_status() == 0
    assert [record["status"] for record in stored_records(store, server.prefix)] == ["cancelled"] * 10


async def test_a_flood_of_creates_into_the_shutdown_leaves_no_run_behind(store: StoreServer):
    """C12: whoever was told 202 has a run that was ended; nobody else has one."""
    accepted: list[str] = []
    refused = 0

    async def flood(server: Server) -> None:
        nonlocal refused
        async with open_api(server) as api:
            while True:
                try:
                    response = await api.client.post("/runs", json=run_of(HANG))
                except httpx2.TransportError:
                    return  # the listener has gone
                if response.status_code == 503:
                    assert response.json() == {"detail": "run scheduler is shutting down"}
                    refused += 1
                    return
                assert response.status_code == 202
                accepted.append(response.json()["run_id"])
                if len(accepted) == 40:
                    server.tell(signal.SIGTERM)

    with serving(store.url) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(flood, server)
        assert await server.exit_status() == 0
    by_id = {record["run_id"]: record for record in stored_records(store, server.prefix)}
    assert len(accepted) >= 40
    assert set(accepted) <= set(by_id)
    assert {record["status"] for record in by_id.values()} == {"failed"}
    assert {record["error"] for record in by_id.values()} == {"run cancelled during server shutdown"}


async def test_the_stream_of_another_replicas_run_ends_without_a_terminal_at_the_drain(store: StoreServer):
    """The reader goes on elsewhere, from the cursor it has."""
    with serving(store.url) as owner:
        with serving(store.url, prefix=owner.prefix) as leaving:
            async with open_api(owner) as api:
                run_id = await api.create(run_of(HANG))
                await api.events_until(run_id, "run_started")
                async with open_stream(leaving, run_id) as stream:
                    first = await stream.frame()
                    assert first is not None
                    leaving.tell(signal.SIGTERM)
                    assert await stream.rest() == []
                assert await leaving.exit_status(within=5) == 0
                async with open_stream(owner, run_id, last_event_id=first.id) as stream:
                    await api.cancel(run_id)
                    assert [frame.event for frame in await stream.rest()] == ["run_cancelled"]


async def test_a_drained_replica_leaves_no_key_of_its_own(store: StoreServer):
    with serving(store.url) as server:
        async with open_api(server) as api:
            run_id = await api.create(text_run())
            await api.finished(run_id)
    keys = [key.decode() for key in store.witness.scan_iter(match=f"{server.prefix}:*", count=1000)]
    # The others delist it in a minute, when nothing of it can be on its way any more.
    assert {key.rpartition(":")[2] for key in keys if ":owners" in key} == {"owners", "seen"}
    assert any(run_id in key for key in keys), "the log outlives the process"
    assert all(store.witness.ttl(key) > 0 for key in keys)


async def test_the_listener_stays_for_its_time(store: StoreServer):
    with serving(store.url, drain_listen_seconds=1.5) as server:
        began = trio.current_time()
        server.tell(signal.SIGTERM)
        await wait_draining(server)
        async with open_api(server) as api:
            assert await ready_says(api) == (503, "draining")
        assert await server.exit_status(within=6) == 0
        assert trio.current_time() - began >= 1.5


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGHUP, 129),
    ],
)
async def test_a_second_signal_ends_the_process_at_once(store: StoreServer, first, second, status):
    with launched(store.url, shutdown_grace_seconds=60) as server:
        server.wait_listening()
        async with open_api(server) as api:
            await api.create(run_of(HANG))
        server.tell(first)
        await wait_draining(server)
        server.tell(second)
        assert await server.exit_status(within=5) == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_ctrl_c_and_a_closed_terminal_drain_like_sigterm(store: StoreServer, number):
    with serving(store.url, shutdown_grace_seconds=0.5) as server:
        async with open_api(server) as api:
            hanging, ending = await api.create(run_of(HANG)), await api.create(run_of({"chunks": 2, "delay_ms": 50}))
            async with open_stream(server, hanging) as stream:
                assert await stream.frame() is not None
                server.tell(number)
                frames = await stream.rest()
        assert frames[-1].json["data"]["reason"] == "shutdown"
        assert await server.exit_status(within=10) == 0
        steps = ["stopping", "draining", "grace is over, runs are stopped", "drained", "stopped"]
        assert [record["event"] for record in server.records() if record["event"] in steps] == steps
    statuses = {record["run_id"]: record["status"] for record in stored_records(store, server.prefix)}
    assert statuses == {hanging: "failed", ending: "succeeded"}


@pytest.mark.parametrize(
    ("redis_url", "settings", "words"),
    [
        ("redis://127.0.0.1:1/0", {}, ["DIFY_AGENT_REDIS_URL"]),
        ("unix:///nonexistent/socket", {}, ["DIFY_AGENT_REDIS_URL"]),
        ("http://127.0.0.1/0", {}, ["redis"]),
        (None, {"run_timeout_seconds": "0"}, ["run_timeout_seconds"]),
        (None, {"prefix": "a{b}"}, ["REDIS_PREFIX"]),
    ],
    ids=["refused", "no-socket", "scheme", "bad-setting", "bad-prefix"],
)
async def test_a_failed_start_is_status_1_and_one_clear_line(store: StoreServer, redis_url, settings, words):
    with launched(redis_url or store.url, **settings) as server:
        assert await server.exit_status() == 1
        errors = [record for record in server.records() if record["level"] == "error"]
        assert len(errors) == 1, server.log
        assert "Traceback" not in server.log
        assert "exception" not in errors[0]
        for word in words:
            assert word.lower() in str(errors[0]).lower(), errors[0]


async def test_every_run_has_one_terminal_event_after_a_shutdown(store: StoreServer):
    """Runs of all kinds in flight, told to stop in the middle of it."""
    with serving(store.url, shutdown_grace_seconds=0.2, run_timeout_seconds=0.4) as server:
        async with open_api(server) as api:
            bodies = [run_of(HANG), tool_run(hang=True), tool_run(delay_ms=150), text_run(), run_of({"error": "no"})]
            run_ids = [await api.create(body) for body in bodies * 4]
        server.tell(signal.SIGTERM)
        assert await server.exit_status() == 0
    records = {record["run_id"]: record["status"] for record in stored_records(store, server.prefix)}
    assert set(records) == set(run_ids)
    assert "running" not in records.values()
    for run_id in run_ids:
        entries = store.witness.xrange(f"{server.prefix}:runs:{{{run_id}}}:events")
        types = [json.loads(payload)["type"] for _, fields in entries for payload in fields.values()]
        assert [each for each in types if each in TERMINALS] == [f"run_{records[run_id]}"]
        assert types[-1] in TERMINALS
