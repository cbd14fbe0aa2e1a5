"""A layer that writes down what happens to it and fails where it is told to. Used by the tests beside it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton.layers import LayerDeps, NoLayerDeps, PlainLayer
from agenton.layers.schemas import EmptyLayerConfig


class CounterState(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    count: int = 0


@dataclass(eq=False)
class Journal:
    """Shared by the layers of one test: the steps in order, the errors to raise, and what resource exits were given."""

    steps: list[str] = field(default_factory=list)
    failures: dict[str, BaseException] = field(default_factory=dict)
    seen: dict[str, BaseException | None] = field(default_factory=dict)
    swallow: set[str] = field(default_factory=set)
    before: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.before:
            self.before[name]()
        if name in self.failures:
            raise self.failures[name]


@dataclass(eq=False)
class RecordingResource:
    """Resource context of a recording layer; answers with true where the journal says to swallow."""

    name: str
    journal: Journal

    async def __aenter__(self) -> None:
        self.journal.step(f"{self.name}.resource-in")

    async def __aexit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> bool:
        self.journal.seen[self.name] = exc
        self.journal.step(f"{self.name}.resource-out")
        return self.name in self.journal.swallow


class RecordingMixin:
    """Lifecycle of a recording layer; steps are named ``<name>.<what>``."""

    name: str
    journal: Journal

    def resource_context(self) -> "RecordingResource":
        return RecordingResource(self.name, self.journal)

    async def on_context_create(self) -> None:
        self.journal.step(f"{self.name}.create")

    async def on_context_resume(self) -> None:
        self.journal.step(f"{self.name}.resume")

    async def on_context_suspend(self) -> None:
        self.journal.step(f"{self.name}.suspend")

    async def on_context_delete(self) -> None:
        self.journal.step(f"{self.name}.delete")


@dataclass(eq=False)
class Recorder(RecordingMixin, PlainLayer[NoLayerDeps, EmptyLayerConfig, CounterState]):
    name: str
    journal: Journal


class ChildDeps(LayerDeps):
    parent: Recorder


@dataclass(eq=False)
class Child(RecordingMixin, PlainLayer[ChildDeps]):
    name: str
    journal: Journal


def recorder_node(name: str, journal: Journal) -> LayerNode:
    return LayerNode(
        name, LayerProvider.from_factory(layer_type=Recorder, create=lambda config: Recorder(name, journal))
    )


def recorders(journal: Journal, *names: str) -> Compositor:
    return Compositor([recorder_node(name, journal) for name in names])


def family(journal: Journal) -> Compositor:
    """``parent`` and ``child``, the second depending on the first."""
    child = LayerProvider.from_factory(layer_type=Child, create=lambda config: Child("child", journal))
    return Compositor([recorder_node("parent", journal), LayerNode("child", child, deps={"parent": "parent"})])
