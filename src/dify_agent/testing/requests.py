"""What the real services take: bodies that do not fit are refused as they refuse them (integrations 3.2, 4 to 6).

Written down a second time on purpose: a fake that shared the caller's own classes would accept the caller's mistakes.
The Dify API rejects unknown members, the plugin daemon ignores them.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dify_agent.testing.prompt import PromptMessage, ToolDeclaration

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
    """Which model, and what it is asked."""

    provider: NonBlank
    model: NonBlank
    prompt_messages: list[PromptMessage]
    model_parameters: JsonObject = Field(default_factory=dict)
    tools: list[ToolDeclaration] | None = None
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


class RetrievalModel(_Strict):
    """A model that searches or filters."""

    provider: str
    name: str
    mode: str
    completion_params: JsonObject = Field(default_factory=dict)


class RerankingModel(_Strict):
    """The model that orders what was found."""

    provider: str
    model: str


class Retrieval(_Strict):
    """How a data set is searched."""

    mode: Literal["multiple", "single"]
    score_threshold: float = 0.0
    reranking_mode: str = "reranking_model"
    reranking_enable: bool = True
    top_k: Annotated[int, Field(ge=1)] | None = None
    reranking_model: RerankingModel | None = None
    weights: JsonObject | None = None
    model: RetrievalModel | None = None


class Condition(_Strict):
    """A comparison with a document's metadata."""

    name: str
    comparison_operator: Literal[
        "contains", "not contains", "start with", "end with", "is", "is not", "empty", "not empty", "in", "not in",
        "=", "≠", ">", "<", "≥", "≤", "before", "after",
    ]  # fmt: skip
    value: str | list[str] | int | float | None = None


class Conditions(_Strict):
    """Comparisons, all or one of which must hold."""

    logical_operator: Literal["and", "or"] = "and"
    conditions: list[Condition] = Field(default_factory=list)


class MetadataFiltering(_Strict):
    """Which documents count."""

    mode: Literal["disabled", "automatic", "manual"] = "disabled"
    model: RetrievalModel | None = Field(None, alias="model_config")
    conditions: Conditions | None = None


class KnowledgeRequest(_Strict):
    """Body of a retrieval."""

    caller: _Identity
    dataset_ids: Annotated[list[NonBlank], Field(min_length=1)]
    query: NonBlank
    retrieval: Retrieval
    metadata_filtering: MetadataFiltering = Field(default_factory=MetadataFiltering)
    attachment_ids: list[str] = Field(default_factory=list)

    @property
    def config_problem(self) -> str | None:
        """What a mode needs and has not got: the body has the right form, and yet nothing can be searched with it."""
        retrieval, filtering = self.retrieval, self.metadata_filtering
        needed = {
            "retrieval.top_k": retrieval.mode == "multiple" and retrieval.top_k is None,
            "retrieval.model": retrieval.mode == "single" and retrieval.model is None,
            "metadata_filtering.model_config": filtering.mode == "automatic" and filtering.model is None,
            "metadata_filtering.conditions": filtering.mode == "manual"
            and not (filtering.conditions and filtering.conditions.conditions),
        }
        missing = [name for name, is_missing in needed.items() if is_missing]
        return f"the mode needs {', '.join(missing)}" if missing else None


class FileReference(_Strict):
    """A file as a workflow names it: by its URL or by its reference, which may have any form here."""

    transfer_method: Literal["local_file", "tool_file", "datasource_file", "remote_url"]
    reference: NonBlank | None = None
    url: NonBlank | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        needed, other = ("url", "reference") if self.transfer_method == "remote_url" else ("reference", "url")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"{self.transfer_method} takes a {needed} and no {other}")
        return self


class FileRequest(_Strict):
    """Body of the request that resolves a file."""

    tenant_id: NonBlank
    user_id: NonBlank
    user_from: UserFrom
    invoke_from: InvokeFrom
    file: FileReference
    for_external: bool = True


class ToolChoice(_Lenient):
    """Whether the model may, must or must not call tools, or which it must."""

    mode: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class DaemonModel(_Lenient):
    """Which model the daemon calls, and what it is asked."""

    provider: NonBlank
    model_type: Literal["llm"]
    model: NonBlank
    credentials: JsonObject
    prompt_messages: list[PromptMessage]
    model_parameters: JsonObject = Field(default_factory=dict)
    tools: list[ToolDeclaration] | None = None
    tool_choice: ToolChoice | None = None
    stop: list[str] | None = None
    stream: bool = True

    @field_validator("prompt_messages")
    @classmethod
    def _check_content(cls, messages: list[PromptMessage]) -> list[PromptMessage]:
        if any(message["content"] is None for message in messages):
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
