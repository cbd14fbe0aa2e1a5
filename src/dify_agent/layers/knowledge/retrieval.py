"""One search in one set, by Dify API (specification: integrations 6.2). Never repeated."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dify_agent.backends.transport import DIFY_API, OutboundHttp
from dify_agent.errors import DifyAgentError, RunFailedError
from dify_agent.layers.execution_context import DifyExecutionContextLayerConfig
from dify_agent.layers.inner_api import InnerCallError, post_inner
from dify_agent.layers.knowledge.config import DifyKnowledgeSetConfig
from dify_agent.layers.knowledge.rendering import RetrievedPassage

RETRIEVE_PATH: Final = "/knowledge/retrieve"
RETRYABLE_STATUSES: Final = frozenset({429, 502})
"""Rate limit, and a failure of an external knowledge base. Other server errors are not: unlike with tools, a run
without its knowledge answers wrongly."""

MAX_RESULTS: Final = 1000
"""Of one search. The specification sets none; the model reads fewer than that in the 12,000 characters that an
observation has by default, and each costs microseconds."""

_CALLER: Final = ("tenant_id", "user_id", "user_from", "app_id", "invoke_from")

PartT = TypeVar("PartT")


class DifyKnowledgeBaseClientError(RunFailedError):
    """A search failed for good: the run fails, Dify API's error code is the reason."""

    def __init__(self, message: str, *, code: str | None, setting: str | None = None) -> None:
        super().__init__(message, reason=code or type(self).__name__, setting=setting)


class KnowledgeUnavailableError(DifyAgentError):
    """A search failed and may succeed later; the model goes on without it."""

    def __init__(self, cause: InnerCallError) -> None:
        super().__init__(str(cause))
        self.status = cause.status
        self.code = cause.code


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    results: list[RetrievedPassage] = Field(max_length=MAX_RESULTS)
    usage: dict[str, Any] | None = None


def knowledge_caller(context: DifyExecutionContextLayerConfig) -> dict[str, str]:
    """On whose behalf to search.

    Raises:
        ValueError: the execution context lacks a field.
    """
    fields = {name: (getattr(context, name) or "").strip() for name in _CALLER}
    missing = [name for name, value in fields.items() if not value]
    if missing:
        raise ValueError(f"Dify knowledge base layer requires execution context fields: {', '.join(missing)}")
    return fields


def retrieval_body(source: DifyKnowledgeSetConfig) -> dict[str, Any]:
    """The members of a request that depend on the set only: datasets, search, filter."""
    retrieval = source.retrieval.model_dump(mode="json")
    unused = ("model",) if source.retrieval.mode == "multiple" else ("top_k", "reranking_model", "weights")
    filtering = source.metadata_filtering.model_dump(mode="json", by_alias=True)
    if source.metadata_filtering.mode == "disabled":
        filtering = {"mode": "disabled"}
    return {
        "dataset_ids": [dataset.id for dataset in source.datasets],
        "retrieval": {name: value for name, value in retrieval.items() if name not in unused},
        "metadata_filtering": {name: value for name, value in filtering.items() if value is not None},
    }


async def retrieve(
    outbound: OutboundHttp, caller: dict[str, str], source: DifyKnowledgeSetConfig, query: str
) -> Sequence[RetrievedPassage]:
    """Search ``source`` for ``query``.

    Raises:
        KnowledgeUnavailableError: no answer, a rate limit, or an external knowledge base that failed.
        DifyKnowledgeBaseClientError: everything else that is no result.
        ValueError: the query cannot be written as JSON.
    """
    body = {"caller": caller, "query": query, **retrieval_body(source), "attachment_ids": []}
    try:
        reply = await post_inner(outbound, RETRIEVE_PATH, body, _Reply)
    except InnerCallError as error:
        if error.interrupted or error.status in RETRYABLE_STATUSES:
            raise KnowledgeUnavailableError(error) from error
        hint = DIFY_API.hint(error.status, error.setting)
        text = f"search in knowledge set '{source.name}' failed: {error}{hint}"
        raise DifyKnowledgeBaseClientError(text, code=error.code, setting=error.setting) from error
    return reply.results
