"""Composing layers into a run: graph, providers, entry and exit, session snapshots, aggregation."""

from collections.abc import Mapping

from typing_extensions import TypeAliasType

from agenton.compositor.compositor import Compositor
from agenton.compositor.graph import CompositorConfig, CompositorConfigValue, LayerNode, LayerNodeConfig
from agenton.compositor.providers import LayerFactory, LayerProvider
from agenton.compositor.run import CompositorRun, LayerRunSlot
from agenton.compositor.snapshot import (
    CompositorSessionSnapshot,
    CompositorSessionSnapshotValue,
    LayerSessionSnapshot,
)
from agenton.compositor.transformers import CompositorTransformer, CompositorTransformerKwargs
from agenton.layers.base import AnyLayer, LayerConfigValue

__all__ = [
    "Compositor",
    "CompositorConfig",
    "CompositorConfigValue",
    "CompositorRun",
    "CompositorSessionSnapshot",
    "CompositorSessionSnapshotValue",
    "CompositorTransformer",
    "CompositorTransformerKwargs",
    "LayerFactory",
    "LayerNode",
    "LayerNodeConfig",
    "LayerProvider",
    "LayerRunSlot",
    "LayerSessionSnapshot",
]

# These two stand here and not beside LayerProvider because callers see this module as their __module__, and an alias
# takes it from where it is made.
LayerConfigInput = TypeAliasType("LayerConfigInput", LayerConfigValue | Mapping[str, object] | str | bytes | None)
"""What is accepted as a layer's config; ``None`` means ``{}``, ``str`` and ``bytes`` are JSON text."""

LayerProviderInput = TypeAliasType("LayerProviderInput", type[AnyLayer] | LayerProvider)
"""What is accepted as the implementation of a node."""
