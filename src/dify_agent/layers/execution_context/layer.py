"""The layer behind `dify.execution_context`."""

from typing import ClassVar, Self

from agenton.layers import NoLayerDeps, PlainLayer
from dify_agent.layers.execution_context import DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID, DifyExecutionContextLayerConfig


class DifyExecutionContextLayer(PlainLayer[NoLayerDeps, DifyExecutionContextLayerConfig]):
    """Data for the layers that depend on it, in ``config``. Contributes nothing to the model.

    The caller states it, so it is no proof of authorisation.
    """

    type_id: ClassVar[str | None] = DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID

    @classmethod
    def from_config(cls, config: DifyExecutionContextLayerConfig) -> Self:
        """Build the layer; the provider hands it its ``config``."""
        return cls()
