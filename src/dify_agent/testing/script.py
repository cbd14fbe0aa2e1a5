"""What the fakes answer: validated data that travels as JSON.

A script has a list of rules per endpoint. The first rule that matches a request answers it, with one of its steps. What
no rule matches is answered by the step's defaults, so an empty script streams text and lets every tool succeed.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, JsonValue, model_validator

MAX_CHUNKS: Final = 1_000_000
MAX_DELAY_MS: Final = 86_400_000
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
MAX_BLOB_BYTES: Final = 64 * 1024 * 1024
MAX_NESTING: Final = 100
AUTO: Final = "auto"

DelayMs = Annotated[float, Field(ge=0, le=MAX_DELAY_MS, allow_inf_nan=False)]
"""A pause in milliseconds, at most a day."""
Count = Annotated[int, Field(ge=0, le=MAX_CHUNKS)]
NonBlank = Annotated[str, Field(min_length=1)]


class Ending(StrEnum):
    """How an answer ends."""

    COMPLETE = "complete"
    CLOSE = "close"
    """The connection is closed in the middle of a chunk."""
    RESET = "reset"
    """The connection is reset in the middle of a chunk."""
    HANG = "hang"
    """Nothing follows until the client leaves."""
    SILENT = "silent"
    """Not even a head is sent; the client has to leave."""


class Newline(StrEnum):
    """What ends a line of a stream."""

    LF = "lf"
    CRLF = "crlf"


class CountBy(StrEnum):
    """What tells which model call of a run a request is, and with it the step."""

    CALL_INDEX = "call_index"
    """``caller.call_index``, which the caller counts."""
    AGENT_RUN_ID = "agent_run_id"
    """Requests of the same ``caller.agent_run_id`` that this rule has answered, this one included."""
    HISTORY = "history"
    """Assistant messages behind the last user message, plus one."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpError(_Data):
    """An answer with an error status, before anything is streamed.

    Without ``body`` and ``html`` the body is the service's own envelope around ``code`` and ``message``.
    """

    status: Annotated[int, Field(ge=400, le=599)]
    code: str = "scripted_error"
    """The Dify API's error code; for the plugin daemon its error type."""
    message: str = "a scripted error"
    body: JsonValue = None
    """Sent as it is in place of the envelope."""
    html: str | None = None
    """Sent as an HTML page, as a proxy in front of the service would."""

    @model_validator(mode="after")
    def _check_body(self) -> Self:
        if self.body is not None and self.html is not None:
            raise ValueError("an HTTP error has 'body' or 'html', not both")
        return self


class EnvelopeError(_Data):
    """An error inside a stream: an envelope whose code is not 0, after which the body ends."""

    code: Annotated[int, Field(lt=0)] = -500
    type: str = "InvokeError"
    message: str = "a scripted error"
    args: dict[str, JsonValue] | None = None
    """What the plugin daemon adds; left out when null."""
    nested: Annotated[int, Field(ge=0, le=MAX_NESTING)] = 0
    """How many ``PluginInvokeError`` are wrapped around it."""
    raw: str | None = None
    """The envelope's ``message`` as it is, in place of the JSON text of type and message."""


class Step(_Data):
    """What every answer has."""

    first_delay_ms: DelayMs = 0
    """Passes before the head of the answer."""
    http_error: HttpError | None = None
    end: Ending = Ending.COMPLETE

    @model_validator(mode="after")
    def _check_http_error(self) -> Self:
        if self.http_error is not None and self.end is Ending.SILENT:
            raise ValueError("a step with 'http_error' cannot be silent")
        return self


class StreamStep(Step):
    """A streamed answer: how its lines are written and cut into packets."""

    delay_ms: DelayMs = 0
    """Passes before each chunk."""
    error: EnvelopeError | None = None
    """Comes behind the chunks."""
    long_line_bytes: Annotated[int, Field(ge=0, le=MAX_LINE_BYTES)] = 0
    """One more chunk behind the others whose text is so many times the letter x."""
    newline: Newline = Newline.LF
    prefix: bool = True
    """False: bare JSON lines, without ``data:``."""
    comments: bool = False
    """A comment line before each chunk."""
    event_lines: bool = False
    """``event:`` and ``id:`` lines before each chunk."""
    one_byte_packets: bool = False
    """Every byte of the body is written on its own."""
    chunks_per_write: Annotated[int, Field(ge=1, le=MAX_CHUNKS)] = 1
    """So many chunks leave in one write: cheaper for the fakes and for the reader."""
    raw: tuple[Base64Bytes, ...] | None = None
    """The body as it is, in base64: each item takes the place of a chunk, and nothing else of the step is sent."""

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.http_error is not None and self.error is not None:
            raise ValueError("a step has 'http_error' or 'error', not both")
        if self.chunks_per_write > 1 and (self.delay_ms or self.one_byte_packets):
            raise ValueError("'chunks_per_write' goes with neither 'delay_ms' nor 'one_byte_packets'")
        return self


class Usage(_Data):
    """Tokens and money of a model call. Prices are decimals in JSON strings, as Dify sends them."""

    prompt_tokens: Annotated[int, Field(ge=0)] = 10
    completion_tokens: Annotated[int, Field(ge=0)] = 5
    total_tokens: Annotated[int, Field(ge=0)] | None = None
    """None: the sum."""
    prompt_unit_price: str = "0"
    prompt_price_unit: str = "0"
    prompt_price: str = "0"
    completion_unit_price: str = "0"
    completion_price_unit: str = "0"
    completion_price: str = "0"
    total_price: str = "0"
    currency: str = "USD"
    latency: float = 0.0


class ToolCall(_Data):
    """A call that the model makes."""

    name: str
    arguments: JsonValue = Field(default_factory=dict)
    """A text is sent as it is, valid JSON or not; anything else as its JSON text."""
    id: str | None = None
    """None: ``call-<number of the model call>-<position>``. An empty text is a missing id; ids may repeat."""
    fragments: Annotated[int, Field(ge=1, le=10_000)] = 1
    """1: a complete call. More: the arguments in so many pieces, a chunk each."""
    fragments_with_id: bool = True
    """Whether the pieces behind the first carry the id. The name is on the first only."""


class LlmStep(StreamStep):
    """The answer to one model call: thinking, then text, then tool calls.

    Finish reason and usage are on the last chunk of a stream that ends regularly.
    """

    text: str | None = None
    """One chunk."""
    pieces: tuple[str, ...] | None = None
    """A chunk each."""
    chunks: Count | None = None
    """So many times ``chunk``. Default of a step without text and tool calls: 20."""
    chunk: str = "tok "
    chunk_size: Annotated[int, Field(ge=1, le=MAX_LINE_BYTES)] | None = None
    """Characters of a chunk: ``chunk`` repeated and cut."""
    echo_text: bool = False
    """The last user message's text is the first chunk."""
    echo_messages: bool = False
    """``prompt_messages`` of every chunk are those of the request, as Dify does. Costs throughput."""
    thinking: str | None = None
    """Sent first, in think tags, in one chunk."""
    tool_calls: tuple[ToolCall, ...] = ()
    null_tool_calls: bool = False
    """``tool_calls`` of messages without calls are null in place of an empty list."""
    finish_reason: str | None = AUTO
    """``auto``: ``tool_calls`` or ``stop``. Null: absent."""
    usage: Usage | None = Usage()
    """Null: absent."""

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        given = [name for name in ("text", "pieces", "chunks") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a step has one of text, pieces and chunks; got {', '.join(given)}")
        return self

    @property
    def texts(self) -> tuple[int, tuple[str, ...]]:
        """How often the pieces come, and the pieces."""
        if self.text is not None:
            return 1, (self.text,)
        if self.pieces is not None:
            return 1, self.pieces
        default = 0 if self.tool_calls or self.thinking is not None or self.echo_text else DEFAULT_CHUNKS
        return (default if self.chunks is None else self.chunks), (self._sized_chunk(),)

    def _sized_chunk(self) -> str:
        if self.chunk_size is None:
            return self.chunk
        return (self.chunk * (self.chunk_size // max(len(self.chunk), 1) + 1))[: self.chunk_size]


DEFAULT_CHUNKS: Final = 20


class ToolMessage(_Data):
    """A message of a plugin tool, sent as it is. Unknown types are allowed: that is a fault to play."""

    type: str = "text"
    message: JsonValue
    meta: dict[str, JsonValue] | None = None


class Blob(_Data):
    """A file that a plugin tool sends in ``blob_chunk`` messages."""

    id: str = "blob-1"
    size: Annotated[int, Field(ge=0, le=MAX_BLOB_BYTES)]
    """Bytes, all zero."""
    chunk_bytes: Annotated[int, Field(ge=1, le=MAX_BLOB_BYTES)] = 8192
    """The most a daemon sends; more is a fault to play."""
    mime_type: str = "application/octet-stream"
    ends: bool = True
    """False: no chunk says that it is the last."""


class ToolStep(StreamStep):
    """The answer of the plugin daemon to a tool call: text, then JSON, messages and files."""

    text: str | None = None
    """Default of a step without anything else: ``ok``."""
    json_object: JsonValue = None
    messages: tuple[ToolMessage, ...] = ()
    blobs: tuple[Blob, ...] = ()

    @property
    def answer_text(self) -> str | None:
        """The text message, if there is one."""
        if self.text is None and self.json_object is None and not self.messages and not self.blobs:
            return None if self.error is not None else "ok"
        return self.text


class JsonStep(Step):
    """An answer that is one JSON value."""

    body: JsonValue = None
    """Sent as it is in place of the service's own form, for instance one that callers must refuse."""


class CoreToolStep(JsonStep):
    """The answer of the Dify API to a core tool."""

    observation: str = "ok"
    messages: tuple[dict[str, JsonValue], ...] = ()
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class KnowledgeStep(JsonStep):
    """The answer of the Dify API to a retrieval. Null results: one that repeats the query, per data set."""

    results: tuple[dict[str, JsonValue], ...] | None = None
    usage: dict[str, JsonValue] = Field(default_factory=dict)


class FileStep(JsonStep):
    """The answer of the Dify API that resolves a file. A non-empty ``error`` is a failure with status 200."""

    filename: str = "file.txt"
    mime_type: str = "text/plain"
    size: int = 4
    download_url: str = "http://127.0.0.1/files/file.txt"
    error: str = ""


StepT = TypeVar("StepT", bound=Step)


class Rule(_Data, Generic[StepT]):
    """Steps for the requests it matches. Without a condition it matches all."""

    steps: Annotated[tuple[StepT, ...], Field(min_length=1)]
    cycle: bool = False
    """Behind the last step: the first again. Otherwise the last step repeats."""

    def step(self, number: int) -> StepT:
        """The step for the ``number``-th request, from 1."""
        place = (number - 1) % len(self.steps) if self.cycle else min(number, len(self.steps)) - 1
        return self.steps[place]


class LlmRule(Rule[LlmStep]):
    """For model calls."""

    model: NonBlank | None = None
    prompt_contains: NonBlank | None = None
    """A text inside the last user message."""
    count_by: CountBy = CountBy.CALL_INDEX
    """The plugin daemon is told neither run nor call, so there it is always ``history``."""


class ToolRule(Rule[ToolStep]):
    """For plugin tools. Steps are taken in the order in which requests arrive, over all runs."""

    tool: NonBlank | None = None


class CoreToolRule(Rule[CoreToolStep]):
    """For core tools; steps as in `ToolRule`."""

    tool: NonBlank | None = None


class KnowledgeRule(Rule[KnowledgeStep]):
    """For retrievals; steps as in `ToolRule`."""

    dataset: NonBlank | None = None
    """One of the request's data sets."""


class FileRule(Rule[FileStep]):
    """For files; steps as in `ToolRule`."""

    reference: NonBlank | None = None


class StubRule(Rule[JsonStep]):
    """For what the Agent Stub and its sandboxes ask for; steps as in `ToolRule`.

    A step with neither ``http_error`` nor ``body`` lets the fakes do what is asked, so it only delays or breaks off.
    """

    path: NonBlank | None = None
    """A part of the request's path."""


class Script(_Data):
    """Everything the fakes say.

    Raises:
        ValidationError: an unknown member, a value out of its range, or members that exclude each other.
    """

    llm: tuple[LlmRule, ...] = ()
    tools: tuple[ToolRule, ...] = ()
    core_tools: tuple[CoreToolRule, ...] = ()
    knowledge: tuple[KnowledgeRule, ...] = ()
    files: tuple[FileRule, ...] = ()
    agent_stub: tuple[StubRule, ...] = ()

    def as_json(self) -> Any:
        """A JSON value that validates to an equal script, without what has its default."""
        return self.model_dump(mode="json", exclude_defaults=True)
