"""Layer classes: inferred schemas, construction, defaults, dependencies between layers."""

import types
from typing import Annotated, Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypeVar as DefaultTypeVar

from agenton.layers import (
    EmptyLayerConfig,
    EmptyRuntimeState,
    ExitIntent,
    Layer,
    LayerConfig,
    LayerDeps,
    LifecycleState,
    NoLayerDeps,
    PlainLayer,
    PlainPromptType,
    PlainToolType,
    PlainUserPromptType,
    PydanticAILayer,
    PydanticAIPromptType,
    PydanticAIToolType,
    PydanticAIUserPromptType,
)
from agenton.layers.base import ConfigT, DepsT, LayerDepSpec, RuntimeStateT

T = TypeVar("T")
OtherConfigT = TypeVar("OtherConfigT", bound=LayerConfig)
_ConfigT = TypeVar("_ConfigT", bound=LayerConfig)
_RuntimeStateT = TypeVar("_RuntimeStateT", bound=BaseModel)


class SomeConfig(LayerConfig):
    size: int = 1


class OtherConfig(LayerConfig):
    pass


class SomeState(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    seen: list[str] = []


class Base(PlainLayer[NoLayerDeps]):
    pass


class Box(PlainLayer[NoLayerDeps], Generic[T]):
    pass


class SomeDeps(LayerDeps):
    base: Base
    box: Box[int] | None


class GenericDeps(LayerDeps, Generic[T]):
    box: Box[T]


DefaultConfigT = DefaultTypeVar("DefaultConfigT", bound=LayerConfig, default=SomeConfig)


def schema(layer: type[Layer[Any, Any, Any, Any, Any, Any]]) -> tuple[type, type, type]:
    return layer.deps_type, layer.config_type, layer.runtime_state_type


def test_schemas_default_to_empty_models() -> None:
    assert schema(Base) == (NoLayerDeps, EmptyLayerConfig, EmptyRuntimeState)


def test_schemas_are_inferred_from_a_family() -> None:
    class Plain(PlainLayer[SomeDeps, SomeConfig, SomeState]):
        pass

    class Agent(PydanticAILayer[SomeDeps, int, SomeConfig, SomeState]):
        pass

    for layer in (Plain, Agent):
        assert schema(layer) == (SomeDeps, SomeConfig, SomeState)


def test_schemas_are_inferred_from_layer_itself() -> None:
    class Direct(Layer[SomeDeps, str, str, str, SomeConfig, SomeState]):
        def wrap_prompt(self, prompt: str) -> object:
            return prompt

        def wrap_user_prompt(self, prompt: str) -> object:
            return prompt

        def wrap_tool(self, tool: str) -> object:
            return tool

    assert schema(Direct) == (SomeDeps, SomeConfig, SomeState)


def test_type_variables_are_followed_through_families() -> None:
    class Outer(PlainLayer[DepsT, OtherConfigT, SomeState], Generic[OtherConfigT, DepsT]):
        pass

    class Inner(Outer[OtherConfigT, SomeDeps], Generic[OtherConfigT]):
        pass

    class Leaf(Inner[SomeConfig]):
        pass

    assert "deps_type" not in vars(Outer)
    assert Inner.deps_type is SomeDeps
    assert Inner.config_type is EmptyLayerConfig
    assert schema(Leaf) == (SomeDeps, SomeConfig, SomeState)


def test_parameters_are_found_by_name() -> None:
    class Family(PlainLayer[NoLayerDeps], Generic[_ConfigT, _RuntimeStateT]):
        pass

    class Named(PlainLayer[NoLayerDeps], Generic[ConfigT, RuntimeStateT]):
        pass

    class Leaf(Family[SomeConfig, SomeState]):
        pass

    class NamedLeaf(Named[SomeConfig, SomeState]):
        pass

    assert schema(Leaf) == schema(NamedLeaf) == (NoLayerDeps, SomeConfig, SomeState)


def test_default_of_a_family_parameter_is_used() -> None:
    class Family(PlainLayer[DepsT, DefaultConfigT], Generic[DepsT, DefaultConfigT]):
        pass

    class Leaf(Family[NoLayerDeps]):
        pass

    assert Leaf.config_type is SomeConfig


def test_explicit_wins_over_inferred_and_is_inherited() -> None:
    class Explicit(PlainLayer[NoLayerDeps, SomeConfig]):
        deps_type = SomeDeps
        config_type = OtherConfig
        runtime_state_type = SomeState

    class Heir(Explicit):
        pass

    assert schema(Explicit) == schema(Heir) == (SomeDeps, OtherConfig, SomeState)


def test_explicit_in_a_template_is_inherited() -> None:
    class Template(PlainLayer[DepsT], Generic[DepsT]):
        config_type = SomeConfig

    class Leaf(Template[SomeDeps]):
        pass

    assert schema(Leaf) == (SomeDeps, SomeConfig, EmptyRuntimeState)


def test_parametrised_deps_count_by_their_origin() -> None:
    class Family(PlainLayer[GenericDeps[T]], Generic[T]):
        pass

    class Leaf(Family[int]):
        pass

    assert Family.deps_type is Leaf.deps_type is GenericDeps
    assert Leaf.dependency_names() == {"box"}


def test_templates_are_not_checked() -> None:
    class Template(PlainLayer[DepsT], Generic[DepsT]):
        config_type = int

    assert not hasattr(Template, "deps_type")


def test_class_without_deps_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Bare must define deps_type or inherit from Layer\[DepsT\]\.$"):

        class Bare(PlainLayer):
            pass


@pytest.mark.parametrize(
    ("base", "body"),
    [(PlainLayer[int], {}), (PlainLayer[NoLayerDeps], {"deps_type": int})],
    ids=["inferred", "explicit"],
)
def test_deps_type_of_another_kind_is_refused(base: Any, body: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"^Bad\.deps_type must be a LayerDeps subclass\.$"):
        types.new_class("Bad", (base,), exec_body=lambda namespace: namespace.update(body))


def test_config_type_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Bad\.config_type must be a LayerConfig subclass\.$"):

        class Bad(PlainLayer[NoLayerDeps, SomeState]):
            pass


def test_runtime_state_type_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Bad\.runtime_state_type must be a Pydantic BaseModel subclass\.$"):

        class Bad(PlainLayer[NoLayerDeps, SomeConfig, dict]):
            pass


@pytest.mark.parametrize("annotation", [int, Base | Box, int | None, "Nowhere", Base | int | None, None, list[Base]])
def test_bad_dependency_annotation_is_refused_with_the_layer_class(annotation: object) -> None:
    deps = type("Deps", (LayerDeps,), {"__annotations__": {"x": annotation}, "__module__": __name__})
    with pytest.raises(
        TypeError, match=r"^Deps\.x must be annotated with a Layer subclass or Layer subclass \| None\.$"
    ):
        type("Bad", (PlainLayer,), {"deps_type": deps})


@pytest.mark.parametrize(
    ("annotation", "spec"),
    [
        (Base, LayerDepSpec(Base)),
        ("Base", LayerDepSpec(Base)),
        (Base | None, LayerDepSpec(Base, optional=True)),
        ("None | Base", LayerDepSpec(Base, optional=True)),
        (Box[int], LayerDepSpec(Box)),
        (Box[int] | None, LayerDepSpec(Box, optional=True)),
        (Annotated[Base, "why"], LayerDepSpec(Base)),
        (Layer, LayerDepSpec(Layer)),
    ],
)
def test_dependency_annotations(annotation: object, spec: LayerDepSpec) -> None:
    from agenton.layers.deps import dependency_specs

    deps = type("Deps", (LayerDeps,), {"__annotations__": {"x": annotation}, "__module__": __name__})
    assert dependency_specs(deps) == {"x": spec}


def test_dependencies_are_inherited() -> None:
    class More(SomeDeps):
        extra: Base

    class User(PlainLayer[More]):
        pass

    assert User.dependency_names() == {"base", "box", "extra"}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, ValueError, "Missing layer dependencies: base."),
        ({"base": Base(), "zoo": Base(), "ape": None}, ValueError, "Unknown layer dependencies: ape, zoo."),
        ({"base": None}, ValueError, "Dependency 'base' is required but not provided."),
        ({"base": Box()}, TypeError, "Dependency 'base' should be of type 'Base', but got type 'Box'."),
        ({"base": Base(), "box": Base()}, TypeError, "Dependency 'box' should be of type 'Box', but got type 'Base'."),
    ],
)
def test_direct_construction_of_deps(given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        SomeDeps(**given)
    assert str(caught.value) == text


def test_bind_deps() -> None:
    class User(PlainLayer[SomeDeps]):
        pass

    base, box = Base(), Box()
    user = User()
    user.bind_deps({"base": base, "unrelated": base})
    assert (user.deps.base, user.deps.box) == (base, None)
    user.bind_deps({"base": base, "box": box})
    assert user.deps.box is box
    with pytest.raises(ValueError, match=r"^Dependency 'base' is required for layer 'User' but not provided\.$"):
        user.bind_deps({"box": box})
    with pytest.raises(TypeError, match=r"^Dependency 'base' should be of type 'Base', but got type 'Box'\.$"):
        user.bind_deps({"base": box})


def test_runtime_state_exists_before_init() -> None:
    seen: list[BaseModel] = []

    class Early(PlainLayer[NoLayerDeps, EmptyLayerConfig, SomeState]):
        def __init__(self) -> None:
            seen.append(self.runtime_state)

    first, second = Early(), Early()
    assert seen == [SomeState(), SomeState()]
    assert first.runtime_state is not second.runtime_state


def test_runtime_state_fields_need_defaults() -> None:
    class Needy(BaseModel):
        value: int

    class Layered(PlainLayer[NoLayerDeps, EmptyLayerConfig, Needy]):
        pass

    with pytest.raises(ValidationError):
        Layered()


def test_default_from_config() -> None:
    class Configured(PlainLayer[NoLayerDeps, SomeConfig]):
        pass

    class Demanding(PlainLayer[NoLayerDeps]):
        def __init__(self, value: int) -> None:
            self.value = value

    class Broken(PlainLayer[NoLayerDeps]):
        def __init__(self) -> None:
            raise TypeError("from inside")

    assert isinstance(Base.from_config(EmptyLayerConfig()), Base)
    for layer, text in [
        (Configured, "Configured cannot be created from config; override from_config or use a provider."),
        (Demanding, "Demanding cannot be created from empty config; use a custom provider."),
        (Broken, "from inside"),
    ]:
        with pytest.raises(TypeError) as caught:
            layer.from_config(layer.config_type())
        assert str(caught.value) == text


async def test_defaults_do_nothing() -> None:
    layer = Base()
    async with layer.resource_context():
        await layer.on_context_create()
        await layer.on_context_resume()
        await layer.on_context_suspend()
        await layer.on_context_delete()
    for items in (layer.prefix_prompts, layer.suffix_prompts, layer.user_prompts, layer.tools):
        assert list(items) == []
    assert layer.type_id is None


def test_layer_is_abstract() -> None:
    class Unwrapped(Layer[NoLayerDeps, str, str, str]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unwrapped()


def test_families_tag_their_items() -> None:
    class Agent(PydanticAILayer[NoLayerDeps, int]):
        pass

    plain, agent = Base(), Agent()
    assert plain.wrap_prompt("p") == PlainPromptType("p")
    assert plain.wrap_user_prompt("u") == PlainUserPromptType("u")
    assert plain.wrap_tool(print) == PlainToolType(print)
    assert agent.wrap_prompt(print) == PydanticAIPromptType(print)
    assert agent.wrap_user_prompt("u") == PydanticAIUserPromptType("u")
    assert agent.wrap_tool(print) == PydanticAIToolType(print)
    assert {item.kind for item in (plain.wrap_prompt(""), plain.wrap_user_prompt(""), plain.wrap_tool(print))} == {
        "plain"
    }
    assert agent.wrap_prompt(print).kind == agent.wrap_user_prompt("").kind == agent.wrap_tool(print).kind
    assert agent.wrap_tool(print).kind == "pydantic_ai"
    for item in (plain.wrap_prompt("p"), agent.wrap_user_prompt("u")):
        with pytest.raises(AttributeError):
            item.value = "other"
        with pytest.raises(TypeError):
            type(item)("p", "plain")


def test_empty_models_refuse_fields() -> None:
    for model in (EmptyLayerConfig, EmptyRuntimeState, SomeConfig):
        with pytest.raises(ValidationError):
            model.model_validate({"surprise": 1})


def test_wire_values() -> None:
    assert [state.value for state in LifecycleState] == ["new", "active", "suspended", "closed"]
    assert [intent.value for intent in ExitIntent] == ["delete", "suspend"]
    assert f"{LifecycleState.NEW} {ExitIntent.DELETE}" == "new delete"
