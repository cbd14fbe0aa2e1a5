"""Layers of the plain family."""

import functools
import inspect
from typing import Annotated, Any, Generic, Optional, Protocol, TypeVar

import pytest
import trio
from pydantic import ValidationError

import agenton_collections
from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton_collections.layers import plain
from agenton_collections.layers.plain import (
    PLAIN_PROMPT_LAYER_TYPE_ID,
    DynamicToolsLayer,
    DynamicToolsLayerDeps,
    ObjectLayer,
    PromptLayer,
    PromptLayerConfig,
    ToolsLayer,
    with_object,
)

T = TypeVar("T")

ROOT = [
    "AllPromptTypes",
    "AllToolTypes",
    "DynamicToolsLayer",
    "DynamicToolsLayerDeps",
    "ObjectLayer",
    "PlainLayer",
    "PlainPrompt",
    "PlainPromptType",
    "PlainTool",
    "PlainToolType",
    "PromptLayer",
    "PydanticAILayer",
    "PydanticAIPrompt",
    "PydanticAIPromptType",
    "PydanticAITool",
    "PydanticAIToolType",
    "ToolsLayer",
    "with_object",
]

PLAIN = {
    "DynamicToolsLayer",
    "DynamicToolsLayerDeps",
    "ObjectLayer",
    "PLAIN_PROMPT_LAYER_TYPE_ID",
    "PromptLayer",
    "PromptLayerConfig",
    "ToolsLayer",
    "with_object",
}


class Desk:
    name = "desk"


class BigDesk(Desk):
    pass


def test_exports() -> None:
    assert sorted(agenton_collections.__all__) == sorted(ROOT)
    assert set(plain.__all__) == PLAIN
    assert not hasattr(agenton_collections, "PydanticAIBridgeLayer")
    assert all(hasattr(agenton_collections, name) for name in ROOT)
    assert all(hasattr(plain, name) for name in PLAIN)


def test_type_ids() -> None:
    assert PLAIN_PROMPT_LAYER_TYPE_ID == PromptLayer.type_id == "plain.prompt"
    for layer_type in (ObjectLayer, ToolsLayer, DynamicToolsLayer):
        assert layer_type.type_id is None


@pytest.mark.parametrize(
    ("value", "items"), [("one", ["one"]), ("", [""]), ([], []), (["a", ""], ["a", ""]), (" x ", [" x "])]
)
def test_prompt_layer_items(value: Any, items: list[str]) -> None:
    layer = LayerProvider.from_layer_type(PromptLayer).create_layer({"prefix": value, "user": value, "suffix": value})
    assert layer.prefix_prompts == layer.user_prompts == layer.suffix_prompts == items
    assert list(layer.tools) == []


def test_prompt_layer_config() -> None:
    assert PromptLayerConfig().model_dump() == {"prefix": [], "user": [], "suffix": []}
    for bad in ({"system": "x"}, {"prefix": None}, {"user": [1]}):
        with pytest.raises(ValidationError, match="for PromptLayerConfig"):
            PromptLayerConfig.model_validate(bad)
    assert PromptLayer(prefix="x").prefix_prompts == ["x"]


async def test_prompt_layers_in_a_composition() -> None:
    conf = {"layers": [{"name": "a", "type": "plain.prompt"}, {"name": "b", "type": "plain.prompt"}]}
    compositor = Compositor.from_config(conf, providers=[PromptLayer])
    configs = {"a": {"prefix": "a1", "suffix": "a2", "user": "u"}, "b": '{"prefix": ["b1", "b2"], "suffix": "b3"}'}
    async with compositor.enter(configs=configs) as run:
        assert [item.value for item in run.prompts] == ["a1", "b1", "b2", "b3", "a2"]
        assert [item.value for item in run.user_prompts] == ["u"]


def test_tools_layer() -> None:
    assert ToolsLayer().tools == []
    assert ToolsLayer([print, len]).tools == [print, len]


def object_layer(value: object) -> LayerNode:
    return LayerNode("o", LayerProvider.from_factory(layer_type=ObjectLayer, create=lambda config: ObjectLayer(value)))


async def bound(value: object, *entries: Any) -> list[Any]:
    provider = LayerProvider.from_factory(
        layer_type=DynamicToolsLayer, create=lambda config: DynamicToolsLayer(tool_entries=entries)
    )
    compositor = Compositor([object_layer(value), LayerNode("t", provider, deps={"object_layer": "o"})])
    async with compositor.enter() as run:
        return [item.value for item in run.tools]


def test_object_layer_needs_a_factory() -> None:
    with pytest.raises(TypeError, match="ObjectLayer cannot be created from empty config; use a custom provider"):
        LayerProvider.from_layer_type(ObjectLayer).create_layer()
    assert DynamicToolsLayer.deps_type is DynamicToolsLayerDeps
    assert DynamicToolsLayer.dependency_names() == {"object_layer"}


async def test_object_is_bound_to_the_first_parameter() -> None:
    @with_object(Desk)
    def label(desk: Desk, prefix: str, *, loud: bool = False) -> str:
        """Label the desk."""
        return f"{prefix} {desk.name}{'!' if loud else ''}"

    @with_object(Desk)
    async def later(desk: Desk, times: int) -> str:
        await trio.lowlevel.checkpoint()
        return desk.name * times

    def unbound(text: str) -> str:
        return text

    sync_tool, async_tool, other = await bound(BigDesk(), label, later, unbound)
    assert sync_tool("the", loud=True) == "the desk!"
    assert (sync_tool.__name__, sync_tool.__doc__) == ("label", "Label the desk.")
    assert sync_tool.__qualname__ == label.__qualname__
    assert str(inspect.signature(sync_tool)) == "(prefix: str, *, loud: bool = False) -> str"
    assert sync_tool.__annotations__ == {"prefix": str, "loud": bool, "return": str}
    assert not inspect.iscoroutinefunction(sync_tool)
    assert inspect.iscoroutinefunction(async_tool)
    assert await async_tool(2) == "deskdesk"
    assert other is unbound
    assert label(Desk(), "a") == "a desk"
    assert list(inspect.signature(label).parameters) == ["desk", "prefix", "loud"]
    assert inspect.iscoroutinefunction(later)


async def test_callables_that_are_no_functions() -> None:
    class Tool:
        async def __call__(self, desk: Desk, count: int) -> str:
            return desk.name * count

        def method(self, desk: "Desk", count: int) -> int:
            return count

    tool = Tool()
    called, method, partial = await bound(
        Desk(),
        with_object(Desk)(tool),
        with_object(Desk)(tool.method),
        with_object(Desk)(functools.partial(tool.method, count=3)),
    )
    assert inspect.iscoroutinefunction(called)
    assert await called(2) == "deskdesk"
    assert method(5) == 5
    assert partial() == 3


async def test_wrong_object() -> None:
    @with_object(BigDesk)
    def label(desk: Desk) -> str:
        return desk.name

    with pytest.raises(TypeError) as caught:
        await bound(Desk(), label)
    assert str(caught.value) == (
        f"Object-bound tool '{label.__qualname__}' expected object dependency of type 'BigDesk', but got 'Desk'."
    )


@pytest.mark.parametrize("tool", [lambda: None, lambda *rest: None, lambda **named: None])
def test_tool_without_a_first_parameter(tool: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^Dynamic tools must accept the object dependency as their first parameter\.$"
    ):
        with_object(Desk)(tool)


def annotated(annotation: Any) -> Any:
    def tool(desk: Any) -> None: ...

    tool.__annotations__["desk"] = annotation
    return tool


class Named(Protocol):
    name: str


class Holder(Generic[T]):
    pass


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        Desk,
        Annotated[Desk, "doc"],
        Desk | int,
        int | None,
        Optional[Desk],  # noqa: UP045 - the older spelling is another object
        "Desk",
        "Desk | None",
        "NotImportedHere",
        Named,
        T,
    ],
)
def test_annotations_that_are_accepted(annotation: Any) -> None:
    with_object(BigDesk)(annotated(annotation))


def test_no_annotation_is_accepted() -> None:
    with_object(Desk)(lambda desk: None)


@pytest.mark.parametrize("annotation", [int, BigDesk, "BigDesk", int | str, list[int], Holder[int]])
def test_annotations_that_are_refused(annotation: Any) -> None:
    tool = annotated(annotation)
    with pytest.raises(TypeError) as caught:
        with_object(Desk)(tool)
    expected = f"Object-bound tool '{tool.__qualname__}' first parameter should accept 'Desk'."
    assert str(caught.value) == expected


async def test_parametrised_object_types() -> None:
    @with_object(Holder[int])
    def tool(holder: Holder[int], text: str) -> str:
        return text

    (only,) = await bound(Holder(), tool)
    assert only("x") == "x"
