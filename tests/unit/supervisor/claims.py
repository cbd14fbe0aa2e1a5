"""Requests under idempotency keys, a dead replica's claim, and two replicas on one store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.unit.actors.fake_store import FakeStore
from tests.unit.actors.world import World, model, prompt, request, world

from dify_agent.store.base import Claim, IdempotencyKey
from dify_agent.supervisor.admission import RunLimits
from dify_agent.supervisor.request_digest import digest_of

HANG = {"hang": True}
KEY = IdempotencyKey("", "k")
ONE = RunLimits(total=1)


def hanging(key: str | None = "k", *layers: dict[str, Any]) -> Any:
    return request(prompt(), *layers, model(HANG), idempotency_key=key)


DIGEST = digest_of(hanging())
DEAD = Claim("11111111-1111-4111-8111-111111111111", DIGEST, "dead")


def tenant(name: str) -> dict[str, Any]:
    return {"name": "context", "type": "dify.execution_context", "config": {"tenant_id": name}}


async def create(w: World, body: Any = None) -> str:
    return await w.supervisor.create(body or hanging())


@asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[World, World]]:
    store = FakeStore()
    async with world(store=store, owner="one") as one, world(store=store, owner="two") as two:
        yield one, two


async def gather(*calls: Any) -> list[str]:
    """Await all at once."""
    found: list[str] = []

    async def one(call: Any) -> None:
        found.append(await call)

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(one, call)
    return found
