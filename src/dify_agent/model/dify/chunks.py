"""One line of an answer to what it says (integrations 3.6).

Plain dictionaries, checked by a prepared validator: a model object per chunk is what makes the SDK adapters slow. What
is not declared here is skipped without becoming Python objects, above all the prompt that Dify repeats in every chunk.
"""

from typing import Any, Final, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict


class ToolFunction(TypedDict, total=False):
    """Name and arguments (JSON text) of a call, or a piece of them."""

    name: str | None
    arguments: str | dict[str, Any] | None


class ToolCallChunk(TypedDict, total=False):
    """A tool call, or a fragment of one."""

    id: str | None
    index: Any
    """Position among the answer's calls, a whole number; sent by some providers, not by Dify's own schema."""
    function: ToolFunction | None


class MessageChunk(TypedDict, total=False):
    """The assistant's message in a chunk."""

    content: str | list[dict[str, Any]] | None
    tool_calls: list[ToolCallChunk] | None


class Delta(TypedDict, total=False):
    """What a chunk adds."""

    message: MessageChunk | None
    usage: dict[str, Any] | None
    finish_reason: str | None


class Chunk(TypedDict):
    """The ``data`` of an envelope."""

    delta: Delta


class _Envelope(TypedDict):
    code: int
    message: NotRequired[str | None]
    data: NotRequired[Chunk | None]


_validate: Final = TypeAdapter(_Envelope).validator.validate_json


class MalformedLineError(ValueError):
    """A line is not an envelope. The text does not repeat it."""


class ErrorEnvelopeError(Exception):
    """The envelope reports an error of the provider, the plugin or Dify."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def parse_chunk(line: bytes) -> Chunk:
    """The chunk in a line's JSON.

    Raises:
        MalformedLineError: it is not JSON, or not a chunk.
        ErrorEnvelopeError: it carries an error in place of a chunk.
    """
    try:
        envelope = _validate(line, allow_partial=False)
    except ValidationError as error:
        raise MalformedLineError(_place(error)) from None
    if envelope["code"] != 0:
        raise ErrorEnvelopeError(envelope["code"], envelope.get("message") or "")
    chunk: Chunk | None = envelope.get("data")
    if chunk is None:
        raise MalformedLineError("data is null in an envelope with code 0")
    return chunk


def _place(error: ValidationError) -> str:
    """Where a line is wrong and how, without what it says."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return "it is not JSON"
    place = ".".join(str(step) for step in first["loc"][:6])
    return f"{place}: {first['msg']}" if place else first["msg"]
