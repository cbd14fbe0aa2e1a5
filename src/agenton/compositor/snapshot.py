"""Session snapshots: what a run leaves behind, and how the next one takes it up."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, field_validator
from pydantic_core import to_json

from agenton.compositor.boundary import validate_boundary
from agenton.json_values import NotJsonDataError, collector_paused, is_exact, json_data, plain_data
from agenton.layers.base import AnyLayer, LifecycleState

SNAPSHOT_SCHEMA_VERSION = 1
MAX_STATE_DEPTH = 190
"""Nesting of one layer's runtime state: a snapshot is part of a request body and of an event, which nest 200 deep."""

_BLURRED_KEY = "\ufffd\ufffd\ufffd".encode()
"""What a lone surrogate in a key becomes in a dump to Python values. The dump to text refuses one, and costs twice."""


class LayerSessionSnapshot(BaseModel):
    """One layer's part of a snapshot: its state and its serialised runtime state, nothing else."""

    model_config = ConfigDict(extra="forbid")

    name: str
    lifecycle_state: LifecycleState
    runtime_state: dict[str, JsonValue]

    @field_validator("lifecycle_state")
    @classmethod
    def _refuse_active(cls, state: LifecycleState) -> LifecycleState:
        if state is LifecycleState.ACTIVE:
            raise ValueError("LifecycleState.ACTIVE is internal-only and cannot appear in session snapshots.")
        return state


class CompositorSessionSnapshot(BaseModel):
    """Snapshot of a whole run: one entry per node, in node order. Contains no config, type ids or live resources."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SNAPSHOT_SCHEMA_VERSION
    layers: list[LayerSessionSnapshot]


CompositorSessionSnapshotValue: TypeAlias = CompositorSessionSnapshot | JsonValue | Mapping[str, object] | bytes
"""What is accepted as a snapshot: the model, its JSON value, a mapping, or JSON text."""


def checked_snapshot(value: CompositorSessionSnapshotValue, names: Sequence[str]) -> CompositorSessionSnapshot:
    """Validate ``value`` as a snapshot of a composition with exactly these node names, in this order.

    Raises:
        pydantic.ValidationError: it is no snapshot, or holds an ``active`` layer.
        ValueError: another schema version, or other names.
    """
    snapshot = validate_boundary(CompositorSessionSnapshot, value)
    if snapshot.schema_version != SNAPSHOT_SCHEMA_VERSION:
        raise ValueError(f"Unsupported compositor session snapshot schema_version: {snapshot.schema_version}.")
    found = [layer.name for layer in snapshot.layers]
    if found != list(names):
        raise ValueError(
            "CompositorSessionSnapshot layer names must match compositor layers in order. "
            f"Expected [{', '.join(names)}], got [{', '.join(found)}]."
        )
    return snapshot


def hydrate(layer: AnyLayer, runtime_state: Mapping[str, Any]) -> None:
    """Replace the layer's runtime state by the stored one.

    It is read as JSON, not as Python values: a strict field, or bytes stored as base64, comes back only that way.

    Raises:
        pydantic.ValidationError: the stored state does not fit the layer's ``runtime_state_type``.
    """
    layer.runtime_state = layer.runtime_state_type.model_validate_json(
        to_json(runtime_state), by_alias=True, by_name=True
    )


def take_snapshot(layers: Iterable[tuple[str, AnyLayer, LifecycleState]]) -> CompositorSessionSnapshot:
    """Snapshot of the given layers in the given order. What JSON cannot hold is replaced as `json_data` says.

    Raises:
        ValueError: a layer's runtime state has no JSON form, or could not be read back from it. Names the layer.
    """
    with collector_paused():
        return CompositorSessionSnapshot(
            layers=[
                LayerSessionSnapshot(name=name, lifecycle_state=state, runtime_state=_stored_state(name, layer))
                for name, layer, state in layers
            ]
        )


def _stored_state(name: str, layer: AnyLayer) -> dict[str, Any]:
    try:
        stored = _json_state(layer.runtime_state)
    except (ValueError, RecursionError) as error:
        text = str(error).encode(errors="replace").decode()
        raise ValueError(f"The runtime state of layer '{name}' cannot be stored as JSON: {text}") from error
    if stored.replaced:
        try:
            layer.runtime_state_type.model_validate_json(to_json(stored.data), by_alias=True, by_name=True)
        except ValidationError as error:
            raise ValueError(
                f"The runtime state of layer '{name}' has values that JSON cannot hold, and does not fit its type "
                f"without them: {error}"
            ) from error
    return stored.data


class _Stored(NamedTuple):
    data: dict[str, Any]
    replaced: bool
    """Whether some value had to be replaced, so that the state may not be readable any more."""


def _json_state(state: BaseModel) -> _Stored:
    """The state as its own serializers write it, without what JSON cannot hold."""
    try:
        dumped = state.model_dump(mode="json", warnings=False)
        if is_exact(dumped, MAX_STATE_DEPTH):
            if _BLURRED_KEY in to_json(dumped):
                state.model_dump_json(warnings=False)  # refuses what was blurred
            return _Stored(dumped, replaced=False)
    except (ValueError, RecursionError):
        pass
    try:
        data = plain_data(state.model_dump(mode="python", warnings=False), MAX_STATE_DEPTH)
    except NotJsonDataError:  # types that only their serializers know
        data = json_data(state.model_dump(mode="json", warnings=False), MAX_STATE_DEPTH)
    return _Stored(data, replaced=True)
