"""What a human answers: the suggested value in ``deferred_tool_results.calls``. The server passes any JSON on."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

AskHumanResultStatus = Literal["submitted", "timeout", "cancelled", "unavailable"]
"""A human who does not answer in time is a result, not a failure of the run."""


class AskHumanSelectedAction(BaseModel):
    """The button that was pressed."""

    model_config = ConfigDict(extra="forbid")

    id: str
    label: str


class AskHumanToolResult(BaseModel):
    """The answer to one question."""

    model_config = ConfigDict(extra="forbid")

    status: AskHumanResultStatus
    action: AskHumanSelectedAction | None = None
    values: dict[str, JsonValue] = Field(default_factory=dict)
    """Answers by field name."""
    message: str | None = None
    """What the model should know beside the values."""
    rendered_content: str | None = None
    """The form as it was filled in, as text."""
