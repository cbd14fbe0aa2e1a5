"""`scripted.model`: a model that says what the request tells it to. For demos, load and tests."""

from typing import Annotated, Final

from pydantic import FailFast, Field

from agenton.layers import LayerConfig
from dify_agent.model.script import ScriptedToolCall, ScriptedTurn

__all__ = ["SCRIPTED_MODEL_LAYER_TYPE_ID", "ScriptedModelLayerConfig", "ScriptedToolCall", "ScriptedTurn"]

MAX_TURNS: Final = 10_000
SCRIPTED_MODEL_LAYER_TYPE_ID: Final = "scripted.model"


class ScriptedModelLayerConfig(LayerConfig):
    """The script: one turn per model request of the run, the last one repeating. The layer must be named ``llm``."""

    turns: Annotated[list[ScriptedTurn], Field(min_length=1, max_length=MAX_TURNS), FailFast()]
