"""The direct way to the plugin daemon, with credentials that the caller sends (integrations 3.3, decision R8)."""

from collections.abc import Mapping
from typing import Any, Final

import httpx2

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import PLUGIN_DAEMON, OutboundHttp, Peer, plugin_header, tenant_segment
from dify_agent.model.dify.call import JSON_HEADERS, LlmCall, encode
from dify_agent.protocol.execution_context import DifyExecutionContextLayerConfig


class DaemonRoute:
    """The plugin daemon on behalf of one run."""

    def __init__(
        self,
        outbound: OutboundHttp,
        context: DifyExecutionContextLayerConfig,
        *,
        plugin_id: str,
        model_provider: str,
        credentials: Mapping[str, Any],
    ) -> None:
        """Take who asks for which provider.

        Raises:
            ValueError: the tenant cannot stand in a path, or the plugin in a header.
        """
        self._outbound: Final = outbound
        self._user_id: Final = context.user_id
        self._tenant: Final = tenant_segment(context.tenant_id)
        self._plugin_id: Final = plugin_id
        self._headers: Final = {**JSON_HEADERS, **plugin_header(plugin_id)}
        self._model_provider: Final = model_provider
        self._credentials: Final = dict(credentials)
        self._redactor: Final = outbound.redactor.including(self._credentials)

    @property
    def client(self) -> httpx2.AsyncClient:
        """The process's client for the plugin daemon."""
        return self._outbound.daemon

    @property
    def peer(self) -> Peer:
        """For error texts and the log."""
        return PLUGIN_DAEMON

    @property
    def redactor(self) -> Redactor:
        """Knows the keys and the credentials."""
        return self._redactor

    @property
    def provider_name(self) -> str:
        """``DifyPlugin/<plugin id>``."""
        return f"DifyPlugin/{self._plugin_id}"

    def request(self, call: LlmCall) -> tuple[str, dict[str, str], bytes]:
        """The next call of the run."""
        data = {
            "provider": self._model_provider,
            "model_type": "llm",
            "model": call.model,
            "credentials": self._credentials,
            "prompt_messages": [_with_content(message) for message in call.prompt_messages],
            "model_parameters": call.model_parameters,
            "tools": call.tools,
            "stop": call.stop,
            "stream": call.stream,
        }
        user = {} if self._user_id is None else {"user_id": self._user_id}
        url = f"{self._outbound.daemon_url}/plugin/{self._tenant}/dispatch/llm/invoke"
        return url, self._headers, encode({**user, "data": data})


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    """The daemon refuses messages whose content is null."""
    return {**message, "content": ""} if message["content"] is None else message
