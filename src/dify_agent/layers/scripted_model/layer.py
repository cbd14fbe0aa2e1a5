"""The layer behind `scripted.model`."""

from typing import ClassVar, Final, Self

from pydantic_ai.settings import ModelSettings

from agenton.layers import NoLayerDeps, PlainLayer
from dify_agent.layers.scripted_model import SCRIPTED_MODEL_LAYER_TYPE_ID, ScriptedModelLayerConfig
from dify_agent.model.scripted import ScriptedModel


class ScriptedModelLayer(PlainLayer[NoLayerDeps, ScriptedModelLayerConfig]):
    """Gives the run a model that plays its script from the start."""

    type_id: ClassVar[str | None] = SCRIPTED_MODEL_LAYER_TYPE_ID

    def __init__(self, model: ScriptedModel) -> None:
        """Take the run's model, which counts the run's requests."""
        self._model: Final = model

    @classmethod
    def from_config(cls, config: ScriptedModelLayerConfig) -> Self:
        """Build the layer and its model."""
        return cls(ScriptedModel(config.turns))

    def get_model(self, run_id: str) -> ScriptedModel:
        """The run's model: the same one at every call."""
        return self._model

    def get_model_settings(self) -> ModelSettings | None:
        """None: a script needs none."""
        return None
