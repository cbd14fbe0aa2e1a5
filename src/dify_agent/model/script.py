"""What a scripted model says: validated data, light to import."""

from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

MAX_CHUNKS: Final = 100_000
MAX_DELAY_MS: Final = 86_400_000
DEFAULT_CHUNK: Final = "tok "

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""Names that every provider accepts for a tool."""

DelayMs = Annotated[float, Field(ge=0, le=MAX_DELAY_MS, allow_inf_nan=False)]
"""A pause in milliseconds, at most a day."""

_ChunkCount = Annotated[int, Field(ge=0, le=MAX_CHUNKS)]
_KINDS: Final = ("text", "chunks", "tool_calls", "hang", "error")
_MEMBERS_OF: Final[dict[str, tuple[object, tuple[str, ...]]]] = {
    "chunk": (DEFAULT_CHUNK, ("chunks", "hang", "error")),
    "after_chunks": (0, ("hang", "error")),
}
"""Member → its default, and the kinds of turn that have it."""


class ScriptedToolCall(BaseModel):
    """A call in a ``tool_calls`` turn. ``args`` that are a text are sent as they are, valid JSON or not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    args: JsonValue = Field(default_factory=dict)
    id: Annotated[str, Field(min_length=1)] | None = None
    """None: made from the position of the response in the history, so that a script has the same ids every time."""


class ScriptedTurn(BaseModel):
    """The answer to one model request: exactly one of ``text``, ``chunks``, ``tool_calls``, ``hang`` and ``error``.

    ``hang`` and ``error`` come after ``after_chunks`` pieces of text. ``delay_ms`` passes before each piece or call.

    Raises:
        ValidationError: another number of kinds, or a member that the kind does not have.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    thinking: str | None = None
    """Sent first, in one piece."""
    text: str | None = None
    chunks: _ChunkCount | None = None
    chunk: str = DEFAULT_CHUNK
    tool_calls: Annotated[tuple[ScriptedToolCall, ...], Field(min_length=1)] | None = None
    hang: bool = False
    error: str | None = None
    after_chunks: _ChunkCount = 0
    delay_ms: DelayMs = 0

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        values = {kind: getattr(self, kind) for kind in _KINDS}
        kinds = [kind for kind, value in values.items() if value is not None and value is not False]
        if len(kinds) != 1:
            given = ", ".join(kinds) or "none"
            raise ValueError(f"a turn must have exactly one of {', '.join(_KINDS)}; got {given}")
        # Values are compared, not what was set: a config that went through a dump has everything set.
        for member, (default, owners) in _MEMBERS_OF.items():
            if getattr(self, member) != default and kinds[0] not in owners:
                raise ValueError(f"'{member}' belongs to a turn with {' or '.join(owners)}, not to one with {kinds[0]}")
        return self

    @property
    def pieces(self) -> tuple[int, str]:
        """Number of text pieces, and the text of each."""
        if self.text is not None:
            return 1, self.text
        if self.chunks is not None:
            return self.chunks, self.chunk
        return self.after_chunks, self.chunk
