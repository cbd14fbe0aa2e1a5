"""A model that says what its script says: for demos, load and tests. No network, no randomness."""

import json
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

import trio
from pydantic import JsonValue
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from dify_agent.errors import DifyAgentError
from dify_agent.model.final_result import final_result
from dify_agent.model.script import ScriptedToolCall, ScriptedTurn

MODEL_NAME: Final = "scripted"
PROMPT_TOKENS_PER_REQUEST: Final = 10

_Step = ModelResponseStreamEvent | float
"""What a script yields: an event, or seconds to wait."""


class ScriptedModelError(DifyAgentError):
    """The script says that the model fails here, with this text."""


class ScriptedModel(Model[None]):
    """Answers the n-th request it gets with the n-th turn; the last turn repeats. One instance per run."""

    def __init__(self, turns: Sequence[ScriptedTurn], *, settings: ModelSettings | None = None) -> None:
        """Take the script.

        Raises:
            ValueError: there is no turn.
        """
        super().__init__(settings=settings)
        if not turns:
            raise ValueError("a scripted model needs at least one turn")
        self._turns: Final = tuple(turns)
        self._requests = 0

    @property
    def model_name(self) -> str:
        """Always ``scripted``."""
        return MODEL_NAME

    @property
    def system(self) -> str:
        """Always ``scripted``."""
        return MODEL_NAME

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The turn in one piece.

        Raises:
            ScriptedModelError: the script says so.
        """
        stream = self._answer(messages, model_settings, model_request_parameters)
        async for _ in stream:
            pass
        return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """The turn as a stream of events."""
        yield self._answer(messages, model_settings, model_request_parameters)

    def _answer(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> "ScriptedStream":
        _, prepared = self.prepare_request(settings, parameters)
        turn = self._turns[min(self._requests, len(self._turns) - 1)]
        self._requests += 1
        # Responses are counted, not requests of this run: a resumed run must not repeat the ids of its history.
        position = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        return ScriptedStream(prepared, turn=turn, number=self._requests, position=position)


@dataclass
class ScriptedStream(StreamedResponse):
    """One turn as it is said. A flat iterator: the base class's four nested generators cost more than the rest.

    Waits only where the script does, so the consumer has to be fair to other tasks.
    """

    turn: ScriptedTurn = field(kw_only=True)
    number: int = field(kw_only=True)
    """Ordinal of the request in the run, from 1."""
    position: int = field(kw_only=True)
    """Ordinal of the response in the history, from 1."""

    def __post_init__(self) -> None:
        self._timestamp = datetime.now(UTC)
        self._parts: list[ModelResponsePart] = []
        self._said = 0
        self._ended = False
        self._steps = self._perform()

    def __aiter__(self) -> Self:
        """The stream is its own iterator: nothing is left to close when the consumer stops early."""
        return self

    async def __anext__(self) -> ModelResponseStreamEvent:
        """The next event, after the script's pause if there is one. A cancelled pause counts as waited."""
        for step in self._steps:
            if isinstance(step, float):
                await trio.sleep(step)
            else:
                return step
        raise StopAsyncIteration

    def get(self) -> ModelResponse:
        """What has been said so far; ``incomplete`` until the turn is over."""
        return ModelResponse(
            parts=[*self._parts[:-1], self._current_part()] if self._parts else [],
            model_name=MODEL_NAME,
            timestamp=self._timestamp,
            usage=self.usage,
            finish_reason=self.finish_reason,
            state="complete" if self._ended else "interrupted" if self.cancelled else "incomplete",
        )

    @property
    def usage(self) -> RequestUsage:
        """Prompt tokens: 10 for each request so far. Completion tokens: text pieces or tool calls said so far."""
        return RequestUsage(input_tokens=PROMPT_TOKENS_PER_REQUEST * self.number, output_tokens=self._said)

    @property
    def model_name(self) -> str:
        """Always ``scripted``."""
        return MODEL_NAME

    @property
    def provider_name(self) -> None:
        """There is no provider."""

    @property
    def provider_url(self) -> None:
        """There is no provider."""

    @property
    def timestamp(self) -> datetime:
        """When the request was made."""
        return self._timestamp

    async def close_stream(self) -> None:
        """Nothing is open."""

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in self:
            yield event

    def _perform(self) -> Iterator[_Step]:
        turn = self.turn
        if turn.thinking is not None:
            yield from self._begin(ThinkingPart(turn.thinking))
        if turn.tool_calls is not None:
            yield from self._call_tools(turn.tool_calls)
        elif turn.after_chunks or not (turn.hang or turn.error is not None):
            yield from self._say(*turn.pieces)
        while turn.hang:
            yield math.inf
        if turn.error is not None:
            raise ScriptedModelError(turn.error)
        self.finish_reason = "stop" if turn.tool_calls is None else "tool_call"
        end = self._end(None)
        self._ended = True
        yield end

    def _say(self, count: int, piece: str) -> Iterator[_Step]:
        yield from self._begin(TextPart(""))
        # All pieces are equal, so one event serves for all.
        event = PartDeltaEvent(index=len(self._parts) - 1, delta=TextPartDelta(piece))
        for _ in range(count):
            yield from self._pause()
            self._said += 1
            yield event

    def _call_tools(self, calls: Sequence[ScriptedToolCall]) -> Iterator[_Step]:
        for number, call in enumerate(calls, start=1):
            yield from self._pause()
            self._said += 1
            call_id = call.id or f"call_{self.position}_{number}"
            yield from self._begin(ToolCallPart(call.name, _arguments(call.args), call_id))

    def _pause(self) -> Iterator[_Step]:
        if self.turn.delay_ms:
            yield self.turn.delay_ms / 1000

    def _begin(self, part: ModelResponsePart) -> Iterator[_Step]:
        """End the part before, start ``part``, and mark the first one that can be the run's result."""
        previous = None
        if self._parts:
            previous = self._parts[-1].part_kind
            yield self._end(part.part_kind)
        self._parts.append(part)
        yield PartStartEvent(index=len(self._parts) - 1, part=part, previous_part_kind=_narrow(previous))
        if self.final_result_event is None:
            self.final_result_event = final_result(part, self.model_request_parameters)
            if self.final_result_event is not None:
                yield self.final_result_event

    def _end(self, next_kind: str | None) -> PartEndEvent:
        self._parts[-1] = self._current_part()
        return PartEndEvent(index=len(self._parts) - 1, part=self._parts[-1], next_part_kind=_narrow(next_kind))

    def _current_part(self) -> ModelResponsePart:
        part = self._parts[-1]
        return TextPart(self.turn.pieces[1] * self._said) if isinstance(part, TextPart) else part


def _narrow(kind: str | None) -> Any:
    """A part kind where Pydantic AI's annotation is a literal of its own."""
    return kind


def _arguments(args: JsonValue) -> str | dict[str, Any] | None:
    if args is None or isinstance(args, (str, dict)):
        return args
    return json.dumps(args)
