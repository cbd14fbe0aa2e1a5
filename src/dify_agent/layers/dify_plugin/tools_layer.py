"""The layer behind `dify.plugin.tools`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic_ai.tools import Tool

from agenton.compositor import LayerProvider
from agenton.layers import LayerDeps, PydanticAILayer
from dify_agent.backends.transport import OutboundHttp, tenant_segment
from dify_agent.layers.dify_plugin.files import FileResolver, PluginFileError
from dify_agent.layers.dify_plugin.parameters import check_hidden_parameters, prepare_parameters
from dify_agent.layers.dify_plugin.tools_client import PluginDaemonError, invoke_tool
from dify_agent.layers.dify_plugin.tools_config import (
    DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID,
    DifyPluginToolConfig,
    DifyPluginToolParameterType,
    DifyPluginToolsLayerConfig,
)
from dify_agent.layers.execution_context import DifyExecutionContextLayerConfig
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.layers.inner_api import BAD_REQUEST
from dify_agent.layers.lenient_tool import lenient_tool
from dify_agent.layers.outbound_call import json_bytes
from dify_agent.layers.sandbox import SandboxLayer

_CREDENTIALS: Final = "Please check your tool provider credentials"
_UNKNOWN_TOOL: Final = "there is not a tool named {name}"
_INVALID: Final = "tool parameters validation error: {text}, please check your tool parameters"
_FAILED: Final = "tool invoke error: {text}"

_CREDENTIAL_ERRORS: Final = ("Credential", "Authorization", "Unauthorized")
_LOOKUP_ERRORS: Final = ("ToolNotFound", "ProviderNotFound")
_REQUEST_ERRORS: Final = ("BadRequest", "Validate", "Validation")
_FILE: Final = DifyPluginToolParameterType.FILE
_FILES: Final = (DifyPluginToolParameterType.FILES, DifyPluginToolParameterType.SYSTEM_FILES)


class DifyPluginToolsDeps(LayerDeps):
    """``shell`` is needed only where a model may name files of the sandbox."""

    execution_context: DifyExecutionContextLayer
    shell: SandboxLayer[Any, Any, Any, Any] | None


class DifyPluginToolsLayer(PydanticAILayer[DifyPluginToolsDeps, None, DifyPluginToolsLayerConfig]):
    """Contributes the configured tools. What goes wrong in a call becomes a text for the model; only a daemon that
    cannot be reached ends the run (`PluginDaemonUnavailableError`)."""

    type_id: ClassVar[str | None] = DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID

    def __init__(self, outbound: OutboundHttp) -> None:
        """Borrow the process's HTTP clients."""
        self._outbound: Final = outbound

    @property
    def tools(self) -> Sequence[Tool[None]]:
        """One tool per entry of the config, in its order.

        Raises:
            ValueError: a tool lacks a hidden parameter, or tenant or plugin cannot stand in a request.
            RuntimeError: an HTTP client is closed.
        """
        if self._outbound.daemon.is_closed or self._outbound.dify_api.is_closed:
            raise RuntimeError("DifyPluginToolsLayer requires an open shared HTTP client.")
        return [self._tool(config) for config in self.config.tools]

    def _tool(self, config: DifyPluginToolConfig) -> Tool[None]:
        check_hidden_parameters(config)
        context = self.deps.execution_context.config
        tenant_segment(context.tenant_id)
        if not config.plugin_id.isascii() or not config.plugin_id.isprintable():
            raise ValueError(f"Tool '{config.tool_name}': plugin_id must consist of printable ASCII characters.")
        call = _PluginTool(config, context, self._outbound, FileResolver(self._outbound, context, self.deps.shell))
        name = config.visible_name
        return lenient_tool(call.invoke, name, config.description or name, config.parameters_json_schema)


def provider(outbound: OutboundHttp) -> LayerProvider[DifyPluginToolsLayer]:
    """Builds the layer on the process's HTTP clients."""
    return LayerProvider.from_factory(layer_type=DifyPluginToolsLayer, create=lambda _: DifyPluginToolsLayer(outbound))


@dataclass(frozen=True, slots=True)
class _PluginTool:
    config: DifyPluginToolConfig
    context: DifyExecutionContextLayerConfig
    outbound: OutboundHttp
    files: FileResolver

    async def invoke(self, /, **arguments: Any) -> str:
        """Call the tool; the text is what the model reads.

        Raises:
            PluginDaemonUnavailableError: the daemon cannot be reached.
        """
        try:
            return await self._invoke(arguments)
        except PluginDaemonError as error:
            return _observation(error, self.config.visible_name)
        except PluginFileError as error:
            return _FAILED.format(text=error)
        except ValueError as error:
            return _INVALID.format(text=error)

    async def _invoke(self, arguments: dict[str, Any]) -> str:
        config = self.config
        parameters = prepare_parameters(config.parameters, config.runtime_parameters, arguments)
        await self._resolve_files(parameters)
        body: dict[str, Any] = {} if self.context.user_id is None else {"user_id": self.context.user_id}
        body["data"] = {
            "provider": config.provider,
            "tool": config.tool_name,
            "credential_type": config.credential_type,
            "credentials": config.credentials,
            "tool_parameters": parameters,
        }
        return await invoke_tool(
            self.outbound, tenant_id=self.context.tenant_id, plugin_id=config.plugin_id, content=json_bytes(body)
        )

    async def _resolve_files(self, parameters: dict[str, Any]) -> None:
        for declared in self.config.parameters:
            name = declared.name
            if name not in parameters:
                continue
            if declared.type is _FILE:
                parameters[name] = await self._file(name, parameters[name])
            elif declared.type in _FILES:
                parameters[name] = [await self._file(name, value) for value in parameters[name]]

    async def _file(self, name: str, value: Any) -> dict[str, Any]:
        try:
            return await self.files.resolve(value)
        except ValueError as error:
            raise ValueError(f"parameter {name}: {error}") from error


def _observation(error: PluginDaemonError, name: str) -> str:
    kind = error.error_type or ""
    if any(word in kind for word in _CREDENTIAL_ERRORS):
        return _CREDENTIALS
    if any(word in kind for word in _LOOKUP_ERRORS):
        return _UNKNOWN_TOOL.format(name=name)
    if error.status == BAD_REQUEST or any(word in kind for word in _REQUEST_ERRORS):
        return _INVALID.format(text=error)
    return _FAILED.format(text=error)
