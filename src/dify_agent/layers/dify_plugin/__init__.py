"""`dify.plugin.*`: what Dify's plugins offer to a run. The layers are in ``llm_layer`` and ``tools_layer``."""

from dify_agent.layers.dify_plugin.llm_config import (
    DIFY_PLUGIN_LLM_LAYER_TYPE_ID,
    DifyPluginCredentialValue,
    DifyPluginLLMLayerConfig,
)
from dify_agent.layers.dify_plugin.tools_config import (
    DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID,
    DifyPluginToolConfig,
    DifyPluginToolCredentialType,
    DifyPluginToolOption,
    DifyPluginToolParameter,
    DifyPluginToolParameterForm,
    DifyPluginToolParameterType,
    DifyPluginToolsLayerConfig,
    DifyPluginToolValue,
)

__all__ = [
    "DIFY_PLUGIN_LLM_LAYER_TYPE_ID",
    "DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID",
    "DifyPluginCredentialValue",
    "DifyPluginLLMLayerConfig",
    "DifyPluginToolConfig",
    "DifyPluginToolCredentialType",
    "DifyPluginToolOption",
    "DifyPluginToolParameter",
    "DifyPluginToolParameterForm",
    "DifyPluginToolParameterType",
    "DifyPluginToolValue",
    "DifyPluginToolsLayerConfig",
]
