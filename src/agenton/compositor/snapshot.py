"""Session snapshots: what a run leaves behind, and how the next one takes it up."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, field_validator
from pydantic_core import to_json

from agenton.compositor.boundary import validate_boundary
from agenton.layers.base import AnyLayer, LifecycleState

SNAPSHOT_SCHEMA_VERSION = 1


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
    """Snapshot of the given layers in the given order."""
    return CompositorSessionSnapshot(
        layers=[
            LayerSessionSnapshot(
                name=name,
                lifecycle_state=state,
                runtime_state=layer.runtime_state.model_dump(mode="json"),
            )
            for name, layer, state in layers
        ]
    )
