"""The ``Layer`` base class, and the framework-neutral names around it in one place."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Generic, Self, TypeAlias

from pydantic import BaseModel
from typing_extensions import TypeVar

from agenton.layers.deps import LayerDeps, LayerDepSpec, NoLayerDeps, dependency_specs
from agenton.layers.inference import settle_schemas
from agenton.layers.schemas import (
    EmptyLayerConfig,
    EmptyRuntimeState,
    ExitIntent,
    LayerConfig,
    LayerConfigValue,
    LifecycleState,
)

__all__ = [
    "AnyLayer",
    "EmptyLayerConfig",
    "EmptyRuntimeState",
    "ExitIntent",
    "Layer",
    "LayerConfig",
    "LayerConfigValue",
    "LayerDepSpec",
    "LayerDeps",
    "LifecycleState",
    "NoLayerDeps",
]

DepsT = TypeVar("DepsT", bound=LayerDeps)
PromptT = TypeVar("PromptT")
UserPromptT = TypeVar("UserPromptT")
ToolT = TypeVar("ToolT")
ConfigT = TypeVar("ConfigT", bound=LayerConfig, default=EmptyLayerConfig)
RuntimeStateT = TypeVar("RuntimeStateT", bound=BaseModel, default=EmptyRuntimeState)


class Layer(ABC, Generic[DepsT, PromptT, UserPromptT, ToolT, ConfigT, RuntimeStateT]):
    """One named part of a composition. An instance lives for exactly one run.

    A concrete subclass needs a deps type, from ``Layer[Deps, ...]`` or as an explicit attribute; config and runtime
    state default to empty models. What is wrong with these shows as ``TypeError`` when the class is created.
    """

    type_id: ClassVar[str | None] = None
    """Id under which a graph config names this class; ``None`` for layers that only code can construct."""
    deps_type: type[LayerDeps]
    config_type: ClassVar[type[LayerConfig]] = EmptyLayerConfig
    runtime_state_type: ClassVar[type[BaseModel]] = EmptyRuntimeState

    config: ConfigT
    """The validated config; set by the provider after construction, so not available in ``__init__``."""
    deps: DepsT
    """The layers bound to the declared dependencies; set by ``bind_deps``."""
    runtime_state: RuntimeStateT
    """What the session snapshot keeps. Exists before ``__init__``, so every field of its model needs a default."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        settle_schemas(cls, Layer)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        layer = super().__new__(cls)
        layer.runtime_state = cls.runtime_state_type.model_validate({})  # type: ignore[assignment]
        return layer

    @classmethod
    def from_config(cls, config: ConfigT) -> Self:
        """Build the layer from its validated config.

        This default serves layers with an empty config and a constructor without required arguments.

        Raises:
            TypeError: the class has a config, or its constructor needs arguments.
        """
        if cls.config_type is not EmptyLayerConfig:
            raise TypeError(f"{cls.__name__} cannot be created from config; override from_config or use a provider.")
        try:
            # Asking the signature keeps a TypeError from inside a constructor apart from a missing argument.
            inspect.signature(cls.__init__).bind(None)
        except TypeError:
            raise TypeError(f"{cls.__name__} cannot be created from empty config; use a custom provider.") from None
        return cls()

    @classmethod
    def dependency_names(cls) -> frozenset[str]:
        """Names of the dependencies this layer declares."""
        return frozenset(dependency_specs(cls.deps_type))

    def bind_deps(self, deps: "Mapping[str, AnyLayer | None]") -> None:
        """Bind the declared names out of ``deps``; other names are ignored, an unmapped optional one is ``None``.

        Raises:
            ValueError: a required dependency is missing.
            TypeError: a layer has the wrong class.
        """
        selected: dict[str, AnyLayer | None] = {}
        for name, spec in dependency_specs(self.deps_type).items():
            if name not in deps and not spec.optional:
                owner = type(self).__name__
                raise ValueError(f"Dependency '{name}' is required for layer '{owner}' but not provided.")
            selected[name] = deps.get(name)
        self.deps = self.deps_type(**selected)  # type: ignore[assignment]

    def resource_context(self) -> AbstractAsyncContextManager[object]:
        """Context of the layer's live resources: entered before any hook, exited after the last one.

        On exit it is given the error that travels outwards. Swallowing that error has no effect.
        """
        return nullcontext()

    async def on_context_create(self) -> None:
        """Runs on entry of a layer in state ``new``."""

    async def on_context_resume(self) -> None:
        """Runs on entry of a layer in state ``suspended``."""

    async def on_context_suspend(self) -> None:
        """Runs on exit with intent ``SUSPEND``."""

    async def on_context_delete(self) -> None:
        """Runs on exit with intent ``DELETE``."""

    @property
    def prefix_prompts(self) -> Sequence[PromptT]:
        """System prompts placed before those of later layers."""
        return []

    @property
    def suffix_prompts(self) -> Sequence[PromptT]:
        """System prompts placed after those of later layers."""
        return []

    @property
    def user_prompts(self) -> Sequence[UserPromptT]:
        """User prompts of this layer."""
        return []

    @property
    def tools(self) -> Sequence[ToolT]:
        """Tools of this layer."""
        return []

    @abstractmethod
    def wrap_prompt(self, prompt: PromptT) -> object:
        """Tag a system prompt with its family for aggregation."""

    @abstractmethod
    def wrap_user_prompt(self, prompt: UserPromptT) -> object:
        """Tag a user prompt with its family for aggregation."""

    @abstractmethod
    def wrap_tool(self, tool: ToolT) -> object:
        """Tag a tool with its family for aggregation."""


AnyLayer: TypeAlias = Layer[Any, Any, Any, Any, Any, Any]
"""A layer of any family, for annotations."""
