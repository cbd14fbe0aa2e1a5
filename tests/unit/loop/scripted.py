"""A model that plays a script, and the run of the loop around it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from pydantic import TypeAdapter
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_ai.usage import RequestUsage

from dify_agent.loop.port import Capture, LoopRequest, LoopResult, OutputContract
from dify_agent.loop.run import run_agent_loop

CUT_STREAM = pytest.mark.filterwarnings("ignore:Async generator '(pydantic_ai|tests):ResourceWarning")
"""For a test that stops between two pulls: the nested generators of `StreamedResponse` then warn when collected."""


@dataclass(frozen=True)
class Text:
    content: str
    part: int = 0


@dataclass(frozen=True)
class Thinking:
    content: str
    part: int = 0


@dataclass(frozen=True)
class Call:
    name: str
    args: str | dict[str, Any] | None = "{}"
    id: str = "c1"


@dataclass(frozen=True)
class Fail:
    error: Exception


@dataclass(frozen=True)
class Wait:
    seconds: float = float("inf")


@dataclass(frozen=True)
class Usage:
    input: int
    output: int


Piece = Text | Thinking | Call | Fail | Wait | Usage


@dataclass(frozen=True)
class Turn:
    pieces: tuple[Piece, ...]
    finish: Any = "stop"
    state: Any = "complete"
    opening: Fail | Wait | None = None
    details: dict[str, Any] | None = None


def turn(*pieces: Piece, **more: Any) -> Turn:
    return Turn(pieces, **more)


@dataclass
class ScriptedStream(StreamedResponse):
    turn: Turn = field(default_factory=turn)
    model_name = "scripted-1"
    provider_name = "scripted"
    provider_url = None
    timestamp = datetime(2026, 1, 1, tzinfo=UTC)

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        for position, piece in enumerate(self.turn.pieces):
            match piece:
                case Text(content, part):
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=part, content=content):
                        yield event
                case Thinking(content, part):
                    for event in self._parts_manager.handle_thinking_delta(vendor_part_id=part, content=content):
                        yield event
                case Call(name, args, call_id):
                    for event in self._parts_manager.handle_tool_call_delta_events(
                        vendor_part_id=position + 100, tool_name=name, args=args, tool_call_id=call_id
                    ):
                        yield event
                case Fail(error):
                    raise error
                case Wait(seconds):
                    await trio.sleep(seconds)
                case Usage(given, taken):
                    self._usage = RequestUsage(input_tokens=given, output_tokens=taken)
        self.finish_reason = self.turn.finish
        self.state = self.turn.state
        self.provider_details = self.turn.details


@dataclass
class Sent:
    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters


class ScriptedModel(Model):
    """Plays one turn per request, the last one again and again; keeps what it was sent."""

    def __init__(self, *turns: Turn, system: str = "scripted", settings: ModelSettings | None = None) -> None:
        super().__init__(settings=settings)
        self.turns = list(turns)
        self.sent: list[Sent] = []
        self._system = system

    @property
    def model_name(self) -> str:
        return "scripted-1"

    @property
    def system(self) -> str:
        return self._system

    async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
        raise AssertionError("the loop only streams")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        self.sent.append(Sent(messages, model_settings, model_request_parameters))
        played = self.turns[min(len(self.sent), len(self.turns)) - 1]
        if isinstance(played.opening, Fail):
            raise played.opening.error
        if isinstance(played.opening, Wait):
            await trio.sleep(played.opening.seconds)
        yield ScriptedStream(model_request_parameters, turn=played)


@dataclass
class Ran:
    """One run: how it ended and what it left."""

    model: ScriptedModel
    capture: Capture = field(default_factory=Capture)
    events: list[AgentStreamEvent] = field(default_factory=list)
    result: LoopResult | None = None
    error: BaseException | None = None
    cancelled: bool = False

    @property
    def messages(self) -> list[ModelMessage]:
        return self.capture.messages

    @property
    def kinds(self) -> list[str]:
        return [event.event_kind for event in self.events]

    def parts(self, position: int = -1) -> list[Any]:
        return list(self.messages[position].parts)

    def shape(self) -> list[tuple[str, str, list[str]]]:
        """Kind, state and parts of each message."""
        return [(message.kind, message.state, [part.part_kind for part in message.parts]) for message in self.messages]


async def play(
    *turns: Turn,
    model: ScriptedModel | None = None,
    on_event: Callable[[AgentStreamEvent, Ran], Awaitable[None] | None] | None = None,
    scope: trio.CancelScope | None = None,
    **request: Any,
) -> Ran:
    """Run the loop on a script; an error ends up in the record, a group or a lost cancel fails the test."""
    ran = Ran(model or ScriptedModel(*turns))

    async def sink(event: AgentStreamEvent) -> None:
        ran.events.append(event)
        if on_event is not None and (wait := on_event(event, ran)) is not None:
            await wait

    given = LoopRequest(model=ran.model, **({"prompt": "hi"} | request))
    with scope or trio.CancelScope() as around:
        try:
            ran.result = await run_agent_loop(given, sink=sink, capture=ran.capture)
        except trio.Cancelled as error:
            ran.error = error
            raise
        except ExceptionGroup as group:
            pytest.fail(f"the loop raised a group: {group!r}")
        except Exception as error:
            ran.error = error
    ran.cancelled = around.cancelled_caught
    # A group of cancellations would pass the scope unseen.
    assert ran.cancelled == isinstance(ran.error, trio.Cancelled)
    return ran


async def played_until(seconds: float, *turns: Turn, **request: Any) -> Ran:
    """The same, cancelled after so many seconds."""
    scope = trio.CancelScope(deadline=trio.current_time() + seconds)
    return await play(*turns, scope=scope, **request)


def external(tool: Tool[Any]) -> Tool[Any]:
    """The tool, with its calls left for the outside."""

    def prepare(context: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        definition.kind = "external"
        return definition

    tool.prepare = prepare
    return tool


async def _never() -> None:
    raise AssertionError("external tools are not executed")


def ask(**more: Any) -> Tool[Any]:
    return external(Tool(_never, name="ask", **more))


async def _echo(x: int = 0) -> str:
    return f"x={x}"


def echo(**more: Any) -> Tool[Any]:
    return Tool(_echo, name="echo", **more)


def raising(error: Exception, name: str = "bad", **more: Any) -> Tool[Any]:
    async def fail() -> str:
        raise error

    return Tool(fail, name=name, **more)


def hanging(name: str = "slow") -> Tool[Any]:
    async def hang() -> None:
        await trio.sleep_forever()

    return Tool(hang, name=name)


def number_output() -> OutputContract:
    """An output ``{"n": int}``."""
    schema = {
        "title": "final_output",
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    return OutputContract(json_schema=schema, validator=TypeAdapter(dict[str, int]))


def asked(text: str = "before", **more: Any) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)], **more)


DONE = turn(Text("done"), Usage(10, 2))
