"""Config of `dify.knowledge_base` (specification: integrations 6.1)."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, field_validator, model_validator

from agenton.layers import LayerConfig

DifyKnowledgeQueryMode = Literal["user_query", "generated_query"]
DifyKnowledgeRetrievalMode = Literal["multiple", "single"]
DifyKnowledgeMetadataFilteringMode = Literal["disabled", "automatic", "manual"]
DifyKnowledgeComparisonOperator = Literal[
    "contains",
    "not contains",
    "start with",
    "end with",
    "is",
    "is not",
    "empty",
    "not empty",
    "in",
    "not in",
    "=",
    "≠",
    ">",
    "<",
    "≥",
    "≤",
    "before",
    "after",
]

_NotBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DifyKnowledgeDatasetConfig(_Part):
    """One knowledge base."""

    id: _NotBlank
    name: str | None = None
    description: str | None = None


class DifyKnowledgeQueryConfig(_Part):
    """Who asks: the configured ``value`` once per session (``user_query``), or the model (``generated_query``)."""

    mode: DifyKnowledgeQueryMode
    value: str | None = None

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if self.mode == "user_query" and not (self.value and self.value.strip()):
            raise ValueError("query.value is required for user_query mode")
        return self


class DifyKnowledgeRerankingModelConfig(_Part):
    """The model that orders what was found."""

    provider: str
    model: str


class DifyKnowledgeModelConfig(_Part):
    """A model that Dify API uses while it retrieves."""

    provider: str
    name: str
    mode: str
    completion_params: dict[str, JsonValue] = Field(default_factory=dict)


class DifyKnowledgeRetrievalConfig(_Part):
    """How to search: all knowledge bases (``multiple``), or the one that ``model`` chooses (``single``)."""

    mode: DifyKnowledgeRetrievalMode
    top_k: Annotated[int, Field(ge=1)] | None = None
    score_threshold: float = 0.0
    reranking_mode: str = "reranking_model"
    reranking_enable: bool = True
    reranking_model: DifyKnowledgeRerankingModelConfig | None = None
    weights: dict[str, JsonValue] | None = None
    model: DifyKnowledgeModelConfig | None = None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "multiple" and self.top_k is None:
            raise ValueError("retrieval.top_k is required for multiple mode")
        if self.mode == "single" and self.model is None:
            raise ValueError("retrieval.model is required for single mode")
        return self


class DifyKnowledgeMetadataCondition(_Part):
    """One comparison with a document's metadata."""

    name: str
    comparison_operator: DifyKnowledgeComparisonOperator
    value: str | list[str] | int | float | None = None


class DifyKnowledgeMetadataConditions(_Part):
    """Comparisons, all (``and``) or one of which (``or``) must hold."""

    logical_operator: Literal["and", "or"] = "and"
    conditions: list[DifyKnowledgeMetadataCondition] = Field(default_factory=list)


class DifyKnowledgeMetadataFilteringConfig(_Part):
    """Which documents to look at: all, those that a model chooses, or those that fit ``conditions``."""

    # `model_config` is Pydantic's own name: on the wire the member is called so, in Python `filtering_model`.
    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    mode: DifyKnowledgeMetadataFilteringMode = "disabled"
    filtering_model: Annotated[DifyKnowledgeModelConfig | None, Field(alias="model_config")] = None
    conditions: DifyKnowledgeMetadataConditions | None = None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "automatic" and self.filtering_model is None:
            raise ValueError("metadata_filtering.model_config is required for automatic mode")
        if self.mode == "manual" and not (self.conditions and self.conditions.conditions):
            raise ValueError("metadata_filtering.conditions is required for manual mode")
        return self


class DifyKnowledgeSetConfig(_Part):
    """Knowledge bases that are searched together, and how."""

    id: _NotBlank
    name: _NotBlank
    """What the model calls it."""
    description: str | None = None
    datasets: list[DifyKnowledgeDatasetConfig]
    query: DifyKnowledgeQueryConfig
    retrieval: DifyKnowledgeRetrievalConfig
    metadata_filtering: DifyKnowledgeMetadataFilteringConfig = Field(
        default_factory=DifyKnowledgeMetadataFilteringConfig
    )

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, datasets: list[DifyKnowledgeDatasetConfig]) -> list[DifyKnowledgeDatasetConfig]:
        if not datasets:
            raise ValueError("datasets must contain at least one dataset")
        if _repeats(dataset.id for dataset in datasets):
            raise ValueError("dataset ids must be unique within a knowledge set")
        return datasets


class DifyKnowledgeBaseLayerConfig(LayerConfig):
    """The sets, and the limits of what the model reads of one search. Limits are characters."""

    model_config = ConfigDict(extra="forbid")

    sets: list[DifyKnowledgeSetConfig]
    max_result_content_chars: Annotated[int, Field(ge=1)] = 2000
    """Of one result's content."""
    max_observation_chars: Annotated[int, Field(ge=1)] = 12000
    """Of all results together."""

    @field_validator("sets")
    @classmethod
    def _check_sets(cls, sets: list[DifyKnowledgeSetConfig]) -> list[DifyKnowledgeSetConfig]:
        if not sets:
            raise ValueError("sets must contain at least one knowledge set")
        if _repeats(item.id for item in sets):
            raise ValueError("knowledge set ids must be unique")
        if _repeats(item.name.strip().casefold() for item in sets):
            raise ValueError("knowledge set names must be unique, upper and lower case being the same")
        return sets

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_observation_chars < self.max_result_content_chars:
            raise ValueError("max_observation_chars must be greater than or equal to max_result_content_chars")
        return self


def _repeats(values: Iterable[str]) -> bool:
    found = list(values)
    return len(set(found)) < len(found)
