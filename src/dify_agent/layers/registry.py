"""Which layer types this server knows, and what the rest of the runtime needs to name of them."""

from typing import Any, Final

from agenton.compositor import LayerProvider
from agenton_collections.layers.plain import PromptLayer
from agenton_collections.layers.pydantic_ai import PydanticAIHistoryLayer
from agenton_collections.transformers.pydantic_ai import PYDANTIC_AI_TRANSFORMERS
from dify_agent.backends.transport import OutboundHttp
from dify_agent.layers.ask_human.layer import DifyAskHumanLayer
from dify_agent.layers.config.layer import DifyConfigLayer
from dify_agent.layers.dify_core_tools import layer as core_tools_layer
from dify_agent.layers.dify_plugin import tools_layer
from dify_agent.layers.dify_plugin.llm_layer import DifyPluginLLMLayer, LlmTransport
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.layers.knowledge import layer as knowledge_layer
from dify_agent.layers.output.output_layer import DifyOutputLayer
from dify_agent.layers.pydantic_ai_model.layer import PydanticAIModelLayer
from dify_agent.layers.scripted_model import SCRIPTED_MODEL_LAYER_TYPE_ID
from dify_agent.layers.scripted_model.layer import ScriptedModelLayer
from dify_agent.layers.scripted_tools import SCRIPTED_TOOLS_LAYER_TYPE_ID
from dify_agent.layers.scripted_tools.layer import ScriptedToolsLayer
from dify_agent.layers.user_prompt.layer import DifyUserPromptLayer
from dify_agent.loop.port import ModelLayer, OutputLayer
from dify_agent.model.provider import ModelRegistry

__all__ = [
    "ADMITTED_BY",
    "PYDANTIC_AI_TRANSFORMERS",
    "ModelLayer",
    "OutputLayer",
    "PydanticAIHistoryLayer",
    "create_layer_providers",
]


ADMITTED_BY: Final = {
    SCRIPTED_MODEL_LAYER_TYPE_ID: "DIFY_AGENT_SCRIPTED_LAYERS",
    SCRIPTED_TOOLS_LAYER_TYPE_ID: "DIFY_AGENT_SCRIPTED_LAYERS",
}
"""Types that are registered only where a setting says so, and its variable."""


def create_layer_providers(
    *,
    models: ModelRegistry,
    scripted_layers: bool,
    outbound: OutboundHttp | None = None,
    llm_transport: LlmTransport = "gateway",
) -> tuple[LayerProvider[Any], ...]:
    """One provider per type id.

    Without ``scripted_layers`` (``DIFY_AGENT_SCRIPTED_LAYERS``) the scripted types are unknown, without ``outbound``
    those that call Dify: a run that names one fails as for any type that is not registered.
    """
    providers: list[LayerProvider[Any]] = [
        LayerProvider.from_layer_type(PromptLayer),
        LayerProvider.from_layer_type(PydanticAIHistoryLayer),
        LayerProvider.from_layer_type(DifyUserPromptLayer),
        LayerProvider.from_layer_type(DifyExecutionContextLayer),
        LayerProvider.from_layer_type(DifyConfigLayer),
        LayerProvider.from_layer_type(DifyAskHumanLayer),
        LayerProvider.from_layer_type(DifyOutputLayer),
        LayerProvider.from_factory(layer_type=PydanticAIModelLayer, create=lambda _: PydanticAIModelLayer(models)),
    ]
    if outbound is not None:
        providers.extend(_dify_providers(outbound, llm_transport))
    if scripted_layers:
        providers.append(LayerProvider.from_layer_type(ScriptedModelLayer))
        providers.append(LayerProvider.from_layer_type(ScriptedToolsLayer))
    return tuple(providers)


def _dify_providers(outbound: OutboundHttp, llm_transport: LlmTransport) -> list[LayerProvider[Any]]:
    return [
        LayerProvider.from_factory(
            layer_type=DifyPluginLLMLayer, create=lambda _: DifyPluginLLMLayer(outbound, llm_transport)
        ),
        tools_layer.provider(outbound),
        core_tools_layer.provider(outbound),
        knowledge_layer.provider(outbound),
    ]
