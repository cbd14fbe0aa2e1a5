"""Create requests as Dify composes them: an execution context, and layers that depend on it."""

from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from tests.server.bodies import layer

CONTEXT: Final = {
    "tenant_id": "tenant-1",
    "user_id": "user-1",
    "user_from": "end-user",
    "app_id": "app-1",
    "conversation_id": "conversation-1",
    "agent_mode": "agent_app",
    "invoke_from": "web-app",
    "trace_id": "trace-1",
}
NOT_IN_CONTEXT: Final = (
    "workflow_id",
    "workflow_run_id",
    "node_id",
    "node_execution_id",
    "agent_id",
    "agent_config_version_id",
)
QUERY_SCHEMA: Final = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def bound(name: str, type_id: str, **config: Any) -> dict[str, Any]:
    """A layer that acts on behalf of the execution context."""
    return {**layer(name, type_id, **config), "deps": {"execution_context": "execution_context"}}


def dify_run(
    *layers: dict[str, Any],
    prompt: str | None = "Hello.",
    context: dict[str, Any] | None = None,
    llm: dict[str, Any] | None = None,
    **members: Any,
) -> dict[str, Any]:
    """A run with prompt, history, execution context, these layers, and a model of a plugin."""
    first = [] if prompt is None else [layer("prompt", "plain.prompt", prefix="Be brief.", user=prompt)]
    model = {"plugin_id": "langgenius/openai", "model_provider": "openai", "model": "gpt-x", **(llm or {})}
    composed = [
        *first,
        layer("history", "pydantic_ai.history"),
        layer("execution_context", "dify.execution_context", **(context or CONTEXT)),
        *layers,
        bound("llm", "dify.plugin.llm", **model),
    ]
    return {"composition": {"layers": composed}, **members}


def plugin_tools(*names: str, **members: Any) -> dict[str, Any]:
    tools = [
        {
            "plugin_id": "langgenius/search",
            "provider": "search",
            "tool_name": name,
            "credential_type": "api-key",
            "credentials": {"api_key": "tool-secret"},
            "description": f"Tool {name}.",
            "parameters": [{"name": "query", "type": "string", "form": "llm", "required": True}],
            "parameters_json_schema": QUERY_SCHEMA,
            **members,
        }
        for name in names
    ]
    return bound("plugin_tools", "dify.plugin.tools", tools=tools)


def core_tools(*names: str) -> dict[str, Any]:
    tools = [
        {
            "provider_type": "builtin",
            "provider_id": "time",
            "tool_name": name,
            "runtime_parameters": {"timezone": "UTC"},
            "parameters_json_schema": QUERY_SCHEMA,
        }
        for name in names
    ]
    return bound("core_tools", "dify.core.tools", tools=tools)


def knowledge(**query: str) -> dict[str, Any]:
    """One set named manual; ``mode`` and ``value`` of its query."""
    source = {
        "id": "set-1",
        "name": "manual",
        "datasets": [{"id": "d1"}],
        "query": query,
        "retrieval": {"mode": "multiple", "top_k": 4},
    }
    return bound("knowledge", "dify.knowledge_base", sets=[source])


def declared(name: str, description: str) -> dict[str, Any]:
    """A tool in a model request."""
    return {"name": name, "description": description, "parameters": QUERY_SCHEMA}


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    """A prompt message."""
    return {"role": role, "content": content, "name": None, **members}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call in an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def caller(run_id: str, call_index: int) -> dict[str, Any]:
    """Who asks for a model call: the whole context, and which call of which run it is."""
    return {
        **dict.fromkeys(NOT_IN_CONTEXT),
        "agent_config_version_kind": None,
        **CONTEXT,
        "invocation_id": str(uuid5(NAMESPACE_URL, f"dify-agent:{run_id}:llm:{call_index}")),
        "agent_run_id": run_id,
        "call_index": call_index,
    }
