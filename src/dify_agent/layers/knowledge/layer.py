"""The layer behind `dify.knowledge_base`."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import structlog
from pydantic import JsonValue
from pydantic_ai.tools import Tool

from agenton.compositor import LayerProvider
from agenton.layers import LayerDeps, PydanticAILayer, PydanticAIUserPrompt
from dify_agent.backends.transport import OutboundHttp
from dify_agent.errors import setting_of
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.layers.knowledge import (
    DIFY_KNOWLEDGE_BASE_LAYER_TYPE_ID,
    DifyKnowledgeBaseLayerConfig,
    DifyKnowledgeBaseRuntimeState,
    DifyKnowledgeEagerResult,
    DifyKnowledgeSetConfig,
)
from dify_agent.layers.knowledge.rendering import (
    NOTHING_FOUND,
    UNAVAILABLE,
    RetrievedPassage,
    cut,
    render_eager,
    render_results,
)
from dify_agent.layers.knowledge.retrieval import (
    KnowledgeUnavailableError,
    knowledge_caller,
    retrieval_body,
    retrieve,
)
from dify_agent.layers.lenient_tool import lenient_tool
from dify_agent.protocol.json_values import readable_text

SEARCH_TOOL_NAME: Final = "knowledge_base_search"
MAX_ECHO_CHARS: Final = 200
"""Of a name that the model made up."""
_DESCRIPTION: Final = "Search the knowledge bases of this agent for passages that help to answer. Available sets:"

_log = structlog.get_logger()


class DifyKnowledgeBaseDeps(LayerDeps):
    """On whose behalf to search."""

    execution_context: DifyExecutionContextLayer


class DifyKnowledgeBaseLayer(
    PydanticAILayer[DifyKnowledgeBaseDeps, None, DifyKnowledgeBaseLayerConfig, DifyKnowledgeBaseRuntimeState]
):
    """Contributes one search tool for the sets that the model queries, and one user prompt with what was found in
    those whose query is configured. A search that fails for good ends the run (`DifyKnowledgeBaseClientError`)."""

    type_id: ClassVar[str | None] = DIFY_KNOWLEDGE_BASE_LAYER_TYPE_ID

    def __init__(self, outbound: OutboundHttp) -> None:
        """Borrow the process's HTTP clients."""
        self._outbound: Final = outbound

    async def on_context_create(self) -> None:
        """Search the ``user_query`` sets.

        Raises:
            DifyKnowledgeBaseClientError: a search failed for good.
            ValueError: the execution context lacks a field.
        """
        await self._search_eagerly()

    async def on_context_resume(self) -> None:
        """Search the ``user_query`` sets anew if they are not those of the stored results; raises as on creation."""
        await self._search_eagerly()

    @property
    def user_prompts(self) -> Sequence[PydanticAIUserPrompt]:
        """What the ``user_query`` sets had, as one text; nothing without such sets."""
        results = self.runtime_state.eager_results
        return [render_eager(results)] if results else []

    @property
    def tools(self) -> Sequence[Tool[None]]:
        """The search tool; none without a ``generated_query`` set.

        Raises:
            ValueError: the execution context lacks a field.
            RuntimeError: the HTTP client is closed.
        """
        sets = {item.name: item for item in self._sets("generated_query")}
        if not sets:
            return []
        self._check_client()
        caller = knowledge_caller(self.deps.execution_context.config)

        async def search(**arguments: Any) -> str:
            return await self._answer(caller, sets, arguments.get("set_name"), arguments.get("query"))

        return [lenient_tool(search, SEARCH_TOOL_NAME, _description(sets.values()), _schema(list(sets)))]

    async def _answer(
        self, caller: dict[str, str], sets: dict[str, DifyKnowledgeSetConfig], set_name: Any, query: Any
    ) -> str:
        source = sets.get(set_name) if isinstance(set_name, str) else None
        if source is None:
            return f"unknown knowledge set: {cut(str(set_name), MAX_ECHO_CHARS)}"
        text = readable_text(query).strip() if isinstance(query, str) else ""
        if not text:
            return "knowledge base search requires a non-empty query"
        try:
            passages = await retrieve(self._outbound, caller, source, text)
        except KnowledgeUnavailableError as error:
            self._warn(source, error)
            return UNAVAILABLE
        return self._rendered(passages, heading=True) if passages else NOTHING_FOUND

    async def _search_eagerly(self) -> None:
        sets = self._sets("user_query")
        fingerprint = _fingerprint(sets) if sets else None
        state = self.runtime_state
        if fingerprint is not None and fingerprint == state.eager_config_fingerprint:
            return
        results: list[DifyKnowledgeEagerResult] = []
        if sets:
            self._check_client()
            caller = knowledge_caller(self.deps.execution_context.config)
            results = [await self._eager_result(caller, item) for item in sets]
        state.eager_results = results
        state.eager_config_fingerprint = fingerprint

    async def _eager_result(self, caller: dict[str, str], source: DifyKnowledgeSetConfig) -> DifyKnowledgeEagerResult:
        query = (source.query.value or "").strip()
        found = {"set_id": source.id, "set_name": source.name, "query": query}
        try:
            passages = await retrieve(self._outbound, caller, source, query)
        except KnowledgeUnavailableError as error:
            self._warn(source, error)
            return DifyKnowledgeEagerResult(**found, observation=UNAVAILABLE, status="temporarily_unavailable")
        if not passages:
            return DifyKnowledgeEagerResult(**found, observation=NOTHING_FOUND, status="empty")
        return DifyKnowledgeEagerResult(**found, observation=self._rendered(passages, heading=False), status="success")

    def _rendered(self, passages: Sequence[RetrievedPassage], *, heading: bool) -> str:
        return render_results(
            passages,
            max_content_chars=self.config.max_result_content_chars,
            max_chars=self.config.max_observation_chars,
            heading=heading,
            redact=self._outbound.redactor.redact,
        )

    def _sets(self, mode: str) -> list[DifyKnowledgeSetConfig]:
        return [item for item in self.config.sets if item.query.mode == mode]

    def _check_client(self) -> None:
        if self._outbound.dify_api.is_closed:
            raise RuntimeError("DifyKnowledgeBaseLayer requires an open shared HTTP client.")

    def _warn(self, source: DifyKnowledgeSetConfig, error: KnowledgeUnavailableError) -> None:
        context = self.deps.execution_context.config
        _log.warning(
            "knowledge set could not be searched; the run goes on without it",
            set_id=source.id,
            tenant_id=context.tenant_id,
            app_id=context.app_id,
            invoke_from=context.invoke_from,
            status=error.status,
            code=error.code,
            error=str(error),
            setting=setting_of(error),
        )


def provider(outbound: OutboundHttp) -> LayerProvider[DifyKnowledgeBaseLayer]:
    """Builds the layer on the process's HTTP clients."""
    return LayerProvider.from_factory(
        layer_type=DifyKnowledgeBaseLayer, create=lambda _: DifyKnowledgeBaseLayer(outbound)
    )


def _fingerprint(sets: Sequence[DifyKnowledgeSetConfig]) -> str:
    """Changes with everything that a search depends on, and with nothing else."""
    parts = [{"id": item.id, "query": item.query.value, **retrieval_body(item)} for item in sets]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _schema(names: list[str]) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": {
            "set_name": {"type": "string", "enum": [*names], "description": "The set to search."},
            "query": {"type": "string", "description": "What to look for, in words of the documents."},
        },
        "required": ["set_name", "query"],
        "additionalProperties": False,
    }


def _description(sets: Iterable[DifyKnowledgeSetConfig]) -> str:
    lines = [f"- {item.name}: {item.description}" if item.description else f"- {item.name}" for item in sets]
    return "\n".join([_DESCRIPTION, *lines])
