"""The public names, those that must not exist, and what importing costs."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

import agenton
import agenton.compositor
import agenton.layers
import agenton.layers.base
import agenton.layers.types
from agenton.compositor import Compositor, CompositorTransformer, CompositorTransformerKwargs, LayerConfigInput
from agenton.layers import Layer, LayerConfig

SRC = Path(agenton.__file__).parent.parent

LAYERS = [
    "AllPromptTypes",
    "AllToolTypes",
    "AllUserPromptTypes",
    "Layer",
    "LayerConfig",
    "LayerConfigValue",
    "LayerDeps",
    "LifecycleState",
    "ExitIntent",
    "EmptyLayerConfig",
    "EmptyRuntimeState",
    "NoLayerDeps",
    "PlainLayer",
    "PlainPrompt",
    "PlainPromptType",
    "PlainUserPrompt",
    "PlainUserPromptType",
    "PlainTool",
    "PlainToolType",
    "PydanticAILayer",
    "PydanticAIPrompt",
    "PydanticAIPromptType",
    "PydanticAIUserPrompt",
    "PydanticAIUserPromptType",
    "PydanticAITool",
    "PydanticAIToolType",
]

COMPOSITOR = [
    "Compositor",
    "CompositorConfig",
    "CompositorConfigValue",
    "CompositorRun",
    "CompositorSessionSnapshot",
    "CompositorSessionSnapshotValue",
    "CompositorTransformer",
    "CompositorTransformerKwargs",
    "LayerFactory",
    "LayerNode",
    "LayerNodeConfig",
    "LayerProvider",
    "LayerRunSlot",
    "LayerSessionSnapshot",
]

TRANSFORMER_NAMES = {"prompt_transformer", "user_prompt_transformer", "tool_transformer"}


def test_exports() -> None:
    assert agenton.layers.__all__ == LAYERS
    assert agenton.compositor.__all__ == COMPOSITOR
    assert not hasattr(agenton, "__all__")
    for module, names in ((agenton.layers, LAYERS), (agenton.compositor, COMPOSITOR)):
        assert all(hasattr(module, name) for name in names)
    neutral = [name for name in LAYERS if not name.startswith(("Plain", "Pydantic", "All"))]
    assert all(hasattr(agenton.layers.base, name) for name in [*neutral, "LayerDepSpec"])
    assert all(hasattr(agenton.layers.types, name) for name in LAYERS if name not in neutral)


def test_input_aliases_belong_to_the_compositor_module() -> None:
    for name in ("LayerConfigInput", "LayerProviderInput"):
        alias = getattr(agenton.compositor, name)
        assert (alias.__name__, alias.__module__) == (name, "agenton.compositor")
        assert name not in agenton.compositor.__all__


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (agenton.compositor, "CompositorBuilder LayerRegistry LayerDescriptor"),
        (agenton.layers, "LayerControl EmptyRuntimeHandles"),
        (
            Layer,
            "enter hydrate_session_state suspend_on_exit delete_on_exit runtime_handles require_control control_for "
            "enter_async_resource add_async_cleanup",
        ),
    ],
)
def test_names_that_must_not_exist(owner: object, names: str) -> None:
    assert [name for name in names.split() if hasattr(owner, name)] == []


def test_transformer_kwargs() -> None:
    assert CompositorTransformerKwargs.__required_keys__ == TRANSFORMER_NAMES
    assert CompositorTransformerKwargs.__optional_keys__ == frozenset()
    assert CompositorTransformer[int, str] == Callable[[Sequence[int]], Sequence[str]]
    for function in (Compositor.__init__, Compositor.from_config):
        defaults = function.__kwdefaults__
        assert {name for name in defaults if name.endswith("_transformer")} == TRANSFORMER_NAMES


def test_compositor_takes_up_to_six_type_arguments() -> None:
    assert len(Compositor.__parameters__) == 6
    assert [parameter.__name__ for parameter in Compositor.__parameters__] == [
        "PromptT",
        "ToolT",
        "LayerPromptT",
        "LayerToolT",
        "UserPromptT",
        "LayerUserPromptT",
    ]
    assert Compositor[str].enter is Compositor.enter


def test_config_input_as_a_field() -> None:
    class Size(LayerConfig):
        size: int

    class Spec(BaseModel):
        config: LayerConfigInput = None

    assert Spec().config is None
    assert Spec(config={"a": [1]}).config == {"a": [1]}
    spec = Spec(config=Size(size=2))
    assert type(spec.config) is Size
    assert spec.model_dump_json() == '{"config":{"size":2}}'
    assert spec.model_dump() == {"config": {"size": 2}}


HEAVY = ("pydantic_ai", "trio", "anyio", "quart", "redis", "coredis", "pydantic_settings", "dify_agent")


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "agenton",
        "agenton.layers, agenton.compositor",
        "agenton_collections",
        "agenton_collections.layers.plain, agenton_collections.transformers",
    ],
)
def test_imports_are_light(modules: str) -> None:
    code = f"import sys; import {modules}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "allowed"), [("agenton", {"agenton"}), ("agenton_collections", {"agenton", "agenton_collections"})]
)
def test_packages_import_none_of_the_server_and_no_async_library(package: str, allowed: set[str]) -> None:
    outside = {"typing_extensions", "pydantic", "pydantic_core", "pydantic_ai"} | set(sys.stdlib_module_names)
    for path in (SRC / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            roots = {name.split(".")[0] for name in names}
            assert roots <= allowed | outside - {"asyncio"}, path


def test_everything_public_is_documented() -> None:
    for name in ("agenton.layers", "agenton.compositor"):
        module = importlib.import_module(name)
        undocumented = [
            export
            for export in module.__all__
            if isinstance(getattr(module, export), type) and not getattr(module, export).__doc__
        ]
        assert undocumented == []
