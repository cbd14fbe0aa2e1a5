"""The checks before any layer is entered: each text of protocol 3.2, P1 to P3."""

from typing import Any

import pytest
from tests.unit.actors.world import request

from agenton.compositor import LayerProvider
from agenton.layers import ExitIntent, NoLayerDeps, PlainLayer
from agenton_collections import PromptLayer
from dify_agent.actors.composition import RunPlan, plan_run
from dify_agent.errors import AgentRunValidationError
from dify_agent.layers.registry import PydanticAIHistoryLayer


class DependentDeps(NoLayerDeps):
    """One dependency."""

    first: PromptLayer | None


class DependentLayer(PlainLayer[DependentDeps]):
    """A layer that declares a dependency."""

    type_id = "test.dependent"


class PlainModelLayer(PlainLayer[NoLayerDeps]):
    """Stands in the model's place."""

    type_id = "test.model"


PROVIDERS = [
    LayerProvider.from_layer_type(layer)
    for layer in (PromptLayer, PydanticAIHistoryLayer, DependentLayer, PlainModelLayer)
]
LLM = {"name": "llm", "type": "test.model"}
PROMPT = {"name": "prompt", "type": "plain.prompt"}
HISTORY = {"name": "history", "type": "pydantic_ai.history"}
SNAPSHOT = {
    "layers": [
        {"name": name, "lifecycle_state": "suspended", "runtime_state": {}} for name in ("prompt", "history", "llm")
    ]
}


def layer(name: str, type_id: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "type": type_id, **members}


def plan(*layers: dict[str, Any], schema_version: int = 1, **members: Any) -> RunPlan:
    made = request(*layers, **members)
    composition = made.composition.model_copy(update={"schema_version": schema_version})
    return plan_run(made.model_copy(update={"composition": composition}), PROVIDERS)


REFUSED: list[tuple[str, tuple[dict[str, Any], ...], dict[str, Any], str]] = [
    (
        "two outputs",
        (layer("output", "dify.output"), layer("b", "dify.output"), LLM),
        {},
        "Only one 'dify.output' layer is supported, named 'output'. Found layers: output, b.",
    ),
    (
        "output by another name",
        (layer("out", "dify.output"), LLM),
        {},
        "Layer type 'dify.output' must use reserved layer name 'output', got 'out'.",
    ),
    (
        "two histories",
        (HISTORY, layer("b", "pydantic_ai.history"), LLM),
        {},
        "Only one 'pydantic_ai.history' layer is supported, named 'history'. Found layers: history, b.",
    ),
    (
        "history by another name",
        (layer("past", "pydantic_ai.history"), LLM),
        {},
        "Layer type 'pydantic_ai.history' must use reserved layer name 'history', got 'past'.",
    ),
    (
        "history with dependencies",
        (PROMPT, layer("history", "pydantic_ai.history", deps={"b": "prompt", "a": "prompt"}), LLM),
        {},
        "Layer type 'pydantic_ai.history' does not support dependencies; got dependency keys: a, b.",
    ),
    (
        "two ask-humans",
        (layer("a", "dify.ask_human"), layer("b", "dify.ask_human"), LLM),
        {},
        "Only one 'dify.ask_human' layer is supported. Found layers: a, b.",
    ),
    ("version", (LLM,), {"schema_version": 2}, "Unsupported compositor config schema_version: 2."),
    ("type", (layer("x", "no.such"), LLM), {}, "\"Layer type id 'no.such' is not registered.\""),
    ("empty name", (layer("", "plain.prompt"), LLM), {}, "Layer node name must not be empty."),
    ("duplicate", (PROMPT, PROMPT, LLM), {}, "Duplicate layer name 'prompt'."),
    (
        "unknown dependency key",
        (PROMPT, layer("d", "test.dependent", deps={"second": "prompt"}), LLM),
        {},
        "Layer 'd' declares unknown dependency keys: second.",
    ),
    (
        "missing target",
        (layer("d", "test.dependent", deps={"first": "nobody"}), LLM),
        {},
        "Layer 'd' depends on undefined layer names: nobody.",
    ),
    (
        "later target",
        (layer("d", "test.dependent", deps={"first": "prompt"}), PROMPT, LLM),
        {},
        "Layer 'd' dependencies must target preceding layer nodes in compositor order: first->prompt.",
    ),
    (
        "on_exit",
        (PROMPT, LLM),
        {"on_exit": {"layers": {"z": "delete", "prompt": "delete", "a": "suspend"}}},
        "on_exit.layers references unknown layer ids: a, z.",
    ),
    ("no model, no snapshot", (PROMPT,), {}, "Missing required 'llm' layer."),
    (
        "results for a cleanup run",
        (PROMPT,),
        {"session_snapshot": SNAPSHOT, "deferred_tool_results": {}},
        "Deferred tool results require the reserved 'llm' layer.",
    ),
]


@pytest.mark.parametrize(
    ("layers", "members", "text"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(layers: tuple[dict[str, Any], ...], members: dict[str, Any], text: str) -> None:
    with pytest.raises(AgentRunValidationError) as caught:
        plan(*layers, **members)
    assert str(caught.value) == text


OUT, PAST = layer("out", "dify.output"), layer("past", "pydantic_ai.history")
HUMANS = (layer("a", "dify.ask_human"), layer("b", "dify.ask_human"))
UNKNOWN = layer("", "no.such")


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((UNKNOWN, *HUMANS, PAST, OUT), "'dify.output' must use reserved"),
        ((UNKNOWN, *HUMANS, PAST), "'pydantic_ai.history' must use reserved"),
        ((UNKNOWN, *HUMANS), "Only one 'dify.ask_human'"),
        ((UNKNOWN,), "Unsupported compositor config schema_version: 9."),
    ],
)
def test_the_first_check_that_fails_is_reported(layers: tuple[dict[str, Any], ...], text: str) -> None:
    with pytest.raises(AgentRunValidationError, match=text):
        plan(*layers, schema_version=9)


def faulty(repaired: int) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """A request with every fault of `IN_ORDER` but the first ``repaired`` ones."""
    layers = [
        *[layer("x", "no.such")][repaired > 1 :],
        *[layer("", "plain.prompt")][repaired > 2 :],
        *[PROMPT, PROMPT][repaired > 3 :],
        *[layer("a", "test.dependent", deps={"second": "nobody"})][repaired > 4 :],
        *[layer("b", "test.dependent", deps={"first": "nobody"})][repaired > 5 :],
        *[layer("c", "test.dependent", deps={"first": "last"})][repaired > 6 :],
        layer("last", "plain.prompt"),
    ]
    members: dict[str, Any] = {"deferred_tool_results": {}, "schema_version": 9 if repaired == 0 else 1}
    if repaired <= 7:
        members["on_exit"] = {"layers": {"nobody": "delete"}}
    if repaired > 8:
        members["session_snapshot"] = SNAPSHOT
    return tuple(layers), members


IN_ORDER = [
    "Unsupported compositor config schema_version: 9.",
    "\"Layer type id 'no.such' is not registered.\"",
    "Layer node name must not be empty.",
    "Duplicate layer name 'prompt'.",
    "Layer 'a' declares unknown dependency keys: second.",
    "Layer 'b' depends on undefined layer names: nobody.",
    "Layer 'c' dependencies must target preceding layer nodes in compositor order: first->last.",
    "on_exit.layers references unknown layer ids: nobody.",
    "Missing required 'llm' layer.",
    "Deferred tool results require the reserved 'llm' layer.",
]


@pytest.mark.parametrize(("repaired", "text"), list(enumerate(IN_ORDER)))
def test_faults_of_the_graph_are_reported_in_order(repaired: int, text: str) -> None:
    layers, members = faulty(repaired)
    with pytest.raises(AgentRunValidationError) as caught:
        plan(*layers, **members)
    assert str(caught.value) == text


def test_a_model_run() -> None:
    made = plan(
        PROMPT, HISTORY, LLM, session_snapshot=SNAPSHOT, on_exit={"default": "delete", "layers": {"history": "suspend"}}
    )
    assert not made.lifecycle_only
    assert made.intents == {
        "prompt": ExitIntent.DELETE,
        "history": ExitIntent.SUSPEND,
        "llm": ExitIntent.DELETE,
    }
    assert made.snapshot is not None
    assert [entry.name for entry in made.snapshot.layers] == ["prompt", "history", "llm"]


def test_layers_leave_suspended_unless_told_otherwise() -> None:
    assert set(plan(PROMPT, LLM).intents.values()) == {ExitIntent.SUSPEND}


def test_a_cleanup_run_drops_entries_without_a_layer_and_keeps_the_order() -> None:
    made = plan(PROMPT, HISTORY, session_snapshot=SNAPSHOT)
    assert made.lifecycle_only
    assert made.snapshot is not None
    assert [entry.name for entry in made.snapshot.layers] == ["prompt", "history"]


def test_a_model_run_drops_nothing() -> None:
    made = plan(PROMPT, LLM, session_snapshot=SNAPSHOT)
    assert made.snapshot is not None
    assert len(made.snapshot.layers) == 3, "the compositor refuses it, by its own text"
