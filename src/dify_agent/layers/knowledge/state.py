"""What the session snapshot keeps of `dify.knowledge_base`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DifyKnowledgeEagerResultStatus = Literal["success", "empty", "temporarily_unavailable"]


class DifyKnowledgeEagerResult(BaseModel):
    """What was found for the query of one ``user_query`` set."""

    model_config = ConfigDict(extra="forbid")

    set_id: str
    set_name: str
    query: str
    observation: str
    """What the model reads."""
    status: DifyKnowledgeEagerResultStatus


class DifyKnowledgeBaseRuntimeState(BaseModel):
    """Results of the ``user_query`` sets, and the fingerprint of the sets they belong to."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    eager_config_fingerprint: str | None = None
    """SHA-256, hexadecimal; null when there are no such sets."""
    eager_results: list[DifyKnowledgeEagerResult] = Field(default_factory=list)
