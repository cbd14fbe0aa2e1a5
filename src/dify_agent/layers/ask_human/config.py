"""What a composition says about questions to a human: the tool's name, and the limits of a question."""

from typing import Annotated, Final, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agenton.layers import LayerConfig
from dify_agent.layers.ask_human.arguments import AskHumanFieldType, is_identifier

DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION: Final = (
    "Ask a human for missing information or for a decision that is needed to continue. Use it only when the answer "
    "cannot be inferred from the conversation or found with another tool. Be concise, and structure the question with "
    "fields and actions."
)

FILE_FIELD_TYPES: Final = frozenset({"file", "file-list"})
"""Field types whose answer is an upload."""

_HARD_MAXIMA: Final = {
    "max_fields": 16,
    "max_actions": 8,
    "max_markdown_chars": 20000,
    "max_question_chars": 4000,
    "max_field_label_chars": 200,
    "max_action_label_chars": 120,
}


def _usual_field_types() -> list[AskHumanFieldType]:
    return ["paragraph", "select"]


class DifyAskHumanLayerConfig(LayerConfig):
    """How the model may ask. Lengths are characters.

    Raises:
        ValidationError: a limit is out of its bounds, or the options contradict each other.
    """

    enabled: bool = True
    """False: the layer offers neither prompt nor tool, and no deferred call may end the run."""
    tool_name: str = "ask_human"
    tool_description: str | None = None
    """What the model reads about the tool; blank text counts as null, which is the default description."""
    max_fields: Annotated[int, Field(ge=0)] = 8
    max_actions: Annotated[int, Field(ge=1)] = 4
    allowed_field_types: list[AskHumanFieldType] = Field(default_factory=_usual_field_types)
    allow_file_fields: bool = False
    max_markdown_chars: Annotated[int, Field(ge=0)] = 8000
    max_question_chars: Annotated[int, Field(ge=1)] = 1000
    max_field_label_chars: Annotated[int, Field(ge=1)] = 120
    max_action_label_chars: Annotated[int, Field(ge=1)] = 80

    @property
    def effective_tool_description(self) -> str:
        """The configured description, or the default one."""
        return self.tool_description or DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION

    @field_validator("tool_name")
    @classmethod
    def _check_tool_name(cls, name: str) -> str:
        if not is_identifier(name):
            raise ValueError("tool_name must be a valid tool identifier")
        return name

    @field_validator("tool_description")
    @classmethod
    def _drop_blank(cls, text: str | None) -> str | None:
        return text if text is not None and text.strip() else None

    @field_validator(*_HARD_MAXIMA)
    @classmethod
    def _check_hard_maximum(cls, value: int, info: ValidationInfo) -> int:
        hard_maximum = _HARD_MAXIMA[str(info.field_name)]
        if value > hard_maximum:
            raise ValueError(f"{info.field_name} must be <= {hard_maximum}")
        return value

    @field_validator("allowed_field_types")
    @classmethod
    def _check_duplicates(cls, types: list[AskHumanFieldType]) -> list[AskHumanFieldType]:
        if len(set(types)) < len(types):
            raise ValueError("allowed_field_types must not contain duplicates")
        return types

    @model_validator(mode="after")
    def _check_file_types(self) -> Self:
        refused = sorted(FILE_FIELD_TYPES.intersection(self.allowed_field_types))
        if refused and not self.allow_file_fields:
            raise ValueError(
                "allowed_field_types cannot include file field types when allow_file_fields is false: "
                + ", ".join(refused)
            )
        return self
