"""Config of `dify.plugin.tools` (specification: layers 2.12, integrations 4.1)."""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from agenton.layers import LayerConfig
from dify_agent.layers.dify_plugin.llm_config import DifyPluginCredentialValue

__all__ = [
    "DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID",
    "DifyPluginCredentialValue",
    "DifyPluginToolConfig",
    "DifyPluginToolCredentialType",
    "DifyPluginToolOption",
    "DifyPluginToolParameter",
    "DifyPluginToolParameterForm",
    "DifyPluginToolParameterType",
    "DifyPluginToolValue",
    "DifyPluginToolsLayerConfig",
]

DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID: Final = "dify.plugin.tools"

DifyPluginToolValue: TypeAlias = JsonValue
DifyPluginToolCredentialType = Literal["api-key", "oauth2", "unauthorized"]


class DifyPluginToolParameterType(StrEnum):
    """What a parameter is; decides how an argument is cast."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    SELECT = "select"
    SECRET_INPUT = "secret-input"
    FILE = "file"
    FILES = "files"
    APP_SELECTOR = "app-selector"
    MODEL_SELECTOR = "model-selector"
    ANY = "any"
    DYNAMIC_SELECT = "dynamic-select"
    CHECKBOX = "checkbox"
    SYSTEM_FILES = "system-files"
    ARRAY = "array"
    OBJECT = "object"


class DifyPluginToolParameterForm(StrEnum):
    """Who fills a parameter in: only ``llm`` ones are the model's."""

    SCHEMA = "schema"
    FORM = "form"
    LLM = "llm"


def _value_of(item: Any) -> Any:
    """A caller's declarations may hold enums of its own."""
    return item.value if isinstance(item, Enum) else item


def _text_of(item: Any) -> str:
    return str(_value_of(item))


class DifyPluginToolOption(BaseModel):
    """One choice of a ``select``; a value that is no text becomes one."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    value: Annotated[str, BeforeValidator(_text_of)]


class DifyPluginToolParameter(BaseModel):
    """How a plugin declares one parameter. Unknown members are ignored; objects with these attributes do as well."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    name: str
    type: Annotated[DifyPluginToolParameterType, BeforeValidator(_value_of)]
    form: Annotated[DifyPluginToolParameterForm, BeforeValidator(_value_of)]
    required: bool = False
    default: DifyPluginToolValue = None
    llm_description: str | None = None
    input_schema: dict[str, JsonValue] | None = None
    options: list[DifyPluginToolOption] = Field(default_factory=list)


def no_parameters() -> dict[str, JsonValue]:
    """The schema of a tool that takes nothing."""
    return {"type": "object", "properties": {}, "required": []}


def secret_values(declared: Iterable[DifyPluginToolParameter], values: Mapping[str, Any]) -> list[Any]:
    """Those of ``values`` that are declared to be secret."""
    return [values.get(each.name) for each in declared if each.type is DifyPluginToolParameterType.SECRET_INPUT]


class DifyPluginToolConfig(BaseModel):
    """One tool of a plugin, with the credentials it is called with."""

    # A failed run keeps the error's text, which must not hold credentials.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    plugin_id: str
    """Such as ``langgenius/google``."""
    provider: str
    tool_name: str
    credential_type: DifyPluginToolCredentialType
    name: str | None = None
    """What the model calls it; null: ``tool_name``."""
    description: str | None = None
    """What the model reads about it; null: its visible name."""
    credentials: Annotated[dict[str, DifyPluginCredentialValue], Field(repr=False)] = Field(default_factory=dict)
    runtime_parameters: Annotated[dict[str, DifyPluginToolValue], Field(repr=False)] = Field(default_factory=dict)
    """Values that the model does not see; its arguments override those of the same name."""
    parameters: list[DifyPluginToolParameter] = Field(default_factory=list)
    parameters_json_schema: dict[str, JsonValue] = Field(default_factory=no_parameters)
    """What the model sees of the parameters, unchanged."""

    @property
    def visible_name(self) -> str:
        """The name in the model's tool list."""
        return self.name or self.tool_name


class DifyPluginToolsLayerConfig(LayerConfig):
    """The tools, in the order the model sees them."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    tools: list[DifyPluginToolConfig] = Field(default_factory=list)
