"""What one run of the loop holds: the request it was given, its counters, and the steps' way to the history."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import trio
from pydantic_ai.exceptions import IncompleteToolCall
from pydantic_ai.messages import (
    AgentStreamEvent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings, merge_model_settings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import UsageLimits

from dify_agent.loop.limits import add_usage, storable_usage
from dify_agent.loop.port import Capture, EventSink, LoopRequest
from dify_agent.loop.retries import OutputRetries, ToolRetries
from dify_agent.loop.texts import cut_tool_call
from dify_agent.loop.toolbox import Toolbox, build_toolbox

EVENTS_PER_CHECKPOINT = 16
"""A stream that never blocks, and a response of many calls, give way to other runs after so many events: 5 ms with the
slowest adapter measured."""


@dataclass(slots=True)
class Run:
    """One run. Built by `new_run`; changed only by the task that drives the loop, except for the retry counters,
    which tool tasks note their outcome in."""

    request: LoopRequest
    sink: EventSink
    capture: Capture
    run_id: str
    conversation_id: str
    settings: ModelSettings | None
    limits: UsageLimits
    context: RunContext[Any]
    instruction_parts: list[InstructionPart]
    instructions: str | None
    step: int = 0
    tool_retries: ToolRetries = field(default_factory=ToolRetries)
    output_retries: OutputRetries = field(default_factory=OutputRetries)
    _emitted: int = 0
    _toolbox: Toolbox | None = None
    _parameters: ModelRequestParameters | None = None

    @property
    def messages(self) -> list[ModelMessage]:
        """The history, which is also what the caller sees as captured."""
        return self.capture.messages

    @property
    def max_tokens(self) -> int | None:
        """The token limit of the settings, for error texts."""
        return self.settings.get("max_tokens") if self.settings else None

    async def emit(self, event: AgentStreamEvent) -> None:
        """Hand one event to the sink; a cancel that came meanwhile is noticed here. Gives way to other runs after
        `EVENTS_PER_CHECKPOINT` events, whatever they tell of."""
        await self.sink(event)
        self._emitted += 1
        if self._emitted % EVENTS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def tools(self) -> Toolbox:
        """The tools of this run, prepared when they are first needed."""
        if self._toolbox is None:
            self._toolbox = await build_toolbox(self.request.tools, self.request.output, self.context)
        return self._toolbox

    async def parameters(self) -> ModelRequestParameters:
        """What every model request of the run is sent with; the same object each time."""
        if self._parameters is None:
            toolbox = await self.tools()
            with_output = self.request.output is not None
            self._parameters = ModelRequestParameters(
                function_tools=[entry.definition for entry in toolbox.entries.values()],
                output_tools=[toolbox.output] if toolbox.output is not None else [],
                output_mode="tool" if with_output else "text",
                allow_text_output=not with_output,
                instruction_parts=self.instruction_parts or None,
            )
        return self._parameters

    def stamp(self, message: ModelMessage) -> None:
        """Fill in the ids of this run where the message has none."""
        message.run_id = message.run_id or self.run_id
        message.conversation_id = message.conversation_id or self.conversation_id

    def append_response(self, response: ModelResponse) -> None:
        """Store a response, complete or interrupted, and count its usage.

        An interrupted response without parts, which a failed open leaves, does not count against the request limit.
        """
        self.stamp(response)
        response.model_id = response.model_id or self.request.model.model_id
        usage = self.capture.usage
        response.usage = storable_usage(response.usage)
        add_usage(usage, response.usage)
        if response.state == "complete" or response.parts:
            usage.requests += 1
        self.messages.append(response)

    def append_results(self, parts: list[ModelRequestPart], *, interrupted: bool) -> None:
        """Store results behind the response they answer, in a request that is not going to be sent by this run."""
        self.messages.append(
            ModelRequest(
                parts=list(parts),
                timestamp=now(),
                run_id=self.run_id,
                conversation_id=self.conversation_id,
                state="interrupted" if interrupted else "complete",
            )
        )

    def refuse_cut_call(self) -> None:
        """Blame the token limit when it cut the arguments of the last response's last call.

        Raises:
            IncompleteToolCall: it did, so that another attempt would be cut as well.
        """
        last = self.messages[-1] if self.messages else None
        if not isinstance(last, ModelResponse) or last.finish_reason != "length" or not last.parts:
            return
        call = last.parts[-1]
        if isinstance(call, ToolCallPart) and not _complete(call):
            raise IncompleteToolCall(cut_tool_call(self.max_tokens))


def new_run(request: LoopRequest, *, sink: EventSink, capture: Capture) -> Run:
    """A run that has not started yet."""
    parts = [InstructionPart(content=text, dynamic=True) for text in request.instructions if text]
    run_id = str(uuid4())
    conversation_id = _conversation_of(request.history)
    limits = UsageLimits(request_limit=request.request_limit)
    return Run(
        request=request,
        sink=sink,
        capture=capture,
        run_id=run_id,
        conversation_id=conversation_id,
        settings=merge_model_settings(request.model.settings, request.model_settings) or None,
        limits=limits,
        context=RunContext(
            deps=None,
            model=request.model,
            usage=capture.usage,
            usage_limits=limits,
            prompt=request.prompt,
            messages=capture.messages,
            run_id=run_id,
            conversation_id=conversation_id,
        ),
        instruction_parts=InstructionPart.sorted(parts),
        instructions=InstructionPart.join(parts) if parts else None,
    )


def _complete(call: ToolCallPart) -> bool:
    try:
        call.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return False
    return True


def now() -> datetime:
    """The time to stamp a message with."""
    return datetime.now(tz=UTC)


def _conversation_of(history: Any) -> str:
    for message in reversed(history):
        if message.conversation_id is not None:
            return str(message.conversation_id)
    return str(uuid4())
