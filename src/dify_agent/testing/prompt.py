"""What a model is asked, as both services take it: prompt messages and tool declarations (integrations 3.4).

Typed dictionaries, because an answer may repeat the messages as they came. Whether unknown members are refused is told
by the body that they stand in.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Discriminator, Tag
from typing_extensions import TypedDict


class TextPart(TypedDict):
    """A text between files."""

    type: Literal["text"]
    data: str


class ImagePart(TypedDict):
    """An image, by its bytes or its address."""

    type: Literal["image"]
    format: str
    base64_data: NotRequired[str]
    url: NotRequired[str]
    mime_type: str
    filename: NotRequired[str]
    detail: NotRequired[Literal["low", "high"]]


class FilePart(TypedDict):
    """Any other file, by its bytes or its address."""

    type: Literal["audio", "video", "document"]
    format: str
    base64_data: NotRequired[str]
    url: NotRequired[str]
    mime_type: str
    filename: NotRequired[str]


Part = Annotated[TextPart | ImagePart | FilePart, Discriminator("type")]
Content = Annotated[
    Annotated[str | None, Tag("text")] | Annotated[list[Part], Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "text"),
]
"""Told apart here, so that a problem with a part is one problem."""


class CalledFunction(TypedDict):
    """Which tool, with which arguments as JSON text: as a model wrote it, valid or not."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that a model has made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class PlainMessage(TypedDict):
    """What the system or a user says."""

    role: Literal["system", "user"]
    content: Content
    name: NotRequired[str | None]


class AssistantMessage(TypedDict):
    """What a model said."""

    role: Literal["assistant"]
    content: Content
    name: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall]]


class ToolMessage(TypedDict):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    name: NotRequired[str | None]
    tool_call_id: str


PromptMessage = Annotated[PlainMessage | AssistantMessage | ToolMessage, Discriminator("role")]


class ToolDeclaration(TypedDict):
    """A tool that a model may call; ``parameters`` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]
