"""The layer behind `dify.plugin.llm`."""

from typing import Any, ClassVar, Final, Literal, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.settings import ModelSettings

from agenton.layers import LayerDeps, PlainLayer
from dify_agent.backends.transport import OutboundHttp
from dify_agent.layers.dify_plugin.llm_config import (
    DIFY_PLUGIN_LLM_LAYER_TYPE_ID,
    DifyPluginCredentialValue,
    DifyPluginLLMLayerConfig,
)
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.model.dify.call import LlmRoute
from dify_agent.model.dify.daemon import DaemonRoute
from dify_agent.model.dify.gateway import GatewayRoute
from dify_agent.model.dify.model import DifyModel

LlmTransport = Literal["gateway", "plugin_daemon"]
"""``DIFY_AGENT_LLM_TRANSPORT`` (decision R8)."""

_CREDENTIALS: Final = TypeAdapter(dict[str, DifyPluginCredentialValue])


class DifyPluginLLMLayerDeps(LayerDeps):
    """On whose behalf the model is asked."""

    execution_context: DifyExecutionContextLayer


class DifyPluginLLMLayer(PlainLayer[DifyPluginLLMLayerDeps, DifyPluginLLMLayerConfig]):
    """Gives the run a model of a Dify plugin."""

    type_id: ClassVar[str | None] = DIFY_PLUGIN_LLM_LAYER_TYPE_ID

    def __init__(self, outbound: OutboundHttp, transport: LlmTransport) -> None:
        """Take the process's outbound clients and the way that the operator has chosen."""
        self._outbound: Final = outbound
        self._transport: Final = transport

    def get_model(self, run_id: str) -> DifyModel:
        """A model that counts this run's calls.

        Raises:
            ValueError: the credentials are needed, and are not a map of plain values. The text does not show them.
            RuntimeError: the process's clients are closed already.
        """
        route = self._route(run_id)
        if route.client.is_closed:
            raise RuntimeError("DifyPluginLLMLayer requires an open shared HTTP client.")
        return DifyModel(self.config.model, route)

    def get_model_settings(self) -> ModelSettings | None:
        """The configured settings without those that are null."""
        settings = self.config.model_settings
        if settings is None:
            return None
        return cast(ModelSettings, {name: value for name, value in settings.items() if value is not None})

    def get_context_budget(self) -> int | None:
        """Tokens that the history may take: four fifths of the context window, and no more than ``max_tokens`` leaves
        of it; None without a window (integrations 3.9).

        Raises:
            ValueError: ``max_tokens`` leaves nothing.
        """
        window = self.config.context_window_tokens
        if window is None:
            return None
        budget = window * 4 // 5
        max_tokens = (self.get_model_settings() or {}).get("max_tokens")
        if max_tokens is not None and max_tokens > 0:
            budget = min(budget, window - max_tokens)
        if budget <= 0:
            raise ValueError("Model max_tokens must leave a positive input context budget.")
        return budget

    def _route(self, run_id: str) -> LlmRoute:
        context = self.deps.execution_context.config
        plugin_id, provider = self.config.plugin_id, self.config.model_provider
        if self._transport == "gateway":
            return GatewayRoute(self._outbound, context, run_id=run_id, plugin_id=plugin_id, model_provider=provider)
        return DaemonRoute(
            self._outbound,
            context,
            plugin_id=plugin_id,
            model_provider=provider,
            credentials=_checked(self.config.credentials),
        )


def _checked(credentials: Any) -> dict[str, DifyPluginCredentialValue]:
    try:
        return _CREDENTIALS.validate_python(credentials, strict=True)
    except ValidationError:
        raise ValueError(
            "credentials of the model layer must be an object of strings, numbers, booleans and nulls"
        ) from None
