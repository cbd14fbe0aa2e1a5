"""The graph of a composition: its config DTOs, its nodes, and the checks that need no layer instance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from agenton.compositor.providers import LayerProvider, as_provider

if TYPE_CHECKING:
    from agenton.compositor import LayerProviderInput

CONFIG_SCHEMA_VERSION = 1


class LayerNodeConfig(BaseModel):
    """One node of a graph config. Layer configs and runtime state are given per run, not here."""

    model_config = ConfigDict(extra="forbid")

    name: str
    type: str
    deps: Mapping[str, str] = Field(default_factory=dict)
    metadata: Mapping[str, JsonValue] = Field(default_factory=dict)


class CompositorConfig(BaseModel):
    """A whole graph config; the order of ``layers`` is the order of entry."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = CONFIG_SCHEMA_VERSION
    layers: list[LayerNodeConfig]


CompositorConfigValue: TypeAlias = CompositorConfig | JsonValue | Mapping[str, object] | bytes
"""What is accepted as a graph config: the model, its JSON value, a mapping, or JSON text."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class LayerNode:
    """One named layer of a composition.

    ``deps`` maps a dependency name of the layer to the name of an earlier node. ``metadata`` is descriptive: it
    reaches neither factories nor snapshots.
    """

    name: str
    provider: LayerProvider
    deps: Mapping[str, str]
    metadata: Mapping[str, JsonValue]

    def __init__(
        self,
        name: str,
        implementation: "LayerProviderInput",
        *,
        deps: Mapping[str, str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Describe a node.

        Raises:
            ValueError: the name is empty.
            TypeError: ``implementation`` is neither a layer class nor a provider.
        """
        if not name:
            raise ValueError("Layer node name must not be empty.")
        values = {
            "name": name,
            "provider": as_provider(implementation),
            "deps": MappingProxyType(dict(deps or {})),
            "metadata": MappingProxyType(dict(metadata or {})),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)


def check_nodes(nodes: Sequence[LayerNode]) -> None:
    """Check names and dependencies of a node list.

    Raises:
        ValueError: a name occurs twice, or a node's ``deps`` use an undeclared key, an absent node or a later one.
    """
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise ValueError(f"Duplicate layer name '{node.name}'.")
        names.add(node.name)
    earlier: set[str] = set()
    for node in nodes:
        _check_deps(node, names, earlier)
        earlier.add(node.name)


def _check_deps(node: LayerNode, names: set[str], earlier: set[str]) -> None:
    unknown = sorted(node.deps.keys() - node.provider.layer_type.dependency_names())
    if unknown:
        raise ValueError(f"Layer '{node.name}' declares unknown dependency keys: {', '.join(unknown)}.")
    undefined = sorted(set(node.deps.values()) - names)
    if undefined:
        raise ValueError(f"Layer '{node.name}' depends on undefined layer names: {', '.join(undefined)}.")
    misplaced = sorted(f"{dep}->{target}" for dep, target in node.deps.items() if target not in earlier)
    if misplaced:
        raise ValueError(
            f"Layer '{node.name}' dependencies must target preceding layer nodes in compositor order: "
            f"{', '.join(misplaced)}."
        )
