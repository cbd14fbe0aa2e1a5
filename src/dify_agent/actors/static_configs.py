"""What can be read off a request's layer configs before any layer exists."""

from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import from_json

from dify_agent.protocol.execution_context import DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID
from dify_agent.protocol.schemas import CreateRunRequest

MAX_CONFIG_TEXT: Final = 64 * 1024
"""A config that is a longer JSON text is not read here: parsing it would hold up every other run."""
NO_TENANT: Final = ""
"""Stands for the one bucket of all requests without a tenant."""


def config_members(config: Any) -> dict[str, Any] | None:
    """The members of a config, parsed as the run parses it (layers 1.6); None when it has none."""
    if config is None:
        return {}
    if isinstance(config, BaseModel):
        config = config.model_dump(warnings=False)
    if isinstance(config, str | bytes):
        if len(config) > MAX_CONFIG_TEXT:
            return None
        try:
            config = from_json(config)
        except ValueError:
            return None
    return config if isinstance(config, dict) else None


def tenant_of(request: CreateRunRequest) -> str:
    """The ``tenant_id`` of the composition's first execution context, or `NO_TENANT`.

    A config that cannot be read has none; the run itself finds out what is wrong with it.
    """
    for layer in request.composition.layers:
        if layer.type == DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID:
            tenant = (config_members(layer.config) or {}).get("tenant_id")
            return tenant if isinstance(tenant, str) else NO_TENANT
    return NO_TENANT
