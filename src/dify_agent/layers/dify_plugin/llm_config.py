"""Config of the layer type ``dify.plugin.llm`` (layers 2.11, integrations 3.1)."""

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, JsonValue
from typing_extensions import TypedDict

from agenton.layers import LayerConfig

DIFY_PLUGIN_LLM_LAYER_TYPE_ID: Final = "dify.plugin.llm"

DifyPluginCredentialValue = str | int | float | bool | None
"""One credential of a provider."""


class DifyModelSettings(TypedDict, total=False):
    """Pydantic AI's ``ModelSettings``: a closed set of keys. A parameter that is not one of them travels in
    ``extra_body``. A null counts as absent."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    timeout: float | None
    request_timeout: float | None
    first_event_timeout: float | None
    parallel_tool_calls: bool | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: dict[str, int] | None
    stop_sequences: list[str] | None
    extra_headers: dict[str, str] | None
    extra_body: dict[str, JsonValue] | None
    max_retries: int | None
    framing_announcement: JsonValue
    tool_choice: JsonValue
    thinking: JsonValue
    citations: JsonValue
    cache: JsonValue
    service_tier: JsonValue


class DifyPluginLLMLayerConfig(LayerConfig):
    """Which model of which plugin the run uses. The layer must be named ``llm``."""

    # A validation error becomes the text of a failed run, and credentials must not stand in it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    plugin_id: str
    """Such as ``langgenius/openai``."""
    model_provider: str
    """Provider inside the plugin, such as ``openai``; or the whole name with organisation and plugin."""
    model: str
    credentials: Annotated[Any, Field(repr=False)] = Field(default_factory=dict)
    """A map of `DifyPluginCredentialValue`, sent to the provider where the server talks to the plugin daemon itself. A
    server that asks the Dify API takes anything here and drops it."""
    model_settings: DifyModelSettings | None = None
    context_window_tokens: Annotated[int, Field(gt=0)] | None = None
    """Size of the model's context, for compaction; never sent to the provider."""
