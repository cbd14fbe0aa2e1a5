"""What the model reads of retrieved passages (specification: integrations 6.3)."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from dify_agent.layers.knowledge.state import DifyKnowledgeEagerResult

NOTHING_FOUND: Final = "No relevant knowledge base results were found."
UNAVAILABLE: Final = "Knowledge base search is temporarily unavailable. Please continue without it if possible."
EAGER_HEADING: Final = "Knowledge retrieval results:"
_HEADING: Final = "Knowledge base search results:"
_UNTITLED: Final = "Untitled"
_CUT: Final = "..."


class RetrievedPassage(BaseModel):
    """One result of Dify API. Of the metadata, which may hold anything, only names and score are shown."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    metadata: dict[str, Any] = Field(default_factory=dict)
    title: str | None = None
    files: list[Any] | None = None
    content: str | None = None
    summary: str | None = None


def render_results(
    passages: Sequence[RetrievedPassage],
    *,
    max_content_chars: int,
    max_chars: int,
    heading: bool,
    redact: Callable[[str], str],
) -> str:
    """A numbered list of the passages within ``max_chars`` characters, each content within ``max_content_chars``.

    Every text goes through ``redact`` before it is cut.
    """
    blocks: list[str] = []
    size = 0
    for number, passage in enumerate(passages, start=1):
        blocks.append(_block(number, passage, max_content_chars, redact))
        size += len(blocks[-1])
        if size > max_chars:
            break
    text = "\n\n".join(blocks)
    return cut(f"{_HEADING}\n{text}" if heading else text, max_chars)


def render_eager(results: Sequence[DifyKnowledgeEagerResult]) -> str:
    """The user prompt that states what the ``user_query`` sets have."""
    blocks = [f"Set: {item.set_name}\nQuery: {item.query}\nResults:\n{item.observation}" for item in results]
    return "\n\n".join([EAGER_HEADING, *blocks])


def cut(text: str, limit: int) -> str:
    """``text`` within ``limit`` characters, the sign that it was cut included."""
    if len(text) <= limit:
        return text
    if limit <= len(_CUT):
        return text[:limit]
    return text[: limit - len(_CUT)] + _CUT


def _block(number: int, passage: RetrievedPassage, max_content_chars: int, redact: Callable[[str], str]) -> str:
    def shown(value: Any) -> str:
        return redact(_shown(value))

    metadata = passage.metadata
    document = shown(metadata.get("document_name"))
    title = shown(passage.title) or document or _UNTITLED
    content = shown(passage.content) or shown(passage.summary)
    details = {
        "Dataset": shown(metadata.get("dataset_name")),
        "Document": document,
        "Score": shown(metadata.get("score")),
        "Content": cut(content, max_content_chars),
    }
    return "\n".join([f"{number}. {title}", *(f"   {name}: {value}" for name, value in details.items() if value)])


def _shown(value: Any) -> str:
    """Text and numbers; everything else is not shown."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""
