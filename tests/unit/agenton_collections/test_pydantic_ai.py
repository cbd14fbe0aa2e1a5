"""Bridge and history layers, and the transformers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import RunContext, Tool

import agenton_collections.layers.pydantic_ai as collection
import agenton_collections.transformers
from agenton.compositor import Compositor, CompositorTransformerKwargs, LayerNode, LayerProvider
from agenton.layers import EmptyLayerConfig, NoLayerDeps
from agenton_collections.layers.plain import DynamicToolsLayer, ObjectLayer, PromptLayer, ToolsLayer, with_object
from agenton_collections.layers.pydantic_ai import (
    PYDANTIC_AI_HISTORY_LAYER_TYPE_ID,
    PydanticAIBridgeLayer,
    PydanticAIBridgeLayerDeps,
    PydanticAIHistoryLayer,
    PydanticAIHistoryRuntimeState,
)
from agenton_collections.transformers.pydantic_ai import (
    PYDANTIC_AI_TRANSFORMERS,
    PydanticAICompositorTransformerKwargs,
)


class Desk:
    """The object of these runs."""

    name = "desk"


def where(ctx: RunContext[Desk]) -> str:
    return ctx.deps.name


def double(number: int) -> int:
    """Double a number.

    Args:
        number: what to double.
    """
    return number * 2


def node(name: str, layer_type: Any, create: Any, **deps: str) -> LayerNode:
    provider = LayerProvider.from_factory(layer_type=layer_type, create=lambda config: create())
    return LayerNode(name, provider, deps=deps)


def desk_node() -> LayerNode:
    return node("o", ObjectLayer, lambda: ObjectLayer(Desk()))


def test_exports() -> None:
    assert set(collection.__all__) == {
        "PYDANTIC_AI_HISTORY_LAYER_TYPE_ID",
        "PydanticAIBridgeLayer",
        "PydanticAIBridgeLayerDeps",
        "PydanticAIHistoryLayer",
        "PydanticAIHistoryRuntimeState",
    }
    assert agenton_collections.transformers.__all__ == []
    assert PydanticAIBridgeLayer.type_id is None
    assert PydanticAIBridgeLayer.deps_type is PydanticAIBridgeLayerDeps


# --- bridge


def test_bridge_defaults_contribute_nothing() -> None:
    layer: PydanticAIBridgeLayer[Desk] = PydanticAIBridgeLayer()
    assert layer.prefix_prompts == layer.suffix_prompts == layer.user_prompts == layer.tools == []


def test_bridge_prompts() -> None:
    layer: PydanticAIBridgeLayer[Desk] = PydanticAIBridgeLayer(prefix=["one", where, ""], suffix="two")
    first, second, third = layer.prefix_prompts
    assert (first(), third()) == ("one", "")
    assert second is where
    assert [prompt() for prompt in layer.suffix_prompts] == ["two"]
    assert PydanticAIBridgeLayer(prefix=where).prefix_prompts == [where]


def test_bridge_user_items() -> None:
    image, blob = ImageUrl(url="https://example.org/a.png"), BinaryContent(data=b"x", media_type="image/png")
    assert PydanticAIBridgeLayer(user="text").user_prompts == ["text"]
    assert PydanticAIBridgeLayer(user=image).user_prompts == [image]
    assert PydanticAIBridgeLayer(user=["text", image, blob]).user_prompts == ["text", image, blob]
    assert PydanticAIBridgeLayer(user=(blob,)).user_prompts == [blob]


def test_bridge_tools() -> None:
    ready = Tool(where, name="here")
    bare, kept = PydanticAIBridgeLayer(tool_entries=[double, ready]).tools
    assert isinstance(bare, Tool)
    assert (bare.name, bare.description) == ("double", "Double a number.")
    assert kept is ready


async def test_bridge_run_deps() -> None:
    bridge = node("b", PydanticAIBridgeLayer, lambda: PydanticAIBridgeLayer(prefix="x"), object_layer="o")
    async with Compositor([desk_node(), bridge], **PYDANTIC_AI_TRANSFORMERS).enter() as run:
        layer = run.get_layer("b", PydanticAIBridgeLayer)
        assert layer.run_deps is run.get_layer("o", ObjectLayer).value


# --- transformers


def test_transformer_keys() -> None:
    assert set(PYDANTIC_AI_TRANSFORMERS) == CompositorTransformerKwargs.__required_keys__
    assert PydanticAICompositorTransformerKwargs.__required_keys__ == CompositorTransformerKwargs.__required_keys__


async def test_transformers_bring_every_item_into_pydantic_ais_form() -> None:
    ready = Tool(where)
    image = ImageUrl(url="https://example.org/a.png")
    nodes = [
        desk_node(),
        node("p", PromptLayer, lambda: PromptLayer(prefix="plain", user="hello")),
        node("t", ToolsLayer, lambda: ToolsLayer([double])),
        node(
            "b",
            PydanticAIBridgeLayer,
            lambda: PydanticAIBridgeLayer(prefix=where, user=[image], tool_entries=[ready]),
            object_layer="o",
        ),
    ]
    async with Compositor(nodes, **PYDANTIC_AI_TRANSFORMERS).enter() as run:
        first, second = run.prompts
        assert first() == "plain"
        assert second is where
        assert list(run.user_prompts) == ["hello", image]
        plain_tool, kept = run.tools
        assert isinstance(plain_tool, Tool)
        assert plain_tool.name == "double"
        assert kept is ready


@pytest.mark.parametrize("name", sorted(PYDANTIC_AI_TRANSFORMERS))
def test_unknown_kind(name: Any) -> None:
    with pytest.raises(NotImplementedError):
        PYDANTIC_AI_TRANSFORMERS[name]([SimpleNamespace(kind="other", value="x")])
    assert list(PYDANTIC_AI_TRANSFORMERS[name]([])) == []


async def test_object_bound_tools_become_tools_with_the_right_schema() -> None:
    @with_object(Desk)
    async def label(desk: Desk, number: int, text: str = "x") -> str:
        """Label the desk.

        Args:
            number: which label.
            text: what it says.
        """
        await trio.lowlevel.checkpoint()
        return f"{desk.name}{number}{text}"

    tools = node("t", DynamicToolsLayer, lambda: DynamicToolsLayer(tool_entries=[label]), object_layer="o")
    async with Compositor([desk_node(), tools], **PYDANTIC_AI_TRANSFORMERS).enter() as run:
        (tool,) = run.tools
    assert (tool.name, tool.description) == ("label", "Label the desk.")
    schema = tool.function_schema.json_schema
    assert {name: value["type"] for name, value in schema["properties"].items()} == {
        "number": "integer",
        "text": "string",
    }
    assert schema["required"] == ["number"]
    assert await tool.function_schema.call({"number": 3, "text": "y"}, None) == "desk3y"


# --- history


def conversation() -> list[Any]:
    return [
        ModelRequest(
            parts=[UserPromptPart(content=["look", BinaryContent(data=b"\x00\xff\x01", media_type="image/png")])],
            instructions="be kind",
        ),
        ModelResponse(
            parts=[
                ThinkingPart(content="hm", signature="s"),
                TextPart(content="hi"),
                ToolCallPart(tool_name="t", args='{"a": 1}', tool_call_id="c1"),
                ToolCallPart(tool_name="t", args={"a": 2}, tool_call_id="c2"),
            ],
            model_name="demo",
        ),
        ModelRequest(
            parts=[
                ToolReturnPart(tool_name="t", content={"k": [1, None]}, tool_call_id="c1"),
                ToolReturnPart(tool_name="t", content="again", tool_call_id="c2", outcome="retried"),
            ]
        ),
    ]


def test_history_layer_schema() -> None:
    assert PydanticAIHistoryLayer.type_id == PYDANTIC_AI_HISTORY_LAYER_TYPE_ID == "pydantic_ai.history"
    assert PydanticAIHistoryLayer.config_type is EmptyLayerConfig
    assert PydanticAIHistoryLayer.deps_type is NoLayerDeps
    assert PydanticAIHistoryLayer.runtime_state_type is PydanticAIHistoryRuntimeState
    provider = LayerProvider.from_layer_type(PydanticAIHistoryLayer)
    assert provider.create_layer(None).runtime_state.messages == []
    with pytest.raises(ValidationError):
        provider.create_layer({"max": 1})
    layer = provider.create_layer({})
    assert [*layer.prefix_prompts, *layer.suffix_prompts, *layer.user_prompts, *layer.tools] == []


def test_history_methods() -> None:
    layer = PydanticAIHistoryLayer()
    first, second, third = conversation()
    given = [first]
    layer.replace_messages(given)
    given.append(second)
    assert layer.message_history == [first]
    layer.append_messages((second, third))
    assert layer.message_history == [first, second, third]
    layer.message_history.clear()
    assert len(layer.message_history) == 3
    assert layer.message_history[0] is layer.message_history[0]
    layer.clear()
    assert layer.message_history == []


def test_history_validates_what_is_assigned() -> None:
    layer = PydanticAIHistoryLayer()
    kept = conversation()
    layer.replace_messages(kept)
    for call in (layer.replace_messages, layer.append_messages):
        with pytest.raises(ValidationError):
            call(["no message"])
    with pytest.raises(ValidationError):
        layer.runtime_state.messages = None
    assert layer.message_history == kept
    with pytest.raises(ValidationError):
        PydanticAIHistoryRuntimeState.model_validate({"messages": [], "more": 1})


async def test_history_round_trip_through_a_snapshot() -> None:
    compositor = Compositor([LayerNode("history", PydanticAIHistoryLayer)])
    async with compositor.enter() as run:
        run.get_layer("history", PydanticAIHistoryLayer).replace_messages(conversation())
        run.suspend_on_exit()
    text = run.session_snapshot.model_dump_json()
    stored = json.loads(text)["layers"][0]["runtime_state"]["messages"]
    assert [message["kind"] for message in stored] == ["request", "response", "request"]
    assert stored[0]["parts"][0]["content"][1]["data"] == "AP8B"

    async with compositor.enter(session_snapshot=text) as resumed:
        history = resumed.get_layer("history", PydanticAIHistoryLayer).message_history
        assert [type(message) for message in history] == [ModelRequest, ModelResponse, ModelRequest]
        assert history[0].parts[0].content[1].data == b"\x00\xff\x01"
        assert history[1].parts[2].args == '{"a": 1}'
        assert history[1].parts[3].args == {"a": 2}
        assert history[2].parts[0].content == {"k": [1, None]}
        resumed.suspend_on_exit()
    assert resumed.session_snapshot == run.session_snapshot


async def test_documented_history_snapshot_is_read() -> None:
    messages = [
        {
            "kind": "request",
            "parts": [{"part_kind": "user-prompt", "content": "hello", "timestamp": "2026-08-10T12:00:00Z"}],
            "instructions": None,
        },
        {
            "kind": "response",
            "parts": [{"part_kind": "text", "content": "hi"}],
            "model_name": "demo",
            "state": "complete",
        },
        {
            "kind": "request",
            "parts": [{"part_kind": "retry-prompt", "content": "again", "tool_name": "t", "tool_call_id": "c"}],
        },
    ]
    snapshot = {
        "layers": [{"name": "history", "lifecycle_state": "suspended", "runtime_state": {"messages": messages}}]
    }
    compositor = Compositor([LayerNode("history", PydanticAIHistoryLayer)])
    async with compositor.enter(session_snapshot=snapshot) as run:
        request, response, retry = run.get_layer("history", PydanticAIHistoryLayer).message_history
    assert request.parts[0].content == "hello"
    assert (response.parts[0].content, response.state) == ("hi", "complete")
    assert retry.parts[0].tool_call_id == "c"
