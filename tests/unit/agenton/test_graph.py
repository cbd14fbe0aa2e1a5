"""Providers, graph configs, and the checks of a composition before it is entered."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from agenton.compositor import (
    Compositor,
    CompositorConfig,
    CompositorRun,
    LayerNode,
    LayerNodeConfig,
    LayerProvider,
)
from agenton.compositor.providers import _handed_out
from agenton.layers import EmptyLayerConfig, LayerConfig, LayerDeps, NoLayerDeps, PlainLayer


class Box(PlainLayer[NoLayerDeps]):
    type_id = "box"


class SizedConfig(LayerConfig):
    size: int = 1


class Sized(PlainLayer[NoLayerDeps, SizedConfig]):
    type_id = "sized"

    @classmethod
    def from_config(cls, config: SizedConfig) -> "Sized":
        return cls()


class BoxDeps(LayerDeps):
    first: Box
    second: Box | None
    third: Box | None


class User(PlainLayer[BoxDeps]):
    type_id = "user"


def config(*layers: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {"layers": list(layers), **extra}


def from_config(conf: Any, providers: Any = (Box, Sized, User), **kwargs: Any) -> Compositor:
    return Compositor.from_config(conf, providers=providers, **kwargs)


def error_text(error: type[BaseException], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return caught.value.args[0]


# --- providers


def test_provider_of_a_layer_type() -> None:
    provider = LayerProvider.from_layer_type(Sized)
    assert (provider.layer_type, provider.type_id) == (Sized, "sized")
    layer = provider.create_layer({"size": 3})
    assert layer.config == SizedConfig(size=3)
    assert provider.create_layer().config == SizedConfig()


def test_provider_of_a_factory_gets_only_the_validated_config() -> None:
    got: list[Any] = []

    def create(*args: Any) -> Sized:
        got.append(args)
        return Sized()

    provider = LayerProvider.from_factory(layer_type=Sized, create=create)
    provider.create_layer('{"size": 4}')
    assert got == [(SizedConfig(size=4),)]
    assert LayerProvider(layer_type=Sized, create=create).layer_type is Sized


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (None, 1),
        ({}, 1),
        ({"size": 2}, 2),
        (MappingProxyType({"size": 2}), 2),
        ('{"size": 2}', 2),
        (b'{"size": 2}', 2),
        (SizedConfig(size=2), 2),
        (EmptyLayerConfig(), 1),
    ],
)
def test_config_inputs(given: Any, size: int) -> None:
    assert LayerProvider.from_layer_type(Sized).validate_config(given) == SizedConfig(size=size)


def test_a_model_is_validated_again() -> None:
    class Foreign(BaseModel):
        size: int = 5

    changed = SizedConfig()
    changed.size = "many"
    provider = LayerProvider.from_layer_type(Sized)
    assert provider.validate_config(Foreign()).size == 5
    for call in (provider.validate_config, provider.create_layer, provider.create_layer_from_config):
        with pytest.raises(ValidationError):
            call(changed)
    for bad in ("{", b"[]", {"other": 1}, 5, "null"):
        with pytest.raises(ValidationError):
            provider.validate_config(bad)


def test_factory_that_returns_another_class() -> None:
    provider = LayerProvider.from_factory(layer_type=Sized, create=lambda config: Box())
    assert error_text(TypeError, provider.create_layer) == "LayerProvider for 'Sized' returned 'Box', expected 'Sized'."


def test_factory_that_returns_a_used_instance() -> None:
    layer = Box()
    provider = LayerProvider.from_factory(layer_type=Box, create=lambda config: layer)
    other = LayerProvider.from_factory(layer_type=Box, create=lambda config: layer)
    assert provider.create_layer() is layer
    text = (
        "LayerProvider factories must return a fresh layer instance for each invocation; got reused instance of 'Box'."
    )
    assert error_text(ValueError, provider.create_layer) == text
    assert error_text(ValueError, other.create_layer) == text


def test_handed_out_layers_are_not_kept_alive() -> None:
    provider = LayerProvider.from_layer_type(Box)
    layers = [provider.create_layer() for _ in range(20)]
    ids = {id(layer) for layer in layers}
    assert ids <= _handed_out.keys()
    layers.clear()
    assert ids.isdisjoint(_handed_out)


def test_subclass_from_a_factory_is_accepted() -> None:
    class Special(Box):
        pass

    provider = LayerProvider.from_factory(layer_type=Box, create=lambda config: Special())
    assert type(provider.create_layer()) is Special


# --- nodes


def test_node() -> None:
    deps, metadata = {"first": "a"}, {"note": [1]}
    node = LayerNode("u", User, deps=deps, metadata=metadata)
    deps["second"] = "b"
    assert (node.name, node.provider.layer_type, dict(node.deps), dict(node.metadata)) == (
        "u",
        User,
        {"first": "a"},
        {"note": [1]},
    )
    assert dict(LayerNode("b", Box).deps) == dict(LayerNode("b", Box).metadata) == {}
    with pytest.raises(AttributeError):
        node.name = "other"
    with pytest.raises(TypeError):
        node.deps["x"] = "y"


def test_bad_nodes() -> None:
    assert error_text(ValueError, lambda: LayerNode("", Box)) == "Layer node name must not be empty."
    text = "LayerNode implementation must be a Layer subclass or LayerProvider."
    for implementation in (Box(), int, "box", None):
        assert error_text(TypeError, lambda wrong=implementation: LayerNode("a", wrong)) == text
    assert error_text(TypeError, lambda: from_config(config(), providers=[int])) == text


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([("a", Box, {}), ("a", Sized, {})], "Duplicate layer name 'a'."),
        ([("a", User, {"z": "a", "y": "q"}), ("a", Box, {})], "Duplicate layer name 'a'."),
        ([("a", Box, {"z": "q", "b": "q"})], "Layer 'a' declares unknown dependency keys: b, z."),
        ([("u", User, {"first": "z", "second": "b"})], "Layer 'u' depends on undefined layer names: b, z."),
        (
            [("u", User, {"second": "b", "first": "u", "third": "b"}), ("b", Box, {})],
            "Layer 'u' dependencies must target preceding layer nodes in compositor order: "
            "first->u, second->b, third->b.",
        ),
    ],
)
def test_graph_checks(nodes: list[tuple[str, Any, dict[str, str]]], text: str) -> None:
    assert error_text(ValueError, lambda: Compositor([LayerNode(n, i, deps=d) for n, i, d in nodes])) == text


# --- from_config


def test_from_config() -> None:
    conf = config({"name": "b", "type": "box"}, {"name": "u", "type": "user", "deps": {"first": "b"}, "metadata": {}})
    model = CompositorConfig.model_validate(conf)
    for value in (conf, model, model.model_dump_json(), model.model_dump_json().encode(), MappingProxyType(conf)):
        compositor = from_config(value)
        assert [(node.name, node.provider.layer_type) for node in compositor.nodes] == [("b", Box), ("u", User)]
        assert isinstance(compositor.nodes, tuple)
    assert from_config(config()).nodes == ()


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"layers": [{"name": "a"}]},
        {"layers": [], "extra": 1},
        {"layers": [{"name": "a", "type": "box", "config": {}}]},
        "{",
    ],
)
def test_bad_config_dto(bad: Any) -> None:
    with pytest.raises(ValidationError):
        from_config(bad)


class Nameless(PlainLayer[NoLayerDeps]):
    pass


@pytest.mark.parametrize(
    ("error", "text", "conf", "kwargs"),
    [
        (ValueError, "Unsupported compositor config schema_version: 2.", config(schema_version=2), {}),
        (
            ValueError,
            "Layer provider for 'Nameless' must declare a type_id.",
            config(),
            {"providers": [Nameless], "node_providers": {"z": Box}},
        ),
        (ValueError, "Layer type id 'box' is already registered.", config(), {"providers": [Box, Box]}),
        (
            ValueError,
            "node_providers contains unknown layer node names: y, z.",
            config({"name": "a", "type": "nothing"}),
            {"node_providers": {"z": Box, "y": Box}},
        ),
        (KeyError, "Layer type id 'nothing' is not registered.", config({"name": "", "type": "nothing"}), {}),
        (ValueError, "Layer node name must not be empty.", config({"name": "", "type": "box"}), {}),
        (
            ValueError,
            "Duplicate layer name 'a'.",
            config({"name": "a", "type": "box"}, {"name": "a", "type": "user", "deps": {"x": "y"}}),
            {},
        ),
    ],
)
def test_from_config_errors_in_order(error: type[Exception], text: str, conf: Any, kwargs: Any) -> None:
    assert error_text(error, lambda: from_config(conf, **kwargs)) == text


def test_node_providers_win() -> None:
    provider = LayerProvider.from_factory(layer_type=Nameless, create=lambda config: Nameless())
    conf = config({"name": "a", "type": "box"}, {"name": "b", "type": "nothing"}, {"name": "c", "type": "box"})
    compositor = from_config(conf, node_providers={"a": provider, "b": Sized})
    assert [node.provider.layer_type for node in compositor.nodes] == [Nameless, Sized, Box]


def test_dto_defaults() -> None:
    assert CompositorConfig(layers=[]).schema_version == 1
    node = LayerNodeConfig(name="a", type="b")
    assert (node.deps, node.metadata) == ({}, {})
    assert set(LayerNodeConfig.model_fields) == {"name", "type", "deps", "metadata"}


# --- what entry refuses before any hook


async def enter(compositor: Compositor, **kwargs: Any) -> CompositorRun:
    async with compositor.enter(**kwargs) as run:
        return run


async def entry_error(compositor: Compositor, error: type[BaseException], **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        await enter(compositor, **kwargs)
    return caught.value.args[0] if caught.value.args else str(caught.value)


def counting(calls: list[str], name: str) -> LayerNode:
    def create(config: SizedConfig) -> Sized:
        calls.append(name)
        return Sized()

    return LayerNode(name, LayerProvider.from_factory(layer_type=Sized, create=create))


async def test_unknown_config_names() -> None:
    text = await entry_error(Compositor([LayerNode("a", Box)]), ValueError, configs={"z": {}, "y": {"bad": 1}})
    assert text == "Layer configs contain unknown layer node names: y, z."


async def test_configs_are_validated_before_any_factory_and_before_the_snapshot() -> None:
    calls: list[str] = []
    compositor = Compositor([counting(calls, "a"), counting(calls, "b")])
    with pytest.raises(ValidationError, match="1 validation error for SizedConfig"):
        await enter(compositor, configs={"b": {"size": "x"}}, session_snapshot={"schema_version": 3, "layers": []})
    assert calls == []


async def test_snapshot_is_checked_before_any_factory() -> None:
    calls: list[str] = []
    compositor = Compositor([counting(calls, "a"), counting(calls, "b")])
    with pytest.raises(ValueError, match="Expected"):
        await enter(compositor, session_snapshot={"layers": []})
    assert calls == []
    await enter(compositor)
    assert calls == ["a", "b"]


async def test_missing_and_wrong_dependencies() -> None:
    nodes = [LayerNode("b", Box), LayerNode("s", Sized)]
    missing = Compositor([*nodes, LayerNode("u", User, deps={"second": "b"})])
    assert await entry_error(missing, ValueError) == "Dependency 'first' is required for layer 'User' but not provided."
    wrong = Compositor([*nodes, LayerNode("u", User, deps={"first": "s"})])
    assert await entry_error(wrong, TypeError) == "Dependency 'first' should be of type 'Box', but got type 'Sized'."


async def test_configs_reach_their_layers_and_equal_names_bind_nothing() -> None:
    compositor = Compositor(
        [LayerNode("second", Box), LayerNode("s", Sized), LayerNode("u", User, deps={"first": "second"})]
    )
    run = await enter(compositor, configs={"s": SizedConfig(size=9)})
    assert run.get_layer("s").config.size == 9
    assert run.get_layer("u").deps.first is run.get_layer("second")
    assert run.get_layer("u").deps.second is None


async def test_reused_instance_is_refused_on_entry() -> None:
    layer = Box()
    compositor = Compositor([LayerNode("a", LayerProvider.from_factory(layer_type=Box, create=lambda config: layer))])
    await enter(compositor)
    assert (await entry_error(compositor, ValueError)).startswith("LayerProvider factories must return a fresh layer")
