"""DTOs of the resource routes: Execution Bindings, Home Snapshots, files of a Binding (specification: backends 2.3)."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from dify_agent.protocol.execution_context import DifyExecutionContextLayerConfig
from dify_agent.protocol.wire import WireModel

NonEmptyStr = Annotated[str, StringConstraints(min_length=1)]

MAX_READ_BYTES = 262_144
"""Most bytes of a file that one read returns."""


class CreateExecutionBindingRequest(WireModel):
    """Body of ``POST /execution-bindings``."""

    tenant_id: NonEmptyStr
    agent_id: NonEmptyStr
    binding_id: NonEmptyStr
    workspace_id: NonEmptyStr
    existing_workspace_ref: str | None = None
    home_snapshot_ref: NonEmptyStr | None = None


class CreateExecutionBindingResponse(WireModel):
    """References to the Binding and its Workspace, opaque to callers."""

    binding_ref: NonEmptyStr
    workspace_ref: NonEmptyStr


class DestroyExecutionBindingRequest(WireModel):
    """Body of ``POST /execution-bindings/destroy``."""

    binding_ref: NonEmptyStr
    destroy_workspace: bool
    workspace_ref: str | None = None

    @model_validator(mode="after")
    def _require_workspace(self) -> Self:
        if self.destroy_workspace and not self.workspace_ref:
            raise ValueError("workspace_ref is required when destroy_workspace is true")
        return self


class CreateHomeSnapshotFromBindingRequest(WireModel):
    """Body of ``POST /home-snapshots/from-binding``."""

    tenant_id: NonEmptyStr
    agent_id: NonEmptyStr
    home_snapshot_id: NonEmptyStr
    backend_binding_ref: NonEmptyStr


class HomeSnapshotResponse(WireModel):
    """Reference to an immutable Home Snapshot."""

    snapshot_ref: NonEmptyStr


class DeleteHomeSnapshotRequest(WireModel):
    """Body of ``POST /home-snapshots/delete``."""

    snapshot_ref: NonEmptyStr


class BindingFileListRequest(WireModel):
    """Body of ``POST /execution-bindings/files/list``."""

    backend_binding_ref: NonEmptyStr
    path: str = "."


class BindingFileEntry(WireModel):
    """One entry of a folder. ``size`` is bytes, ``mtime`` seconds since the epoch."""

    name: str
    type: Literal["file", "dir", "symlink", "other"]
    size: int | None = None
    mtime: int | None = None


class BindingFileListResponse(WireModel):
    """A folder's entries, perhaps not all of them."""

    path: str
    entries: list[BindingFileEntry]
    truncated: bool


class BindingFileReadRequest(WireModel):
    """Body of ``POST /execution-bindings/files/read``."""

    backend_binding_ref: NonEmptyStr
    path: NonEmptyStr
    max_bytes: Annotated[int, Field(ge=1, le=MAX_READ_BYTES)] = MAX_READ_BYTES


class BindingFileReadResponse(WireModel):
    """A file's text, or no text when it is binary. ``size`` is bytes."""

    path: str
    size: int | None = None
    truncated: bool
    binary: bool
    text: str | None = None


class BindingFileDownloadRequest(WireModel):
    """Body of ``POST /execution-bindings/files/download``: turn a sandbox file into a Dify file."""

    backend_binding_ref: NonEmptyStr
    path: NonEmptyStr
    execution_context: DifyExecutionContextLayerConfig


class BindingFileDownloadResponse(WireModel):
    """The Dify file's reference."""

    reference: str
