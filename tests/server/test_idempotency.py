"""`idempotency_key` over two replicas on one store: one run for all repeats, also when a replica dies."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import redis
import trio
from tests.server.bodies import HANG, layer, run_of, text_run
from tests.server.clients import Api, open_api
from tests.server.harness import Server, StoreServer, launched, serving, stored_records, until

from dify_agent.protocol.schemas import CreateRunRequest
from dify_agent.store.keys import Keys
from dify_agent.supervisor.request_digest import digest_of

RETENTION_SECONDS = 600
TAKEOVER_SECONDS = 5
DEAD_RUN = "0b8f1c52-6f0e-4a0e-9d53-6a4b0a4f2f11"


@pytest.fixture(scope="module")
def other(store: StoreServer, server: Server) -> Iterator[Server]:
    """A second replica on the prefix of the first."""
    with serving(store.url, prefix=server.prefix) as started:
        yield started


def of_tenant(name: str, **members: Any) -> dict[str, Any]:
    body = text_run(**members)
    context = layer(
        "context", "dify.execution_context", tenant_id=name, agent_mode="agent_app", invoke_from="service-api"
    )
    body["composition"]["layers"].insert(0, context)
    return body


def claim_key(prefix: str, key: str, tenant: str = "") -> str:
    return Keys(prefix).idempotency(tenant, key)


def write_claim(witness: redis.Redis, prefix: str, body: dict[str, Any]) -> None:
    """The claim of a replica that died before it wrote the run's record."""
    digest = digest_of(CreateRunRequest.model_validate(body))
    name = claim_key(prefix, body["idempotency_key"])
    witness.set(name, f"{DEAD_RUN}:{digest}:dead", ex=RETENTION_SECONDS)


async def repeat(*apis: Api, body: dict[str, Any], times: int) -> list[str]:
    """The run ids of so many parallel creates, dealt out over the replicas."""
    run_ids: list[str] = []

    async def create(api: Api) -> None:
        run_ids.append(await api.create(body))

    async with trio.open_nursery() as nursery:
        for number in range(times):
            nursery.start_soon(create, apis[number % len(apis)])
    return run_ids


async def test_twenty_parallel_repeats_over_two_replicas_are_one_run(server, other, api: Api, store: StoreServer):
    async with open_api(other) as remote:
        for number in range(5):
            before = len(stored_records(store, server.prefix))
            body = text_run(idempotency_key=f"parallel {number}")
            run_ids = await repeat(api, remote, body=body, times=20)
            assert len(run_ids) == 20
            [run_id] = set(run_ids)
            assert len(stored_records(store, server.prefix)) == before + 1
            events = await remote.finished(run_id)
            assert [event["type"] for event in events if event["type"] != "pydantic_ai_event"] == [
                "run_started",
                "run_succeeded",
            ]
            assert await api.create(body) == await remote.create(body) == run_id, "also when it has ended"


async def test_the_claim_has_the_retention_and_no_word_of_the_request(server, api: Api, store: StoreServer):
    run_id = await api.create(of_tenant("t-7", idempotency_key="wf-12:node-4", prompt="a secret"))
    name = claim_key(server.prefix, "wf-12:node-4", "t-7")
    assert RETENTION_SECONDS - 10 < store.witness.ttl(name) <= RETENTION_SECONDS
    text = store.witness.get(name).decode()
    assert text.startswith(f"{run_id}:")
    assert "secret" not in text
    assert "{t-7:" in name
    assert "wf-12" not in name


async def test_another_body_is_409_at_every_replica(server, other, api: Api, store: StoreServer):
    run_id = await api.create(text_run(idempotency_key="conflict"))
    before = len(stored_records(store, server.prefix))
    async with open_api(other) as remote:
        for each in (api, remote):
            for changed in (text_run("Something else.", idempotency_key="conflict"), text_run(metadata={"a": 1})):
                response = await each.client.post("/runs", json={**changed, "idempotency_key": "conflict"})
                assert response.status_code == 409
                assert response.content == b'{"detail":"idempotency_key was used with a different request"}'
        assert await remote.create(text_run(idempotency_key="conflict")) == run_id
    assert len(stored_records(store, server.prefix)) == before


async def test_form_and_order_of_the_body_make_no_difference(api: Api):
    body = text_run(idempotency_key="form")
    first = await api.create(body)
    assert await api.create(dict(reversed(body.items()))) == first
    assert await api.create({**body, "metadata": {}, "on_exit": {"default": "suspend"}}) == first


async def test_keys_are_of_one_tenant_and_an_empty_one_is_none(api: Api):
    bodies = [of_tenant(name, idempotency_key="shared") for name in "ab"] + [text_run(idempotency_key="shared")]
    ids = [await api.create(body) for body in bodies]
    assert len(set(ids)) == 3
    assert [await api.create(body) for body in bodies] == ids
    assert await api.create(text_run(idempotency_key="")) != await api.create(text_run(idempotency_key=""))
    assert await api.create(text_run(idempotency_key=None)) != await api.create(text_run(idempotency_key=None))


@pytest.mark.slow
async def test_a_claim_of_a_dead_replica_is_taken_over_by_one_of_many(server, other, api: Api, store: StoreServer):
    """The replica died between claim and record."""
    body = text_run(idempotency_key="died before the record")
    write_claim(store.witness, server.prefix, body)
    began = trio.current_time()
    async with open_api(other) as remote:
        run_ids = await repeat(api, remote, body=body, times=20)
        assert TAKEOVER_SECONDS <= trio.current_time() - began < TAKEOVER_SECONDS + 3
        assert run_ids == [DEAD_RUN] * 20
        types = [event["type"] for event in await remote.finished(DEAD_RUN)]
        assert (types[0], types.count("run_started"), types[-1]) == ("run_started", 1, "run_succeeded")
        assert await remote.create(body) == DEAD_RUN


@pytest.mark.slow
async def test_a_run_of_a_killed_replica_is_answered_and_not_executed_again(store: StoreServer):
    """The replica died after the record."""
    body = run_of(HANG, idempotency_key="died after the record")
    with launched(store.url, owner_lease_seconds=1) as first:
        first.wait_listening()
        with serving(store.url, prefix=first.prefix, owner_lease_seconds=1) as second:
            async with open_api(first) as api, open_api(second) as remote:
                run_id = await api.create(body)
                await remote.events_until(run_id, "run_started")
                first.tell(signal.SIGKILL)
                await first.exit_status()
                began = trio.current_time()
                assert await repeat(remote, body=body, times=20) == [run_id] * 20
                assert trio.current_time() - began < TAKEOVER_SECONDS
                events = await remote.finished(run_id)
                assert events[-1]["data"]["reason"] == "owner_lost"
                assert await remote.create(body) == run_id
                assert [event["type"] for event in events].count("run_started") == 1
            assert len(stored_records(store, first.prefix)) == 1


@pytest.mark.slow
async def test_a_replica_killed_in_a_burst_of_creates_leaves_one_run_per_key(store: StoreServer):
    """Killed wherever it is: between claim and record, or behind it. Its callers go on at the other replica."""
    with launched(store.url) as first:
        first.wait_listening()
        with serving(store.url, prefix=first.prefix) as second:
            answered: dict[str, set[str]] = {f"burst {number}": set() for number in range(40)}

            async def caller(key: str) -> None:
                body = text_run(idempotency_key=key)
                async with open_api(first) as api:
                    with suppress(httpx2.HTTPError):
                        answered[key].add(await api.create(body))
                async with open_api(second) as remote:
                    answered[key].add(await remote.create(body))

            async with trio.open_nursery() as nursery:
                for key in answered:
                    nursery.start_soon(caller, key)
                claims = f"{first.prefix}:idempotency:*"
                await until(lambda: len(list(store.witness.scan_iter(match=claims, count=1000))) > 3, "some claims")
                first.tell(signal.SIGKILL)
            assert [len(run_ids) for run_ids in answered.values()] == [1] * len(answered)
            assert len(stored_records(store, first.prefix)) == len(answered)


async def test_refused_creates_leave_no_claim_and_repeats_are_answered_when_full(store: StoreServer):
    with serving(store.url, max_active_runs=1) as server:
        async with open_api(server) as api:
            body = run_of(HANG, idempotency_key="first")
            run_id = await api.create(body)
            refused = await api.client.post("/runs", json=text_run(idempotency_key="second"))
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert not store.witness.exists(claim_key(server.prefix, "second"))
            assert await api.create(body) == run_id
            await api.cancel(run_id)
            await api.finished(run_id)
            second = await api.create(text_run(idempotency_key="second"))
            assert second != run_id
            await api.finished(second)


async def test_a_drain_refuses_repeats_and_claims_nothing(store: StoreServer):
    with serving(store.url, drain_listen_seconds=2, shutdown_grace_seconds=0) as server:
        async with open_api(server) as api:
            body = text_run(idempotency_key="first")
            run_id = await api.create(body)
            await api.finished(run_id)
            server.tell(signal.SIGTERM)
            with trio.fail_after(5):
                while (await api.client.get("/readyz")).status_code == 200:  # noqa: ASYNC110  Another process's state.
                    await trio.sleep(0.005)
            for each in (body, text_run(idempotency_key="second")):
                response = await api.client.post("/runs", json=each)
                assert (response.status_code, response.json()["detail"]) == (503, "run scheduler is shutting down")
            assert await server.exit_status() == 0
            assert not store.witness.exists(claim_key(server.prefix, "second"))
