"""One entered composition: its slots, its aggregated prompts and tools, its exit intents and its snapshot."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from agenton.compositor.snapshot import CompositorSessionSnapshot, take_snapshot
from agenton.compositor.transformers import (
    CompositorTransformer,
    LayerPromptT,
    LayerToolT,
    LayerUserPromptT,
    PromptT,
    ToolT,
    UserPromptT,
)
from agenton.layers.base import AnyLayer, ExitIntent, LifecycleState

LayerT = TypeVar("LayerT", bound=AnyLayer)


@dataclass(slots=True)
class LayerRunSlot:
    """The per-run record of one layer."""

    layer: AnyLayer
    lifecycle_state: LifecycleState
    exit_intent: ExitIntent = ExitIntent.DELETE
    active_resource_context: AbstractAsyncContextManager[object] | None = None


@dataclass(slots=True, eq=False)
class CompositorRun(Generic[PromptT, ToolT, LayerPromptT, LayerToolT, UserPromptT, LayerUserPromptT]):
    """What the body of ``Compositor.enter`` works with. ``slots`` are in node order."""

    slots: OrderedDict[str, LayerRunSlot]
    prompt_transformer: CompositorTransformer[LayerPromptT, PromptT] | None = None
    user_prompt_transformer: CompositorTransformer[LayerUserPromptT, UserPromptT] | None = None
    tool_transformer: CompositorTransformer[LayerToolT, ToolT] | None = None
    session_snapshot: CompositorSessionSnapshot | None = None
    """``None`` until the run has been left."""

    @overload
    def get_layer(self, name: str) -> AnyLayer: ...
    @overload
    def get_layer(self, name: str, layer_type: type[LayerT]) -> LayerT: ...
    def get_layer(self, name: str, layer_type: type[AnyLayer] | None = None) -> AnyLayer:
        """The layer of node ``name``.

        Raises:
            KeyError: there is no such node.
            TypeError: the layer is not a ``layer_type``.
        """
        layer = self._slot(name).layer
        if layer_type is not None and not isinstance(layer, layer_type):
            raise TypeError(f"Layer '{name}' must be {layer_type.__name__}, got {type(layer).__name__}.")
        return layer

    def suspend_on_exit(self) -> None:
        """Suspend every layer when the run is left; raises as ``suspend_layer_on_exit``."""
        self._set_intents(self.slots.values(), ExitIntent.SUSPEND)

    def delete_on_exit(self) -> None:
        """Delete every layer when the run is left; raises as ``delete_layer_on_exit``."""
        self._set_intents(self.slots.values(), ExitIntent.DELETE)

    def suspend_layer_on_exit(self, name: str) -> None:
        """Suspend one layer when the run is left.

        Raises:
            KeyError: there is no such node.
            RuntimeError: the layer is not active.
        """
        self._set_intents([self._slot(name)], ExitIntent.SUSPEND)

    def delete_layer_on_exit(self, name: str) -> None:
        """Delete one layer when the run is left.

        Raises:
            KeyError: there is no such node.
            RuntimeError: the layer is not active.
        """
        self._set_intents([self._slot(name)], ExitIntent.DELETE)

    def snapshot_session(self) -> CompositorSessionSnapshot:
        """Snapshot of the run as it stands.

        Raises:
            RuntimeError: a layer is active.
        """
        active = [name for name, slot in self.slots.items() if slot.lifecycle_state is LifecycleState.ACTIVE]
        if active:
            raise RuntimeError(f"Cannot snapshot active compositor run layers: {', '.join(active)}.")
        return take_snapshot((name, slot.layer, slot.lifecycle_state) for name, slot in self.slots.items())

    @property
    def prompts(self) -> Sequence[PromptT]:
        """System prompts: prefixes from first to last layer, then suffixes from last to first."""
        layers = self._layers()
        items = [layer.wrap_prompt(prompt) for layer in layers for prompt in layer.prefix_prompts]
        items += [layer.wrap_prompt(prompt) for layer in reversed(layers) for prompt in layer.suffix_prompts]
        return _transformed(items, self.prompt_transformer)

    @property
    def user_prompts(self) -> Sequence[UserPromptT]:
        """User prompts from first to last layer."""
        items = [layer.wrap_user_prompt(prompt) for layer in self._layers() for prompt in layer.user_prompts]
        return _transformed(items, self.user_prompt_transformer)

    @property
    def tools(self) -> Sequence[ToolT]:
        """Tools from first to last layer."""
        items = [layer.wrap_tool(tool) for layer in self._layers() for tool in layer.tools]
        return _transformed(items, self.tool_transformer)

    def _layers(self) -> list[AnyLayer]:
        return [slot.layer for slot in self.slots.values()]

    def _slot(self, name: str) -> LayerRunSlot:
        try:
            return self.slots[name]
        except KeyError:
            raise KeyError(f"Layer '{name}' is not defined in this compositor run.") from None

    def _set_intents(self, slots: Iterable[LayerRunSlot], intent: ExitIntent) -> None:
        chosen = list(slots)
        if any(slot.lifecycle_state is not LifecycleState.ACTIVE for slot in chosen):
            raise RuntimeError("Layer exit intent can only be changed while the run slot is active.")
        for slot in chosen:
            slot.exit_intent = intent


def _transformed(items: list[Any], transformer: Callable[[Sequence[Any]], Sequence[Any]] | None) -> Sequence[Any]:
    return items if transformer is None else transformer(items)
