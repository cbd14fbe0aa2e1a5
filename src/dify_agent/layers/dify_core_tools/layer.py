"""The layer behind `dify.core.tools`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai.tools import Tool

from agenton.compositor import LayerProvider
from agenton.layers import LayerDeps, PydanticAILayer
from dify_agent.backends.transport import OutboundHttp
from dify_agent.layers.dify_core_tools import (
    DIFY_CORE_TOOLS_LAYER_TYPE_ID,
    DifyCoreToolConfig,
    DifyCoreToolsLayerConfig,
)
from dify_agent.layers.dify_plugin.tools_config import secret_values
from dify_agent.layers.execution_context import DifyExecutionContextLayerConfig
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.layers.inner_api import InnerCallError, post_inner
from dify_agent.layers.lenient_tool import lenient_tool

INVOKE_PATH: Final = "/agent/tools/invoke"
MAX_OBSERVATION_CHARS: Final = 4 << 20
"""The specification sets none; no model has room for more, and the text is stored in the history and in an event."""

_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERRORS: Final = 500

_CALLER: Final = (
    "tenant_id",
    "user_id",
    "user_from",
    "app_id",
    "invoke_from",
    "conversation_id",
    "workflow_id",
    "workflow_run_id",
    "node_id",
    "node_execution_id",
    "agent_id",
    "agent_config_version_id",
)
"""Of the execution context, nulls included."""

_NO_CONTEXT: Final = "Tool is unavailable because required execution context is missing."
_UNAVAILABLE: Final = "Tool is temporarily unavailable. Please continue without it if possible."
_INVALID: Final = "tool parameters validation error: {text}, please check your tool parameters"
_FAILED: Final = "tool invoke error: {text}"
_BY_CODE: Final[Mapping[str, str]] = {
    "app_not_found": "Tool is unavailable because its app does not exist any more.",
    "app_tenant_mismatch": "Tool is unavailable because the app of this run is not the caller's.",
    "agent_tool_declaration_not_found": "there is not a tool named {name}",
    "agent_tool_credential_invalid": "Please check your tool provider credentials",
    "tool_parameters_invalid": _INVALID,
    "agent_tool_invoke_failed": _FAILED,
}

_log = structlog.get_logger()


class DifyCoreToolsDeps(LayerDeps):
    """On whose behalf the tools are run."""

    execution_context: DifyExecutionContextLayer


class DifyCoreToolsLayer(PydanticAILayer[DifyCoreToolsDeps, None, DifyCoreToolsLayerConfig]):
    """Contributes the configured tools. Whatever goes wrong in a call becomes a text for the model."""

    type_id: ClassVar[str | None] = DIFY_CORE_TOOLS_LAYER_TYPE_ID

    def __init__(self, outbound: OutboundHttp) -> None:
        """Borrow the process's HTTP clients."""
        self._outbound: Final = outbound

    @property
    def tools(self) -> Sequence[Tool[None]]:
        """One tool per entry of the config, in its order.

        Raises:
            RuntimeError: the HTTP client is closed.
        """
        if self._outbound.dify_api.is_closed:
            raise RuntimeError("DifyCoreToolsLayer requires an open shared HTTP client.")
        context = self.deps.execution_context.config
        return [_make_tool(_CoreTool(config, context, self._outbound)) for config in self.config.tools]


def provider(outbound: OutboundHttp) -> LayerProvider[DifyCoreToolsLayer]:
    """Builds the layer on the process's HTTP clients."""
    return LayerProvider.from_factory(layer_type=DifyCoreToolsLayer, create=lambda _: DifyCoreToolsLayer(outbound))


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    observation: str = Field(max_length=MAX_OBSERVATION_CHARS)
    messages: list[dict[str, Any]] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _CoreTool:
    config: DifyCoreToolConfig
    context: DifyExecutionContextLayerConfig
    outbound: OutboundHttp

    async def invoke(self, /, **arguments: Any) -> str:
        """Have Dify API run the tool; the text is what the model reads. Never fails the run."""
        context, config = self.context, self.config
        if not (context.user_id and context.user_from and context.app_id):
            return _NO_CONTEXT
        try:
            reply = await post_inner(
                self.outbound,
                INVOKE_PATH,
                self._body(arguments),
                _Reply,
                redactor=self.outbound.redactor.including(secret_values(config.parameters, config.runtime_parameters)),
            )
        except InnerCallError as error:
            # The run goes on, so an operator learns only here of a wrong key or a Dify API that is down.
            _log.warning(
                "core tool could not be run; the run goes on",
                tool=self.config.tool_name,
                tenant_id=context.tenant_id,
                app_id=context.app_id,
                status=error.status,
                code=error.code,
                error=str(error),
                setting=error.setting,
            )
            return _observation(error, self.config.visible_name)
        except ValueError as error:
            return _INVALID.format(text=error)
        return self.outbound.redactor.redact(reply.observation)

    def _body(self, arguments: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        return {
            "caller": {name: getattr(self.context, name) for name in _CALLER},
            "tool": {
                "provider_type": config.provider_type,
                "provider_id": config.provider_id,
                "tool_name": config.tool_name,
                "credential_id": config.credential_id,
                "tool_parameters": arguments,
                "runtime_parameters": config.runtime_parameters,
            },
        }


def _make_tool(tool: _CoreTool) -> Tool[None]:
    name = tool.config.visible_name
    return lenient_tool(tool.invoke, name, tool.config.description or name, tool.config.parameters_json_schema)


def _observation(error: InnerCallError, name: str) -> str:
    status = error.status or 0
    if error.interrupted or status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS:
        return _UNAVAILABLE
    return _BY_CODE.get(error.code or "", _FAILED).format(text=error, name=name)
