"""Value types of layers: config and runtime-state models, lifecycle states, exit intents."""

from enum import StrEnum
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, SerializeAsAny


class LifecycleState(StrEnum):
    """Where one layer of one run stands. The values are wire values.

    ``ACTIVE`` exists only inside a run and is refused in every snapshot; ``CLOSED`` cannot be entered again.
    """

    NEW = "new"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class ExitIntent(StrEnum):
    """What leaving the run does to a layer: ``DELETE`` closes it, ``SUSPEND`` keeps it resumable."""

    DELETE = "delete"
    SUSPEND = "suspend"


class LayerConfig(BaseModel):
    """Base of every layer's config DTO; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class EmptyLayerConfig(LayerConfig):
    """Config of a layer that has nothing to configure: any field is an error."""

    model_config = ConfigDict(extra="forbid")


class EmptyRuntimeState(BaseModel):
    """Runtime state of a layer that has nothing to remember between runs."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


LayerConfigValue: TypeAlias = JsonValue | SerializeAsAny[LayerConfig]
"""A layer's config as a DTO carries it: JSON, or a config model that is serialised by its own class."""
