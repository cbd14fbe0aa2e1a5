"""What the real services take: bodies that do not fit are refused as they refuse them (integrations 3.2, 4 to 6).

Written down a second time on purpose: a fake that shared the caller's own classes would accept the caller's mistakes.
The Dify API rejects unknown members, the plugin daemon ignores them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

JsonObject = dict[str, Any]
UserFrom = Literal["account", "end-user"]
InvokeFrom = Literal["service-api", "openapi", "web-app", "trigger", "explore", "debugger", "published", "validation"]
NonBlank = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class _Identity(_Strict):
    tenant_id: NonBlank
    user_id: NonBlank
    user_from: UserFrom
    app_id: NonBlank
    invoke_from: InvokeFrom


class LlmCaller(_Identity):
    """On whose behalf a model is called, and which call it is."""

    workflow_id: str | None = None
    workflow_run_id: str | None = None
    node_id: str | None = None
    node_execution_id: str | None = None
    conversation_id: str | None = None
    agent_id: str | None = None
    agent_config_version_id: str | None = None
    agent_config_version_kind: Literal["snapshot", "draft", "build_draft"] | None = None
    agent_mode: Literal["workflow_run", "single_step", "agent_app", "babysit", "fasten"]
    trace_id: str | None = None
    invocation_id: NonBlank
    agent_run_id: NonBlank
    call_index: Annotated[int, Field(ge=1)]


class LlmTarget(_Strict):
    """Which model, and what it is asked. Messages are not looked into: they may be large."""

    provider: NonBlank
    model: NonBlank
    prompt_messages: list[JsonObject]
    model_parameters: JsonObject = Field(default_factory=dict)
    tools: list[JsonObject] | None = None
    stop: list[str] | None = None
    stream: bool = True


class LlmRequest(_Strict):
    """Body of a model call through the gateway."""

    caller: LlmCaller
    target: LlmTarget


class ToolCaller(_Identity):
    """On whose behalf a core tool is called."""

    conversation_id: str | None = None
    workflow_id: str | None = None
    workflow_run_id: str | None = None
    node_id: str | None = None
    node_execution_id: str | None = None
    agent_id: str | None = None
    agent_config_version_id: str | None = None


class CoreTool(_Strict):
    """Which core tool, with which arguments."""

    provider_type: Literal["plugin", "builtin", "api", "workflow", "mcp"]
    provider_id: NonBlank
    tool_name: NonBlank
    credential_id: str | None = None
    tool_parameters: JsonObject = Field(default_factory=dict)
    runtime_parameters: JsonObject = Field(default_factory=dict)


class CoreToolRequest(_Strict):
    """Body of a core tool's call."""

    caller: ToolCaller
    tool: CoreTool


class Retrieval(_Strict):
    """How a data set is searched."""

    mode: Literal["multiple", "single"]
    score_threshold: float = 0.0
    reranking_mode: str = "reranking_model"
    reranking_enable: bool = True
    top_k: Annotated[int, Field(ge=1)] | None = None
    reranking_model: JsonObject | None = None
    weights: JsonObject | None = None
    model: JsonObject | None = None


class MetadataFiltering(_Strict):
    """Which documents count."""

    mode: Literal["disabled", "automatic", "manual"] = "disabled"
    model: JsonObject | None = Field(None, alias="model_config")
    conditions: JsonObject | None = None


class KnowledgeRequest(_Strict):
    """Body of a retrieval."""

    caller: _Identity
    dataset_ids: Annotated[list[NonBlank], Field(min_length=1)]
    query: NonBlank
    retrieval: Retrieval
    metadata_filtering: MetadataFiltering = Field(default_factory=MetadataFiltering)
    attachment_ids: list[str] = Field(default_factory=list)


class FileReference(_Strict):
    """A file as a workflow names it."""

    transfer_method: Literal["local_file", "tool_file", "datasource_file", "remote_url"]
    reference: NonBlank | None = None
    url: NonBlank | None = None


class FileRequest(_Strict):
    """Body of the request that resolves a file."""

    tenant_id: NonBlank
    user_id: NonBlank
    user_from: UserFrom
    invoke_from: InvokeFrom
    file: FileReference
    for_external: bool = True


class DaemonModel(_Lenient):
    """Which model the daemon calls, and what it is asked."""

    provider: NonBlank
    model_type: Literal["llm"]
    model: NonBlank
    credentials: JsonObject
    prompt_messages: list[JsonObject]
    model_parameters: JsonObject = Field(default_factory=dict)
    tools: list[JsonObject] | None = None
    stop: list[str] | None = None
    stream: bool = True

    @field_validator("prompt_messages")
    @classmethod
    def _check_content(cls, messages: list[JsonObject]) -> list[JsonObject]:
        if any(message.get("content") is None for message in messages):
            raise ValueError("every prompt message must have a content")
        return messages


class DaemonLlmRequest(_Lenient):
    """Body of the daemon's model call."""

    user_id: str | None = None
    data: DaemonModel


class DaemonTool(_Lenient):
    """Which plugin tool, with which arguments."""

    provider: NonBlank
    tool: NonBlank
    credential_type: Literal["api-key", "oauth2", "unauthorized"]
    credentials: JsonObject
    tool_parameters: JsonObject


class DaemonToolRequest(_Lenient):
    """Body of the daemon's tool call."""

    user_id: str | None = None
    data: DaemonTool
