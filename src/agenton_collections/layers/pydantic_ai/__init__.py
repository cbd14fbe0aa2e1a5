"""Layers of the Pydantic AI family. Importing this package imports ``pydantic_ai``."""

from agenton_collections.layers.pydantic_ai.bridge import PydanticAIBridgeLayer, PydanticAIBridgeLayerDeps
from agenton_collections.layers.pydantic_ai.history import (
    PYDANTIC_AI_HISTORY_LAYER_TYPE_ID,
    PydanticAIHistoryLayer,
    PydanticAIHistoryRuntimeState,
)

__all__ = [
    "PYDANTIC_AI_HISTORY_LAYER_TYPE_ID",
    "PydanticAIBridgeLayer",
    "PydanticAIBridgeLayerDeps",
    "PydanticAIHistoryLayer",
    "PydanticAIHistoryRuntimeState",
]
