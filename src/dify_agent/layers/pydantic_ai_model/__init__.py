"""`pydantic_ai.model`: one of Pydantic AI's models, by name. Keys come from the server's environment."""

from typing import Annotated, Final

from pydantic import Field, JsonValue

from agenton.layers import LayerConfig

__all__ = ["PYDANTIC_AI_MODEL_LAYER_TYPE_ID", "PydanticAIModelLayerConfig"]

PYDANTIC_AI_MODEL_LAYER_TYPE_ID: Final = "pydantic_ai.model"


class PydanticAIModelLayerConfig(LayerConfig):
    """Which model the run uses. The layer must be named ``llm``."""

    model: Annotated[str, Field(min_length=1)]
    """``<provider>:<model>`` with provider ``openai``, ``openai-chat``, ``openai-responses`` or ``anthropic``; or
    ``test``."""
    model_settings: dict[str, JsonValue] | None = None
    """Pydantic AI's ``ModelSettings``, sent with each request."""
    base_url: str | None = None
    """Another endpoint of the provider; only one that the operator lists in ``DIFY_AGENT_MODEL_BASE_URLS``."""
