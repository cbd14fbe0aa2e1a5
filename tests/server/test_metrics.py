"""``/metrics`` of a real replica: what an operator reads there is what happened."""

import signal
from collections.abc import Iterator
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run
from tests.server.clients import Api, open_api, open_stream
from tests.server.harness import Server, StoreServer, launched, serving, until
from tests.server.test_admission import of_tenant
from trio_websocket import open_websocket_url

from dify_agent.actors.lifecycle import Phase
from dify_agent.metrics import CancelLeg, Refusal, Transport
from dify_agent.store.base import VerdictOutcome


@pytest.fixture
def server(store: StoreServer) -> Iterator[Server]:
    """A replica of the test's own: its counters begin at 0."""
    with serving(store.url) as started:
        yield started


async def read(api: Api) -> dict[tuple[str, ...], float]:
    """Samples by name and label values."""
    response = await api.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name.removeprefix("dify_agent_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def test_every_series_is_there_before_anything_has_happened(api: Api) -> None:
    """What begins with its first event hides that event from ``increase()``."""
    found = await read(api)
    series = {
        "runs_active": set(Phase) - {Phase.DONE},
        "runs_ended_total": {"succeeded", "failed", "cancelled"},
        "verdicts_total": set(get_args(VerdictOutcome)),
        "cancel_seconds_count": set(get_args(CancelLeg)),
        "streams_open": set(get_args(Transport)),
        "creates_refused_total": set(get_args(Refusal)),
    }
    for name, values in series.items():
        assert {key[1]: value for key, value in found.items() if key[0] == name} == dict.fromkeys(values, 0)


def refusals(found: dict[tuple[str, ...], float]) -> dict[str, float]:
    """Reason to count, of those that happened."""
    return {key[1]: value for key, value in found.items() if key[0] == "creates_refused_total" and value}


async def test_creates_refused_by_a_limit_and_by_a_conflict(store: StoreServer) -> None:
    with serving(store.url, max_active_runs=2, max_active_runs_per_tenant=1) as server:
        async with open_api(server) as api:
            first = await api.create({**run_of(HANG), "idempotency_key": "k"})
            for body in (run_of(HANG), {**run_of(HANG), "idempotency_key": "l"}):
                assert (await api.client.post("/runs", json=body)).status_code == 429
            assert refusals(await read(api)) == {"tenant_limit": 2}
            second = await api.create(of_tenant("t"))
            for body in (of_tenant("u"), {**of_tenant("u"), "idempotency_key": "l"}):
                assert (await api.client.post("/runs", json=body)).status_code == 429
            assert refusals(await read(api)) == {"tenant_limit": 2, "process_limit": 2}
            other = {**text_run(), "idempotency_key": "k"}
            assert (await api.client.post("/runs", json=other)).status_code == 409
            assert refusals(await read(api)) == {"tenant_limit": 2, "process_limit": 2, "idempotency_conflict": 1}
            for run_id in (first, second):
                await api.cancel(run_id)
                await api.finished(run_id)


async def test_creates_refused_in_a_drain(store: StoreServer) -> None:
    with launched(store.url, shutdown_grace_seconds=20) as server:
        server.wait_listening()
        async with open_api(server) as api:
            run_id = await api.create(run_of(HANG))
            server.tell(signal.SIGTERM)
            await until(lambda: '"draining"' in server.log, "it drains")
            assert (await api.client.post("/runs", json=text_run())).status_code == 503
            assert refusals(await read(api)) == {"draining": 1}
            await api.cancel(run_id)
        assert await server.exit_status() == 0


async def test_creates_refused_because_of_the_store(server: Server, api: Api, store: StoreServer) -> None:
    store.witness.config_set("maxmemory", "1")
    try:
        assert (await api.client.post("/runs", json=text_run())).status_code == 503
    finally:
        store.witness.config_set("maxmemory", "0")
    assert refusals(await read(api)) == {"store_unavailable": 1}


async def test_runs_by_phase_and_status(api: Api) -> None:
    await api.run(text_run())
    await api.run(run_of({"error": "no"}))
    run_id = await api.create(run_of(HANG))
    await api.events_until(run_id, "run_started")
    found = await read(api)
    assert found["runs_active", "running"] == 1
    assert found["runs_ended_total", "succeeded"] == 1
    assert found["runs_ended_total", "failed"] == 1
    await api.cancel(run_id)
    await api.finished(run_id)
    found = await read(api)
    assert sum(value for (name, *_), value in found.items() if name == "runs_active") == 0
    assert found["runs_ended_total", "cancelled"] == 1


async def test_the_three_legs_of_a_cancel(api: Api) -> None:
    run_id = await api.create(run_of(HANG))
    await api.events_until(run_id, "run_started")
    await api.cancel(run_id)
    await api.finished(run_id)
    found = await read(api)
    for leg in ("accepted", "observed", "cleaned"):
        assert found["cancel_seconds_count", leg] == 1
        assert 0 <= found["cancel_seconds_sum", leg] < 5


async def test_a_cancel_at_another_replica_is_counted_where_each_leg_was(store, server, api: Api) -> None:
    with serving(store.url, prefix=server.prefix) as other:
        async with open_api(other) as remote:
            run_id = await api.create(run_of(HANG))
            await api.events_until(run_id, "run_started")
            await remote.cancel(run_id)
            await api.finished(run_id)
            there, here = await read(remote), await read(api)
    assert there["cancel_seconds_count", "accepted"] == 1
    assert there["cancel_seconds_count", "cleaned"] == 0
    assert here["cancel_seconds_count", "observed"] == here["cancel_seconds_count", "cleaned"] == 1


async def test_coalescing_queue_and_store(api: Api) -> None:
    await api.run(run_of({"chunks": 500, "chunk": "w"}))
    found = await read(api)
    assert found["text_deltas_total",] == 500
    assert 1 <= found["text_events_total",] < 100
    assert found["queue_bytes",] == found["queue_events",] == 0
    assert found["queue_limit_bytes",] == 64 * 1024 * 1024
    assert found["queue_stuck_runs",] == 0
    assert found["store_operation_seconds_count", "create_run", "ok"] == 1
    assert found["store_operation_seconds_count", "append", "ok"] >= 1
    assert not any("read_tails" in key or "read_inbox" in key for key in found)
    assert found["process_resident_memory_bytes",] > 10_000_000


async def test_open_streams(server: Server, api: Api) -> None:
    run_id = await api.create(run_of(STREAM_THEN_HANG))
    await api.events_until(run_id, "part_delta")
    async with open_stream(server, run_id) as stream:
        assert await stream.frame() is not None
        async with open_websocket_url(f"ws://127.0.0.1:{server.port}/runs/{run_id}/events/ws") as socket:
            await socket.get_message()
            found = await read(api)
            assert (found["streams_open", "sse"], found["streams_open", "websocket"]) == (1, 1)
    await api.cancel(run_id)
    await api.finished(run_id)

    async def open_streams() -> float:
        found = await read(api)
        return found["streams_open", "sse"] + found["streams_open", "websocket"]

    while await open_streams():  # a reader that vanished is noticed a moment later
        pass


async def test_metrics_are_under_the_token(store: StoreServer) -> None:
    with serving(store.url, api_token="s3cret") as server:
        async with open_api(server) as api:
            assert (await api.client.get("/metrics")).status_code == 401
            allowed = await api.client.get("/metrics", headers={"Authorization": "Bearer s3cret"})
            assert allowed.status_code == 200
            assert (await api.client.post("/metrics")).status_code in (401, 405)
