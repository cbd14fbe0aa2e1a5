"""What the model asks: the arguments of the tool. Their JSON Schema is what the model sees, docstrings included."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

AskHumanFieldType = Literal["paragraph", "select", "file", "file-list"]
AskHumanActionStyle = Literal["default", "primary", "destructive"]
AskHumanUrgency = Literal["normal", "high"]

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN: Final = {"pattern": f"^{_IDENTIFIER.pattern}$"}


def is_identifier(text: str) -> bool:
    """Whether ``text`` is ASCII letters, digits and underscores, and does not start with a digit."""
    return _IDENTIFIER.fullmatch(text) is not None


def _identifier(what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not is_identifier(text):
            raise ValueError(f"{what} must be a valid identifier")
        return text

    return AfterValidator(check)


def _not_blank(what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not text.strip():
            raise ValueError(f"{what} must not be blank")
        return text

    return AfterValidator(check)


def _repeated(values: Iterable[str]) -> str | None:
    """The first of the values that occurs more than once."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


class _Argument(BaseModel):
    # Attribute docstrings become descriptions in the schema: one text for the model and for the reader.
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class _Field(_Argument):
    name: Annotated[str, _identifier("field name"), Field(json_schema_extra=_PATTERN)]
    """Key of the answer, unique in the form."""
    label: Annotated[str, Field(min_length=1), _not_blank("field label")]
    """What the human sees beside the field."""
    required: bool = False
    """Whether the human has to fill the field in."""


class AskHumanParagraphField(_Field):
    """A text field of several lines."""

    type: Literal["paragraph"]
    placeholder: str | None = None
    """Hint shown while the field is empty."""
    default: str | None = None
    """Text the field starts with."""


class AskHumanSelectOption(_Argument):
    """One choice of a select field."""

    value: Annotated[str, Field(min_length=1), _not_blank("option value")]
    """What the answer contains, unique in the field."""
    label: Annotated[str, Field(min_length=1), _not_blank("option label")]
    """What the human sees."""


class AskHumanSelectField(_Field):
    """A field with one choice of several."""

    type: Literal["select"]
    options: list[AskHumanSelectOption]
    """The choices, at least one."""
    default: str | None = None
    """Value of the option that is chosen at first."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        values = [option.value for option in self.options]
        if not values:
            raise ValueError("select fields must define at least one option")
        if (repeated := _repeated(values)) is not None:
            raise ValueError(f"select field '{self.name}' contains duplicate option value '{repeated}'")
        if self.default is not None and self.default not in values:
            raise ValueError(f"select field '{self.name}' default must match one of its option values")
        return self


class AskHumanFileField(_Field):
    """A field for one file."""

    type: Literal["file"]


class AskHumanFileListField(_Field):
    """A field for several files."""

    type: Literal["file-list"]
    max_files: Annotated[int, Field(ge=1)] | None = None
    """How many files the human may give; null: no limit by the question."""


AskHumanField = Annotated[
    AskHumanParagraphField | AskHumanSelectField | AskHumanFileField | AskHumanFileListField,
    Field(discriminator="type"),
]
"""Any field of the form, told apart by ``type``."""


class AskHumanAction(_Argument):
    """A button with which the human answers."""

    id: Annotated[str, _identifier("action id"), Field(json_schema_extra=_PATTERN)]
    """What the answer names, unique in the form."""
    label: Annotated[str, _not_blank("action label")]
    """What the human sees on the button."""
    style: AskHumanActionStyle = "default"
    """How the button looks; destructive warns of an action that cannot be undone."""


class AskHumanToolArgs(_Argument):
    """A question to a human, with a form for the answer."""

    title: Annotated[str, _not_blank("title")] | None = None
    """Heading above the question."""
    question: Annotated[str, Field(min_length=1), _not_blank("question")]
    """What the human is asked."""
    markdown: str | None = None
    """Background the human needs for the answer, as Markdown."""
    fields: list[AskHumanField] = Field(default_factory=list)
    """Fields the human fills in."""
    actions: list[AskHumanAction] = Field(default_factory=list)
    """Buttons; without any there is one that submits the form."""
    urgency: AskHumanUrgency = "normal"
    """How soon an answer is needed."""

    @field_validator("fields")
    @classmethod
    def _check_names(cls, fields: list[AskHumanField]) -> list[AskHumanField]:
        if (repeated := _repeated(field.name for field in fields)) is not None:
            raise ValueError(f"field name '{repeated}' must be unique")
        return fields

    @field_validator("actions")
    @classmethod
    def _check_ids(cls, actions: list[AskHumanAction]) -> list[AskHumanAction]:
        if (repeated := _repeated(action.id for action in actions)) is not None:
            raise ValueError(f"action id '{repeated}' must be unique")
        return actions
