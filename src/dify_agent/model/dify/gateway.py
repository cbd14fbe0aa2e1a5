"""The way through the Dify API's LLM gateway, which keeps the providers' credentials (integrations 3.2)."""

from typing import Final
from uuid import NAMESPACE_URL, uuid5

import httpx2
from pydantic_ai.exceptions import UserError

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import DIFY_API, OutboundHttp, Peer
from dify_agent.model.dify.call import JSON_HEADERS, LlmCall, encode
from dify_agent.protocol.execution_context import DifyExecutionContextLayerConfig

GATEWAY_PATH: Final = "/inner/api/agent/llm/invoke"
_REQUIRED: Final = ("user_id", "user_from", "app_id")
_FULL_PROVIDER_SLASHES: Final = 2


class GatewayRoute:
    """The gateway on behalf of one run."""

    def __init__(
        self,
        outbound: OutboundHttp,
        context: DifyExecutionContextLayerConfig,
        *,
        run_id: str,
        plugin_id: str,
        model_provider: str,
    ) -> None:
        self._outbound: Final = outbound
        self._context: Final = context
        self._run_id: Final = run_id
        self._provider: Final = full_provider(plugin_id, model_provider)
        self._provider_name: Final = f"DifyAPI/{plugin_id}"
        self._calls = 0

    @property
    def client(self) -> httpx2.AsyncClient:
        """The process's client for the Dify API."""
        return self._outbound.dify_api

    @property
    def peer(self) -> Peer:
        """For error texts and the log."""
        return DIFY_API

    @property
    def redactor(self) -> Redactor:
        """Knows the keys."""
        return self._outbound.redactor

    @property
    def provider_name(self) -> str:
        """``DifyAPI/<plugin id>``."""
        return self._provider_name

    def request(self, call: LlmCall) -> tuple[str, dict[str, str], bytes]:
        """The next call of the run. Every attempt counts, failed ones too.

        Raises:
            UserError: the execution context lacks a field that the gateway requires.
        """
        missing = [name for name in _REQUIRED if not getattr(self._context, name)]
        if missing:
            raise UserError(f"Agent LLM Gateway requires execution context fields: {', '.join(missing)}.")
        self._calls += 1
        caller = {
            **self._context.model_dump(mode="json"),
            "invocation_id": invocation_id(self._run_id, self._calls),
            "agent_run_id": self._run_id,
            "call_index": self._calls,
        }
        target = {
            "provider": self._provider,
            "model": call.model,
            "prompt_messages": call.prompt_messages,
            "model_parameters": call.model_parameters,
            "tools": call.tools,
            "stop": call.stop,
            "stream": call.stream,
        }
        url = f"{self._outbound.dify_api_url}{GATEWAY_PATH}"
        return url, JSON_HEADERS, encode({"caller": caller, "target": target})


def invocation_id(run_id: str, call_index: int) -> str:
    """The id of one call of a run: the same whenever it is computed."""
    return str(uuid5(NAMESPACE_URL, f"dify-agent:{run_id}:llm:{call_index}"))


def full_provider(plugin_id: str, model_provider: str) -> str:
    """The provider with its plugin, as the gateway names it: ``<organisation>/<plugin>/<provider>``."""
    return model_provider if model_provider.count("/") == _FULL_PROVIDER_SLASHES else f"{plugin_id}/{model_provider}"
