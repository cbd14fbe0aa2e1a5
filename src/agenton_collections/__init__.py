"""Ready-made layers for ``agenton``.

The root holds what needs no agent framework; ``agenton_collections.layers.pydantic_ai`` and
``agenton_collections.transformers.pydantic_ai`` import Pydantic AI and are imported by name.
"""

from agenton.layers import (
    AllPromptTypes,
    AllToolTypes,
    PlainLayer,
    PlainPrompt,
    PlainPromptType,
    PlainTool,
    PlainToolType,
    PydanticAILayer,
    PydanticAIPrompt,
    PydanticAIPromptType,
    PydanticAITool,
    PydanticAIToolType,
)
from agenton_collections.layers.plain import (
    DynamicToolsLayer,
    DynamicToolsLayerDeps,
    ObjectLayer,
    PromptLayer,
    ToolsLayer,
    with_object,
)

__all__ = [
    "AllPromptTypes",
    "AllToolTypes",
    "DynamicToolsLayer",
    "DynamicToolsLayerDeps",
    "ObjectLayer",
    "PlainLayer",
    "PlainPrompt",
    "PlainPromptType",
    "PlainTool",
    "PlainToolType",
    "PromptLayer",
    "PydanticAILayer",
    "PydanticAIPrompt",
    "PydanticAIPromptType",
    "PydanticAITool",
    "PydanticAIToolType",
    "ToolsLayer",
    "with_object",
]
