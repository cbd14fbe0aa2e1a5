"""Layers of the plain family: strings and callables."""

from agenton_collections.layers.plain.basic import (
    PLAIN_PROMPT_LAYER_TYPE_ID,
    ObjectLayer,
    PromptLayer,
    PromptLayerConfig,
    ToolsLayer,
)
from agenton_collections.layers.plain.dynamic_tools import DynamicToolsLayer, DynamicToolsLayerDeps, with_object

__all__ = [
    "PLAIN_PROMPT_LAYER_TYPE_ID",
    "DynamicToolsLayer",
    "DynamicToolsLayerDeps",
    "ObjectLayer",
    "PromptLayer",
    "PromptLayerConfig",
    "ToolsLayer",
    "with_object",
]
