"""Limits on active runs: 429, by process and by tenant, and capacity that comes back."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import trio
from tests.server.bodies import HANG, calling, layer, run_of, text_run
from tests.server.clients import Api, open_api
from tests.server.harness import Server, StoreServer, serving, stored_records

LEFT_BEHIND = "run ignores cancellation, left behind"
LIMIT = 2


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    limits = {"max_active_runs": LIMIT, "cancel_timeout_seconds": 0.3, "run_timeout_seconds": 8}
    with serving(store.url, announced=[LEFT_BEHIND], **limits) as started:
        yield started


def of_tenant(name: str | None) -> dict[str, Any]:
    body = run_of(HANG)
    if name is not None:
        context = layer(
            "context", "dify.execution_context", tenant_id=name, agent_mode="agent_app", invoke_from="service-api"
        )
        body["composition"]["layers"].insert(0, context)
    return body


async def post_all(api: Api, bodies: list[dict[str, Any]]) -> list[httpx2.Response]:
    """All at once; the answers in the order in which they came."""
    answers: list[httpx2.Response] = []

    async def post(body: dict[str, Any]) -> None:
        answers.append(await api.client.post("/runs", json=body))

    async with trio.open_nursery() as nursery:
        for body in bodies:
            nursery.start_soon(post, body)
    return answers


def created(answers: list[httpx2.Response]) -> list[str]:
    """Run ids of the 202s; every other answer must be the 429."""
    for answer in answers:
        if answer.status_code != 202:
            assert (answer.status_code, answer.content) == (429, b'{"detail":"too many active runs"}')
            assert answer.headers["retry-after"] == "1"
            assert answer.headers.get("connection") != "close"
    return [answer.json()["run_id"] for answer in answers if answer.status_code == 202]


async def test_fifty_parallel_creates_fill_a_limit_of_two_again_and_again(server, api: Api, store: StoreServer):
    for _ in range(3):
        before = {record["run_id"] for record in stored_records(store, server.prefix)}
        run_ids = created(await post_all(api, [run_of(HANG)] * 50))
        assert len(run_ids) == LIMIT
        stored = {record["run_id"] for record in stored_records(store, server.prefix)}
        assert stored - before == set(run_ids), "a refused create stores nothing"
        for run_id in run_ids:
            await api.cancel(run_id)
            await api.finished(run_id)


STUBBORN = run_of(calling("probe"), tools=({"name": "probe", "hang": True, "swallow_cancel_ms": 3000},))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "cancelled_after"),
    [
        (text_run(), None),
        (run_of({"error": "boom"}), None),
        (run_of(HANG), "run_started"),
        (STUBBORN, "function_tool_call"),
    ],
    ids=["success", "failure", "cancel", "left behind"],
)
async def test_capacity_comes_back_after_every_ending(api: Api, body, cancelled_after):
    """Each run needs the place of one that came before, and is created right behind its terminal event."""
    blocker = await api.create(run_of(HANG))
    for _ in range(4):
        run_id = await api.create(body)
        if cancelled_after is not None:
            await api.events_until(run_id, cancelled_after)
            assert created(await post_all(api, [text_run()])) == []
            await api.cancel(run_id)
        await api.finished(run_id)
    await api.cancel(blocker)
    await api.finished(blocker)


@pytest.mark.slow
async def test_capacity_comes_back_after_the_deadline(api: Api):
    run_ids = [await api.create(run_of(HANG)) for _ in range(LIMIT)]
    assert created(await post_all(api, [text_run()])) == []
    for run_id in run_ids:
        assert (await api.finished(run_id))[-1]["data"]["error_type"] == "agent_run_limit_exceeded"
    assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


async def test_each_tenant_has_its_own_count(store: StoreServer):
    with serving(store.url, max_active_runs_per_tenant=2) as server:
        async with open_api(server) as api:
            tenants = ["a", "b", None]
            run_ids = created(await post_all(api, [of_tenant(name) for name in tenants for _ in range(10)]))
            assert len(run_ids) == 6
            assert created(await post_all(api, [of_tenant(name) for name in tenants])) == []
            assert len(created(await post_all(api, [of_tenant("c")]))) == 1
            assert Counter(record["status"] for record in stored_records(store, server.prefix)) == {"running": 7}
