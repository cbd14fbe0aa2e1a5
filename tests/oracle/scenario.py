"""A scenario: what the model says, what the tools do, how each run starts and how it is interrupted. JSON throughout.

Times are ticks of a virtual clock (see ``clock.py``); two things that shall happen in order are at least a tick apart.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Piece = list[Any]
"""One thing the model's stream does. Keys number the parts of a response and are filled in by `turn`.

``["text", key, content]``, ``["thinking", key, content, signature]``, ``["call", key, name, args, id]``,
``["args", key, more]``, ``["file", key]``, ``["usage", input, output]``, ``["state", state]``,
``["delay", ticks]``, ``["hang"]``, ``["error", kind]``."""

Step = list[Any]
"""One thing a tool call does: ``["delay", ticks]``, ``["hang"]``, ``["swallow"]`` (wait until cancelled, and
ignore it); or how it ends: ``["return", value]``, ``["rich", value, content, metadata]``, ``["retry", text]``,
``["fail", text]``, ``["raise", kind]``, ``["defer", metadata]``."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolSpec(_Data):
    """A tool whose calls follow a script; calls beyond it repeat the last entry."""

    name: str
    calls: list[list[Step]] = [[["return", "ok"]]]
    kind: Literal["function", "external", "human", "schema", "open", "two", "context"] = "function"
    """``function`` takes ``x: int, y: str = 'd'``; ``two`` requires ``p`` and ``q``; ``open`` takes any keywords;
    ``context`` is a ``function`` that also takes the run context, and ends a call with ``["context"]`` to tell of it;
    ``schema`` is made of a bare JSON Schema, which Pydantic AI does not check; ``human`` is the tool of the layer
    ``dify.ask_human`` itself, for which only ``config`` counts."""
    config: dict[str, Any] = {}
    """What the layer of a ``human`` tool is configured with, beside the tool's name."""
    max_retries: int | None = None
    sequential: bool = False
    timeout: float | None = None
    """Ticks."""
    sync: bool = False
    check: list[list[Step]] | None = None
    """Script of the argument check, one entry per check: ``[]`` accepts."""


class OutputSpec(_Data):
    """Structured output by the tool ``final_output``."""

    kind: Literal["schema", "contract"] = "schema"
    """``schema`` is checked by the test's own type; ``contract`` is the contract of the layer `dify.output` itself."""
    json_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class Turn(_Data):
    """One model response."""

    opening: list[Piece] = []
    """What happens before the stream is open: ``delay``, ``hang`` or ``error``."""
    pieces: list[Piece] = []
    finish: str | None = "stop"
    """Set when the last piece has been sent."""


class Run(_Data):
    """One run; runs of a scenario share tools, and each continues the history of the one before."""

    turns: list[Turn] = []
    prompt: list[str] | str | None = "go"
    history: list[dict[str, Any]] | None = None
    """Stored messages that replace those of the run before."""
    results: dict[str, Any] | None = None
    instructions: list[str] = []
    settings: dict[str, Any] | None = None
    model_settings: dict[str, Any] | None = None
    """The model's own default settings."""
    limit: int = 500
    without: list[str] = []
    """Tools this run does not have."""
    allow_deferred: bool | None = None
    """None: whether an external tool is on."""
    cancel_event: int | None = None
    """The run is cancelled from inside the sink, at the n-th event."""
    raise_event: int | None = None
    """The sink raises at the n-th event."""
    deadline: float | None = None
    """Ticks after which the run is cancelled."""


class Scenario(_Data):
    """What both sides are given."""

    name: str
    tools: list[ToolSpec] = []
    output: OutputSpec | None = None
    runs: list[Run] = Field(min_length=1)

    @property
    def human(self) -> ToolSpec | None:
        """The tool of the ask-human layer; a composition has at most one."""
        return next((tool for tool in self.tools if tool.kind == "human"), None)

    @property
    def real_time(self) -> bool:
        """Worker threads need the real clock: a virtual one cannot see that a thread is busy."""
        return any(tool.sync for tool in self.tools)


def text(*pieces: str, key: int = -1) -> list[Piece]:
    """A text part, in these pieces."""
    return [["text", key, piece] for piece in pieces]


def thinking(*pieces: str, signature: str | None = None) -> list[Piece]:
    """A thinking part, the signature last."""
    parts: list[Piece] = [["thinking", -1, piece, None] for piece in pieces]
    return parts if signature is None else [*parts, ["thinking", -1, None, signature]]


def call(name: str, args: Any = None, id: str | None = None, *, raw: bool = False) -> list[Piece]:
    """A tool call in one piece. A dict is sent as JSON text unless ``raw``; a string as it is."""
    if isinstance(args, dict) and not raw:
        args = json.dumps(args)
    return [["call", -1, name, args, id]]


def fragments(name: str, pieces: list[str], id: str | None = None) -> list[Piece]:
    """A tool call whose arguments arrive in pieces."""
    return [["call", -1, name, pieces[0], id], *(["args", -1, piece] for piece in pieces[1:])]


def file() -> list[Piece]:
    """A file part."""
    return [["file", -1]]


def usage(input_tokens: int, output_tokens: int) -> list[Piece]:
    """Usage as reported so far; a later report replaces it."""
    return [["usage", input_tokens, output_tokens]]


def delay(ticks: float) -> list[Piece]:
    """A pause."""
    return [["delay", ticks]]


def hang() -> list[Piece]:
    """Nothing more comes."""
    return [["hang"]]


def error(kind: str) -> list[Piece]:
    """An error of this kind (see ``scripted.ERRORS``)."""
    return [["error", kind]]


_KEYED = {"text", "thinking", "call", "args", "file"}


def turn(*parts: list[Piece], finish: str | None = "stop", opening: list[Piece] | None = None) -> Turn:
    """A response of these parts; parts without a key get their position."""
    pieces: list[Piece] = []
    for position, part in enumerate(parts):
        for kind, *rest in part:
            keyed = kind in _KEYED and rest[0] == -1
            pieces.append([kind, position, *rest[1:]] if keyed else [kind, *rest])
    return Turn(pieces=pieces, finish=finish, opening=opening or [])


def say(*pieces: str) -> Turn:
    """A response of one text part."""
    return turn(text(*pieces))
