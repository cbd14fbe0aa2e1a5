"""Requests of the run API and their answers (specification: protocol 2.1 to 2.7, 2.10 lives with the events)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, PlainValidator, TypeAdapter
from pydantic_ai.tools import DeferredToolResults

from agenton.compositor import CompositorConfig, CompositorSessionSnapshot, LayerConfigInput, LayerNodeConfig
from agenton.layers import ExitIntent
from dify_agent.protocol.wire import UtcDatetime, WireModel, ZonedUtcDatetime

DIFY_AGENT_MODEL_LAYER_ID = "llm"
"""Reserved layer name: the run's model."""
DIFY_AGENT_HISTORY_LAYER_ID = "history"
"""Reserved layer name: the run's message history."""
DIFY_AGENT_OUTPUT_LAYER_ID = "output"
"""Reserved layer name: the run's structured output."""

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
"""There is no queued and no paused state."""


class RunFailureType(StrEnum):
    """Stable kind of failure. Callers parse it strictly, so new kinds go into ``reason`` (decision R6)."""

    AGENT_RUN_LIMIT_EXCEEDED = "agent_run_limit_exceeded"
    """The budget of model requests or the wall-clock deadline of the agent loop is spent."""


_JSON_VALUE: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def _check_layer_config(value: object) -> object:
    """Keep what a layer can validate later: a config DTO as the same instance, JSON text as text, any JSON value."""
    if value is None or isinstance(value, BaseModel | str | bytes):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return _JSON_VALUE.validate_python(value)


if TYPE_CHECKING:
    _LayerConfigField = LayerConfigInput
else:
    # `Any` serialises by the value's own class, so a config DTO is written with all its fields. A union would instead
    # copy a plain `{}` into the first config class that accepts it.
    _LayerConfigField = Annotated[Any, PlainValidator(_check_layer_config, json_schema_input_type=JsonValue)]


class RunLayerSpec(WireModel):
    """One layer of a composition. ``type`` and ``config`` are judged when the run starts, not when it is created."""

    name: str
    type: str
    deps: dict[str, str] = Field(default_factory=dict)
    """Dependency field of this layer → name of an earlier layer."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Carried, never interpreted, never in snapshots."""
    config: _LayerConfigField = None
    """None is an empty config; a string is JSON text (quirk Q23)."""


class RunComposition(WireModel):
    """The layers of a run, in order: dependencies point backwards, snapshots match by order."""

    schema_version: int = 1
    layers: list[RunLayerSpec]


class LayerExitSignals(WireModel):
    """How layers leave a run: ``suspend`` keeps them resumable, ``delete`` closes them."""

    default: ExitIntent = ExitIntent.SUSPEND
    layers: dict[str, ExitIntent] = Field(default_factory=dict)


class DeferredToolResultsPayload(WireModel):
    """Answers to deferred tool calls, by tool call id. Its presence, even empty, makes the run a resume (quirk Q21)."""

    calls: dict[str, JsonValue] = Field(default_factory=dict)
    metadata: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)

    def to_pydantic_ai(self) -> DeferredToolResults:
        """The same results as the object that Pydantic AI's message history is resumed with."""
        return DeferredToolResults(calls=dict(self.calls), metadata={key: dict(v) for key, v in self.metadata.items()})


class CreateRunRequest(WireModel):
    """Body of ``POST /runs``."""

    composition: RunComposition
    idempotency_key: str | None = None
    """A repeat with the same key and body gets the first run's id (decision R5)."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Accepted and ignored."""
    session_snapshot: CompositorSessionSnapshot | None = None
    deferred_tool_results: DeferredToolResultsPayload | None = None
    on_exit: LayerExitSignals = Field(default_factory=LayerExitSignals)


class CreateRunResponse(WireModel):
    """Answer of ``POST /runs``; the status is always ``running``."""

    run_id: str
    status: RunStatus


class CancelRunRequest(WireModel):
    """Body of ``POST /runs/{run_id}/cancel``. Required, ``{}`` is enough (quirk Q4)."""

    reason: str | None = None
    message: str | None = None


class CancelRunResponse(WireModel):
    """Acknowledges the durable intent; the record may say ``running`` until the owner has cleaned up."""

    run_id: str
    status: Literal["cancelled"]


class RunStatusResponse(WireModel):
    """Answer of ``GET /runs/{run_id}``, and the run's stored record (protocol 2.7, 5.2).

    Reads records of older writers: ``error_type`` may be missing, ``+00:00`` may stand for ``Z``.
    """

    run_id: str
    status: RunStatus
    created_at: UtcDatetime
    updated_at: ZonedUtcDatetime
    """Changed only by the terminal transition, then equal to the terminal event's ``created_at`` (quirk Q10)."""
    error: str | None = None
    error_type: RunFailureType | None = None


def normalize_composition(composition: RunComposition) -> tuple[CompositorConfig, dict[str, LayerConfigInput]]:
    """Split a composition into the compositor's graph and each layer's config by name, as given.

    A later layer of the same name wins in the dict; the graph keeps both, and the compositor refuses it.
    """
    nodes = [
        LayerNodeConfig(name=spec.name, type=spec.type, deps=dict(spec.deps), metadata=dict(spec.metadata))
        for spec in composition.layers
    ]
    graph = CompositorConfig(schema_version=composition.schema_version, layers=nodes)
    return graph, {spec.name: spec.config for spec in composition.layers}
