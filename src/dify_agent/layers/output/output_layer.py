"""The layer behind `dify.output`."""

from typing import ClassVar, Final, Self

from agenton.layers import NoLayerDeps, PlainLayer
from dify_agent.layers.output import DIFY_OUTPUT_LAYER_TYPE_ID, DifyOutputLayerConfig
from dify_agent.layers.output.contract import build_contract
from dify_agent.loop.port import OutputContract


class DifyOutputLayer(PlainLayer[NoLayerDeps, DifyOutputLayerConfig]):
    """Fixes the run's output. It has no prompts, tools or state: a resumed run names it again."""

    type_id: ClassVar[str | None] = DIFY_OUTPUT_LAYER_TYPE_ID

    def __init__(self, config: DifyOutputLayerConfig) -> None:
        """Take the config; whether its schema can be served shows in `output_contract`."""
        self._config: Final = config

    @classmethod
    def from_config(cls, config: DifyOutputLayerConfig) -> Self:
        """Build the layer; its schema is looked at after entry, so that a bad one fails the run, not the request."""
        return cls(config)

    def output_contract(self) -> OutputContract:
        """The contract for the agent loop, built anew at each call.

        Raises:
            ValueError: the schema is none, or has references that are not supported.
        """
        return build_contract(self._config)
