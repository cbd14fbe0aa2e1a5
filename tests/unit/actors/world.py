"""A supervisor over the fake store, with layer types whose behaviour a test scripts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import trio
from tests.unit.actors.fake_store import FakeRun, FakeStore
from trio.testing import wait_all_tasks_blocked

from agenton.compositor import LayerProvider
from agenton.layers import EmptyLayerConfig, EmptyRuntimeState, NoLayerDeps, PlainLayer
from dify_agent.actors.environment import CoalescingPolicy, RunBounds, RunEnvironment
from dify_agent.actors.publisher import Publisher
from dify_agent.events.flusher import FlushTimer
from dify_agent.layers.registry import create_layer_providers
from dify_agent.model.provider import ModelRegistry, open_model_registry
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest
from dify_agent.store.base import Owner
from dify_agent.supervisor.admission import NO_LIMITS, RunLimits
from dify_agent.supervisor.serve import Supervisor
from dify_agent.supervisor.specs import ServiceSpec

Hook = Callable[[], Awaitable[None]]

BOUNDS = RunBounds(
    enter_timeout_seconds=300,
    run_timeout_seconds=3600,
    exit_timeout_seconds=60,
    finalize_timeout_seconds=30,
    cancel_timeout_seconds=10,
)
COALESCING = CoalescingPolicy(enabled=True, interval_seconds=0.1, max_chars=4096)


async def nothing() -> None:
    """The default hook."""


@dataclass
class Hooks:
    """What the layer ``test.hooks`` does at each moment; a test replaces what it needs."""

    enter: Hook = nothing
    create: Hook = nothing
    suspend: Hook = nothing
    leave: Hook = nothing
    log: list[str] = field(default_factory=list)
    nursery: bool = False
    """Open a nursery with a background task around the body, as a backend lease would."""


class HooksLayer(PlainLayer[NoLayerDeps, EmptyLayerConfig, EmptyRuntimeState]):
    """A layer that does what its hooks say."""

    type_id: ClassVar[str | None] = "test.hooks"

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    @asynccontextmanager
    async def resource_context(self) -> AsyncIterator[None]:
        await self._hooks.enter()
        self._hooks.log.append("acquired")
        try:
            if self._hooks.nursery:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    yield
                    nursery.cancel_scope.cancel()
            else:
                yield
        finally:
            await self._hooks.leave()
            self._hooks.log.append("released")

    async def on_context_create(self) -> None:
        await self._hooks.create()
        self._hooks.log.append("create")

    async def on_context_suspend(self) -> None:
        await self._hooks.suspend()
        self._hooks.log.append("suspend")

    async def on_context_delete(self) -> None:
        self._hooks.log.append("delete")


@dataclass
class World:
    """One replica in memory."""

    supervisor: Supervisor
    store: FakeStore
    hooks: Hooks
    publisher: Publisher
    environment: RunEnvironment
    nursery: trio.Nursery
    """Cancelling it tears the supervisor down."""

    async def create(self, *layers: dict[str, Any], **members: Any) -> str:
        """Create a run of the given layers."""
        return await self.supervisor.create(request(*layers, **members))

    async def cancel(self, run_id: str, reason: str = "because") -> None:
        """Cancel through the front door."""
        await self.supervisor.cancel(run_id, CancelRunRequest(reason=reason))

    def run(self, run_id: str) -> FakeRun:
        """What the store holds of a run."""
        return self.store.runs[run_id]

    async def ended(self, run_id: str) -> FakeRun:
        """The run, once it is not running any more."""
        while self.run(run_id).record.status == "running":
            await self.store.sealed.park()
        await wait_all_tasks_blocked()
        return self.run(run_id)


def request(*layers: dict[str, Any], **members: Any) -> CreateRunRequest:
    """A create request with these layers."""
    return CreateRunRequest.model_validate({"composition": {"layers": list(layers)}, **members})


def prompt(text: str = "hello") -> dict[str, Any]:
    """A user prompt."""
    return {"name": "prompt", "type": "plain.prompt", "config": {"user": text}}


def model(*turns: dict[str, Any]) -> dict[str, Any]:
    """A scripted model."""
    return {"name": "llm", "type": "scripted.model", "config": {"turns": list(turns)}}


def tools(*entries: dict[str, Any]) -> dict[str, Any]:
    """Scripted tools."""
    return {"name": "tools", "type": "scripted.tools", "config": {"tools": list(entries)}}


def history() -> dict[str, Any]:
    """The history layer."""
    return {"name": "history", "type": "pydantic_ai.history"}


def hooked() -> dict[str, Any]:
    """The layer that a test scripts."""
    return {"name": "hooks", "type": "test.hooks"}


def text(value: str = "hi") -> dict[str, Any]:
    """A model turn."""
    return {"text": value}


@asynccontextmanager
async def world(
    *,
    queue_bytes: int = 1 << 20,
    outage_seconds: float = 60,
    services: Sequence[ServiceSpec] = (),
    providers: Sequence[LayerProvider[Any]] = (),
    models: ModelRegistry | None = None,
    limits: RunLimits = NO_LIMITS,
    store: FakeStore | None = None,
    owner: str = "me",
    **bounds: float,
) -> AsyncIterator[World]:
    """A running supervisor. Leaving cancels it, as a crash of the root would.

    Opening a model registry is what takes the time here: a test that needs many worlds brings its own. Two worlds on
    one store, with owners of two names, are two replicas.
    """
    store, hooks = store or FakeStore(), Hooks()
    publisher = Publisher(store, queue_bytes=queue_bytes, outage_seconds=outage_seconds, linger_seconds=30)
    async with open_model_registry() if models is None else nullcontext(models) as registry:
        own = LayerProvider.from_factory(layer_type=HooksLayer, create=lambda _config: HooksLayer(hooks))

        def environment(on_finished: Callable[[str], None]) -> RunEnvironment:
            return RunEnvironment(
                store=store,
                owner=Owner(owner, 1),
                publisher=publisher,
                flush_timer=FlushTimer(),
                providers=(*create_layer_providers(models=registry, scripted_layers=True), own, *providers),
                bounds=replace(BOUNDS, **bounds),
                coalescing=COALESCING,
                tool_concurrency=16,
                tool_threads=trio.CapacityLimiter(4),
                on_finished=on_finished,
            )

        supervisor = Supervisor(environment, lease_seconds=15, retention_seconds=7200, limits=limits, services=services)
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.serve)
            yield World(supervisor, store, hooks, publisher, supervisor.environment, nursery)
            nursery.cancel_scope.cancel()
