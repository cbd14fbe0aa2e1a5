"""The layer behind `pydantic_ai.model`."""

from typing import Any, ClassVar, Final, cast

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agenton.layers import NoLayerDeps, PlainLayer
from dify_agent.layers.pydantic_ai_model import PYDANTIC_AI_MODEL_LAYER_TYPE_ID, PydanticAIModelLayerConfig
from dify_agent.model.provider import ModelRegistry


class PydanticAIModelLayer(PlainLayer[NoLayerDeps, PydanticAIModelLayerConfig]):
    """Gives the run a model on the process's own SDK clients."""

    type_id: ClassVar[str | None] = PYDANTIC_AI_MODEL_LAYER_TYPE_ID

    def __init__(self, models: ModelRegistry) -> None:
        """Take the registry, which outlives every run."""
        self._models: Final = models

    def get_model(self, run_id: str) -> Model[Any]:
        """The configured model.

        Raises:
            ModelNotAllowedError: the base URL is not one of the operator's.
            ValueError: the name is not one this server serves.
            RuntimeError: the environment has no key for the provider.
        """
        return self._models.get_model(self.config.model, self.config.base_url)

    def get_model_settings(self) -> ModelSettings | None:
        """The configured settings, unchanged."""
        settings = self.config.model_settings
        return None if settings is None else cast(ModelSettings, dict(settings))
