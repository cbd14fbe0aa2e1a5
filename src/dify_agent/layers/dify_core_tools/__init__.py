"""`dify.core.tools`: Dify's own tools, run by Dify API (specification: layers 2.13, integrations 5)."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from agenton.layers import LayerConfig
from dify_agent.layers.dify_plugin.tools_config import DifyPluginToolParameter, no_parameters

__all__ = [
    "DIFY_CORE_TOOLS_LAYER_TYPE_ID",
    "DifyCoreToolConfig",
    "DifyCoreToolProviderType",
    "DifyCoreToolsLayerConfig",
]

DIFY_CORE_TOOLS_LAYER_TYPE_ID: Final = "dify.core.tools"

DifyCoreToolProviderType = Literal["plugin", "builtin", "api", "workflow", "mcp"]


class DifyCoreToolConfig(BaseModel):
    """One tool. Dify API knows its credentials; none are in the request."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    provider_type: DifyCoreToolProviderType
    provider_id: str
    tool_name: str
    credential_id: str | None = None
    name: str | None = None
    """What the model calls it; null: ``tool_name``."""
    description: str | None = None
    """What the model reads about it; null: its visible name."""
    runtime_parameters: Annotated[dict[str, JsonValue], Field(repr=False)] = Field(default_factory=dict)
    """Values that the model does not see."""
    parameters: list[DifyPluginToolParameter] = Field(default_factory=list)
    """Accepted and not used: Dify API casts the arguments."""
    parameters_json_schema: dict[str, JsonValue] = Field(default_factory=no_parameters)
    """What the model sees of the parameters, unchanged."""

    @property
    def visible_name(self) -> str:
        """The name in the model's tool list."""
        return self.name or self.tool_name


class DifyCoreToolsLayerConfig(LayerConfig):
    """The tools, in the order the model sees them."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    tools: list[DifyCoreToolConfig] = Field(default_factory=list)
