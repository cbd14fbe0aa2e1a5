"""Events of a run and the page they are polled in (protocol 2.8, 2.10).

Member order is part of the contract: ``id``, ``run_id``, ``created_at``, ``type``, ``data``, ``agent_message_delta``.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator

from agenton.compositor import CompositorSessionSnapshot
from dify_agent.protocol.requests import RunFailureType
from dify_agent.protocol.stream_events import WireStreamEvent, text_of
from dify_agent.protocol.usage import AgentRunUsage
from dify_agent.protocol.wire import UtcDatetime, WireModel, utc_now

RunEventType = Literal["run_started", "pydantic_ai_event", "run_succeeded", "run_failed", "run_cancelled"]

_SUCCESS_ORDER = ("session_snapshot", "output", "deferred_tool_call", "usage")


def _is_none(value: object) -> bool:
    return value is None


OptionalUsage = Annotated[AgentRunUsage | None, Field(exclude_if=_is_none)]
"""Usage that is left out of the JSON when unknown: strict readers of older generations do not know it (decision D3)."""


class EmptyRunEventData(WireModel):
    """Data of ``run_started``."""


class DeferredToolCallPayload(WireModel):
    """The call that a run ended with and that the caller answers in its next run."""

    tool_call_id: str
    tool_name: str
    args: JsonValue
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class RunSucceededEventData(WireModel):
    """A run's result: an output (which may be null) or a deferred call, never both.

    The inactive branch and an unknown usage are left out of the JSON (quirk Q2).

    Raises:
        ValidationError: ``Exactly one of output or deferred_tool_call must be set``. ``output`` counts as set when
            given, even as null; ``deferred_tool_call`` when not null.
    """

    output: JsonValue = None
    deferred_tool_call: DeferredToolCallPayload | None = None
    session_snapshot: CompositorSessionSnapshot
    usage: AgentRunUsage | None = None

    @model_validator(mode="after")
    def _check_branch(self) -> Self:
        if ("output" in self.model_fields_set) == (self.deferred_tool_call is not None):
            raise ValueError("Exactly one of output or deferred_tool_call must be set")
        return self

    @model_serializer(mode="wrap")
    def _write_active_branch(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = handler(self)
        left_out = {"deferred_tool_call" if self.deferred_tool_call is None else "output"}
        if self.usage is None:
            left_out.add("usage")
        return {name: data[name] for name in _SUCCESS_ORDER if name in data and name not in left_out}


class RunFailedEventData(WireModel):
    """Why a run failed. The snapshot is there only when layers were entered and left."""

    error: str
    error_type: RunFailureType | None = None
    reason: str | None = None
    session_snapshot: CompositorSessionSnapshot | None = None
    usage: OptionalUsage = None


class RunCancelledEventData(WireModel):
    """Reason and message of the first accepted cancel request. Snapshot as in `RunFailedEventData`."""

    reason: str | None = None
    message: str | None = None
    session_snapshot: CompositorSessionSnapshot | None = None
    usage: OptionalUsage = None


class BaseRunEvent(WireModel):
    """Members of every event. ``id`` is the position in the run's log: absent until the event is stored."""

    id: str | None = None
    run_id: str
    created_at: UtcDatetime = Field(default_factory=utc_now)


class RunStartedEvent(BaseRunEvent):
    """First event of a run that executes."""

    type: Literal["run_started"] = "run_started"
    data: EmptyRunEventData = Field(default_factory=EmptyRunEventData)


class PydanticAIStreamRunEvent(BaseRunEvent):
    """One event of the agent loop.

    ``agent_message_delta`` always follows from ``data``; a given value is checked for its type and then replaced. All
    non-null values of a run, joined, are the streamed agent text (quirk Q3).
    """

    type: Literal["pydantic_ai_event"] = "pydantic_ai_event"
    data: WireStreamEvent
    agent_message_delta: str | None = None

    @model_validator(mode="after")
    def _derive_delta(self) -> Self:
        self.agent_message_delta = text_of(self.data)
        return self


class RunSucceededEvent(BaseRunEvent):
    """Terminal: the run has a result."""

    type: Literal["run_succeeded"] = "run_succeeded"
    data: RunSucceededEventData


class RunFailedEvent(BaseRunEvent):
    """Terminal: the run failed."""

    type: Literal["run_failed"] = "run_failed"
    data: RunFailedEventData


class RunCancelledEvent(BaseRunEvent):
    """Terminal: a cancel request won."""

    type: Literal["run_cancelled"] = "run_cancelled"
    data: RunCancelledEventData = Field(default_factory=RunCancelledEventData)


RunEvent = Annotated[
    RunStartedEvent | PydanticAIStreamRunEvent | RunSucceededEvent | RunFailedEvent | RunCancelledEvent,
    Field(discriminator="type"),
]
"""Any event of a run, told apart by ``type``."""

RUN_EVENT_ADAPTER: TypeAdapter[RunEvent] = TypeAdapter(RunEvent)
"""Reads and writes one event: ``validate_json``, ``validate_python``, ``dump_json(event, exclude={"id"})``."""


class RunEventsResponse(WireModel):
    """A page of ``GET /runs/{run_id}/events``: events oldest first, and the cursor behind the last of them."""

    run_id: str
    events: list[RunEvent]
    next_cursor: str | None = None
