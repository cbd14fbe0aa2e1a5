"""`dify.knowledge_base`: passages from Dify's knowledge bases (specification: layers 2.14, integrations 6)."""

from typing import Final

from dify_agent.layers.knowledge.config import (
    DifyKnowledgeBaseLayerConfig,
    DifyKnowledgeComparisonOperator,
    DifyKnowledgeDatasetConfig,
    DifyKnowledgeMetadataCondition,
    DifyKnowledgeMetadataConditions,
    DifyKnowledgeMetadataFilteringConfig,
    DifyKnowledgeMetadataFilteringMode,
    DifyKnowledgeModelConfig,
    DifyKnowledgeQueryConfig,
    DifyKnowledgeQueryMode,
    DifyKnowledgeRerankingModelConfig,
    DifyKnowledgeRetrievalConfig,
    DifyKnowledgeRetrievalMode,
    DifyKnowledgeSetConfig,
)
from dify_agent.layers.knowledge.state import (
    DifyKnowledgeBaseRuntimeState,
    DifyKnowledgeEagerResult,
    DifyKnowledgeEagerResultStatus,
)

__all__ = [
    "DIFY_KNOWLEDGE_BASE_LAYER_TYPE_ID",
    "DifyKnowledgeBaseLayerConfig",
    "DifyKnowledgeBaseRuntimeState",
    "DifyKnowledgeComparisonOperator",
    "DifyKnowledgeDatasetConfig",
    "DifyKnowledgeEagerResult",
    "DifyKnowledgeEagerResultStatus",
    "DifyKnowledgeMetadataCondition",
    "DifyKnowledgeMetadataConditions",
    "DifyKnowledgeMetadataFilteringConfig",
    "DifyKnowledgeMetadataFilteringMode",
    "DifyKnowledgeModelConfig",
    "DifyKnowledgeQueryConfig",
    "DifyKnowledgeQueryMode",
    "DifyKnowledgeRerankingModelConfig",
    "DifyKnowledgeRetrievalConfig",
    "DifyKnowledgeRetrievalMode",
    "DifyKnowledgeSetConfig",
]

DIFY_KNOWLEDGE_BASE_LAYER_TYPE_ID: Final = "dify.knowledge_base"
