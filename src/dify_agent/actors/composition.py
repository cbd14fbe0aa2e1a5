"""From a request to a graph that can be entered: the checks that need no layer (protocol 3.2, P1 to P3).

Runs inside the run actor, after ``run_started``; every failure here is a failed run without a snapshot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agenton.compositor import Compositor, CompositorSessionSnapshot, LayerProvider
from agenton.layers import ExitIntent
from dify_agent.errors import AgentRunValidationError
from dify_agent.layers.registry import ADMITTED_BY, PYDANTIC_AI_TRANSFORMERS
from dify_agent.protocol.schemas import (
    DIFY_AGENT_HISTORY_LAYER_ID,
    DIFY_AGENT_MODEL_LAYER_ID,
    DIFY_AGENT_OUTPUT_LAYER_ID,
    CreateRunRequest,
    RunComposition,
    normalize_composition,
)

HISTORY_TYPE: Final = "pydantic_ai.history"
OUTPUT_TYPE: Final = "dify.output"
ASK_HUMAN_TYPE: Final = "dify.ask_human"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A checked composition: enter it with ``configs`` and ``snapshot``, leave each layer with its intent."""

    compositor: Compositor[Any, Any, Any, Any, Any, Any]
    configs: Mapping[str, Any]
    snapshot: CompositorSessionSnapshot | None
    intents: Mapping[str, ExitIntent]
    lifecycle_only: bool
    """A cleanup run: layers enter and leave, no model is called (decision D2)."""


def plan_run(request: CreateRunRequest, providers: Sequence[LayerProvider[Any]]) -> RunPlan:
    """Check the composition and build its graph.

    Raises:
        AgentRunValidationError: with the text of the first check that failed.
    """
    try:
        _check_reserved(request.composition, OUTPUT_TYPE, DIFY_AGENT_OUTPUT_LAYER_ID)
        _check_reserved(request.composition, HISTORY_TYPE, DIFY_AGENT_HISTORY_LAYER_ID)
        _check_history_deps(request.composition)
        _check_single_ask_human(request.composition)
        graph, configs = normalize_composition(request.composition)
        compositor = Compositor.from_config(graph, providers=providers, **PYDANTIC_AI_TRANSFORMERS)
        names = [node.name for node in compositor.nodes]
        unknown = sorted(set(request.on_exit.layers) - set(names))
        if unknown:
            raise ValueError(f"on_exit.layers references unknown layer ids: {', '.join(unknown)}.")
    except (KeyError, TypeError, ValueError) as error:
        raise AgentRunValidationError(str(error)) from error
    lifecycle_only = DIFY_AGENT_MODEL_LAYER_ID not in names
    snapshot = request.session_snapshot
    if lifecycle_only:
        snapshot = _cleanup_snapshot(request, names)
    intents = {name: request.on_exit.layers.get(name, request.on_exit.default) for name in names}
    return RunPlan(compositor, configs, snapshot, intents, lifecycle_only)


def withheld_types(request: CreateRunRequest, providers: Sequence[LayerProvider[Any]]) -> Mapping[str, str]:
    """Layer types of the request that are not registered because of a setting, and its variable."""
    asked = {layer.type for layer in request.composition.layers} & ADMITTED_BY.keys()
    known = {provider.type_id for provider in providers}
    return {type_id: ADMITTED_BY[type_id] for type_id in sorted(asked - known)}


def _cleanup_snapshot(request: CreateRunRequest, names: Sequence[str]) -> CompositorSessionSnapshot:
    """The snapshot of a run without a model: entries whose layer the composition omits are dropped (protocol 6.5)."""
    if request.session_snapshot is None:
        raise AgentRunValidationError("Missing required 'llm' layer.")
    if request.deferred_tool_results is not None:
        raise AgentRunValidationError("Deferred tool results require the reserved 'llm' layer.")
    kept = [layer for layer in request.session_snapshot.layers if layer.name in names]
    return request.session_snapshot.model_copy(update={"layers": kept})


def _named(composition: RunComposition, type_id: str) -> list[str]:
    return [layer.name for layer in composition.layers if layer.type == type_id]


def _check_reserved(composition: RunComposition, type_id: str, reserved: str) -> None:
    names = _named(composition, type_id)
    if len(names) > 1:
        raise ValueError(
            f"Only one '{type_id}' layer is supported, named '{reserved}'. Found layers: {', '.join(names)}."
        )
    if names and names[0] != reserved:
        raise ValueError(f"Layer type '{type_id}' must use reserved layer name '{reserved}', got '{names[0]}'.")


def _check_history_deps(composition: RunComposition) -> None:
    for layer in composition.layers:
        if layer.type == HISTORY_TYPE and layer.deps:
            keys = ", ".join(sorted(layer.deps))
            raise ValueError(f"Layer type '{HISTORY_TYPE}' does not support dependencies; got dependency keys: {keys}.")


def _check_single_ask_human(composition: RunComposition) -> None:
    names = _named(composition, ASK_HUMAN_TYPE)
    if len(names) > 1:
        raise ValueError(f"Only one '{ASK_HUMAN_TYPE}' layer is supported. Found layers: {', '.join(names)}.")
