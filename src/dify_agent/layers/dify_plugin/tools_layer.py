"""The layer behind `dify.plugin.tools`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import structlog
from pydantic_ai.tools import Tool

from agenton.compositor import LayerProvider
from agenton.layers import LayerDeps, PydanticAILayer
from dify_agent.backends.transport import OutboundHttp, plugin_header, tenant_segment
from dify_agent.errors import setting_of
from dify_agent.layers.dify_plugin.files import FileResolver, PluginFileError
from dify_agent.layers.dify_plugin.parameters import check_hidden_parameters, prepare_parameters
from dify_agent.layers.dify_plugin.tools_client import PluginDaemonError, invoke_tool
from dify_agent.layers.dify_plugin.tools_config import (
    DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID,
    DifyPluginToolConfig,
    DifyPluginToolParameterType,
    DifyPluginToolsLayerConfig,
    secret_values,
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

MAX_FILES: Final = 20
"""Of one call. The specification sets none; each may take requests to Dify API and the sandbox, one after the other."""

_log = structlog.get_logger()


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
        try:
            plugin_header(config.plugin_id)
        except ValueError as error:
            raise ValueError(f"Tool '{config.tool_name}': {error}.") from error
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
        except (PluginDaemonError, PluginFileError, ValueError) as error:
            self._tell_operators(error)
            return _observation(error, self.config.visible_name)

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
            self.outbound,
            tenant_id=self.context.tenant_id,
            plugin_id=config.plugin_id,
            content=json_bytes(body),
            redactor=self.outbound.redactor.including(
                [config.credentials, secret_values(config.parameters, config.runtime_parameters)]
            ),
        )

    def _tell_operators(self, error: Exception) -> None:
        """A line for what no model, user or plugin can mend: the run goes on, so it is told nowhere else."""
        setting = setting_of(error)
        if setting is None:
            return
        _log.warning(
            "plugin tool could not be run; the run goes on",
            tool=self.config.tool_name,
            plugin_id=self.config.plugin_id,
            tenant_id=self.context.tenant_id,
            app_id=self.context.app_id,
            error=str(error),
            setting=setting,
        )

    async def _resolve_files(self, parameters: dict[str, Any]) -> None:
        self._check_files(parameters)
        for declared in self.config.parameters:
            name = declared.name
            if name not in parameters:
                continue
            if declared.type is _FILE:
                parameters[name] = await self._file(name, parameters[name])
            elif declared.type in _FILES:
                parameters[name] = [await self._file(name, value) for value in parameters[name]]

    def _check_files(self, parameters: dict[str, Any]) -> None:
        left = MAX_FILES
        for declared in self.config.parameters:
            if declared.name in parameters and declared.type in (_FILE, *_FILES):
                left -= 1 if declared.type is _FILE else len(parameters[declared.name])
                if left < 0:
                    raise ValueError(f"parameter {declared.name}: one call takes at most {MAX_FILES} files")

    async def _file(self, name: str, value: Any) -> dict[str, Any]:
        try:
            return await self.files.resolve(value)
        except ValueError as error:
            raise ValueError(f"parameter {name}: {error}") from error


def _observation(error: PluginDaemonError | PluginFileError | ValueError, name: str) -> str:
    if isinstance(error, PluginFileError):
        return _FAILED.format(text=error)
    if isinstance(error, ValueError):
        return _INVALID.format(text=error)
    kind = error.error_type or ""
    if any(word in kind for word in _CREDENTIAL_ERRORS):
        return _CREDENTIALS
    if any(word in kind for word in _LOOKUP_ERRORS):
        return _UNKNOWN_TOOL.format(name=name)
    if error.status == BAD_REQUEST or any(word in kind for word in _REQUEST_ERRORS):
        return _INVALID.format(text=error)
    return _FAILED.format(text=error)
