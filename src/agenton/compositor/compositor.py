"""``Compositor``: an immutable node list that can be entered any number of times, also concurrently."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, Self

from agenton.compositor.boundary import validate_boundary
from agenton.compositor.graph import (
    CONFIG_SCHEMA_VERSION,
    CompositorConfig,
    CompositorConfigValue,
    LayerNode,
    LayerNodeConfig,
    check_nodes,
)
from agenton.compositor.lifecycle import Collected, check_enterable, enter_slots, leave_slots
from agenton.compositor.providers import LayerProvider, as_provider, provider_table
from agenton.compositor.run import CompositorRun, LayerRunSlot
from agenton.compositor.snapshot import CompositorSessionSnapshotValue, checked_snapshot, hydrate
from agenton.compositor.transformers import (
    CompositorTransformer,
    LayerPromptT,
    LayerToolT,
    LayerUserPromptT,
    PromptT,
    ToolT,
    UserPromptT,
)
from agenton.layers.base import AnyLayer, LayerConfig, LifecycleState

if TYPE_CHECKING:
    from agenton.compositor import LayerConfigInput, LayerProviderInput


class Compositor(Generic[PromptT, ToolT, LayerPromptT, LayerToolT, UserPromptT, LayerUserPromptT]):
    """A composition of layers: nodes in entry order, and the transformers of its runs. Holds no live state."""

    def __init__(
        self,
        nodes: Iterable[LayerNode],
        *,
        prompt_transformer: CompositorTransformer[LayerPromptT, PromptT] | None = None,
        user_prompt_transformer: CompositorTransformer[LayerUserPromptT, UserPromptT] | None = None,
        tool_transformer: CompositorTransformer[LayerToolT, ToolT] | None = None,
    ) -> None:
        """Compose ``nodes`` in the given order, which is verified and never changed.

        Raises:
            ValueError: a name occurs twice, or a node's dependencies do not fit the list.
        """
        self._nodes = tuple(nodes)
        check_nodes(self._nodes)
        self._prompt_transformer = prompt_transformer
        self._user_prompt_transformer = user_prompt_transformer
        self._tool_transformer = tool_transformer

    @classmethod
    def from_config(
        cls,
        conf: CompositorConfigValue,
        *,
        providers: "Iterable[LayerProviderInput]",
        node_providers: "Mapping[str, LayerProviderInput] | None" = None,
        prompt_transformer: CompositorTransformer[LayerPromptT, PromptT] | None = None,
        user_prompt_transformer: CompositorTransformer[LayerUserPromptT, UserPromptT] | None = None,
        tool_transformer: CompositorTransformer[LayerToolT, ToolT] | None = None,
    ) -> Self:
        """Compose from a graph config, resolving type ids by ``providers``; ``node_providers`` win, by node name.

        Raises:
            pydantic.ValidationError: ``conf`` is no graph config.
            ValueError: another schema version, a provider without type id or with a taken one, an unknown name in
                ``node_providers``, or what the constructor refuses.
            KeyError: a type id is unknown.
            TypeError: a provider is neither a layer class nor a ``LayerProvider``.
        """
        config = validate_boundary(CompositorConfig, conf)
        if config.schema_version != CONFIG_SCHEMA_VERSION:
            raise ValueError(f"Unsupported compositor config schema_version: {config.schema_version}.")
        table = provider_table(providers)
        by_name = {name: as_provider(provider) for name, provider in (node_providers or {}).items()}
        unknown = sorted(by_name.keys() - {layer.name for layer in config.layers})
        if unknown:
            raise ValueError(f"node_providers contains unknown layer node names: {', '.join(unknown)}.")
        return cls(
            [_configured_node(layer, table, by_name) for layer in config.layers],
            prompt_transformer=prompt_transformer,
            user_prompt_transformer=user_prompt_transformer,
            tool_transformer=tool_transformer,
        )

    @property
    def nodes(self) -> tuple[LayerNode, ...]:
        """The nodes in entry order."""
        return self._nodes

    @asynccontextmanager
    async def enter(
        self,
        *,
        configs: "Mapping[str, LayerConfigInput] | None" = None,
        session_snapshot: CompositorSessionSnapshotValue | None = None,
        on_unwind: Callable[[], None] | None = None,
    ) -> AsyncIterator[CompositorRun[PromptT, ToolT, LayerPromptT, LayerToolT, UserPromptT, LayerUserPromptT]]:
        """Context manager of one run: builds fresh layers, enters them in node order, leaves them in reverse.

        Exit hooks and resource exits are awaited plainly, also when a cancellation is on its way out. A caller on an
        async library whose cancellation persists (Trio, anyio) must therefore shield and bound them: it opens a
        cancel scope around this context manager and sets the scope's shield and deadline in ``on_unwind``.

        Args:
            configs: layer configs by node name; a node without one gets ``{}``.
            session_snapshot: snapshot of an earlier run of the same node names in the same order.
            on_unwind: called once, synchronously, right before the first step of leaving: after the body, whether it
                returned or raised, or after the entry of a layer failed. Not called when nothing was entered because
                configs, snapshot or graph were refused. What it raises counts as the first error of the exit.

        Raises (on entering):
            pydantic.ValidationError: a config, the snapshot or a stored runtime state does not fit.
            ValueError: unknown names in ``configs``, snapshot of another version or composition, a missing required
                dependency, a factory that returned a used layer.
            TypeError: a factory returned, or a dependency is, another class.
            RuntimeError: a layer of the snapshot is closed.
            BaseException: what a layer's entry raised, or the first error of unwinding after it.

        Raises (on leaving): the first error of hooks and resource contexts, else that of the body. The run's
        ``session_snapshot`` is set before.
        """
        run = self._new_run(configs or {}, session_snapshot)
        slots = list(run.slots.values())
        await enter_slots(slots, on_unwind)
        with Collected() as outcome:
            yield run
        exit_error = await leave_slots(slots, outcome.error, on_unwind)
        with Collected() as snapshot:
            run.session_snapshot = run.snapshot_session()
        outcome.supersede(snapshot.error)
        outcome.supersede(exit_error)
        outcome.reraise()

    def _new_run(
        self, configs: "Mapping[str, LayerConfigInput]", session_snapshot: CompositorSessionSnapshotValue | None
    ) -> CompositorRun[PromptT, ToolT, LayerPromptT, LayerToolT, UserPromptT, LayerUserPromptT]:
        """Build a run whose slots can be entered. Runs no hook, so a failure leaves nothing to clean up."""
        validated = self._validated_configs(configs)
        names = [node.name for node in self._nodes]
        snapshot = None if session_snapshot is None else checked_snapshot(session_snapshot, names)
        layers = {node.name: node.provider.create_layer_from_config(validated[node.name]) for node in self._nodes}
        states = dict.fromkeys(names, LifecycleState.NEW)
        for stored in snapshot.layers if snapshot else ():
            hydrate(layers[stored.name], stored.runtime_state)
            states[stored.name] = stored.lifecycle_state
        self._bind(layers)
        slots = OrderedDict((name, LayerRunSlot(layers[name], states[name])) for name in names)
        check_enterable(slots)
        return CompositorRun(
            slots=slots,
            prompt_transformer=self._prompt_transformer,
            user_prompt_transformer=self._user_prompt_transformer,
            tool_transformer=self._tool_transformer,
        )

    def _validated_configs(self, configs: "Mapping[str, LayerConfigInput]") -> dict[str, LayerConfig]:
        unknown = sorted(configs.keys() - {node.name for node in self._nodes})
        if unknown:
            raise ValueError(f"Layer configs contain unknown layer node names: {', '.join(unknown)}.")
        return {node.name: node.provider.validate_config(configs.get(node.name)) for node in self._nodes}

    def _bind(self, layers: Mapping[str, AnyLayer]) -> None:
        for node in self._nodes:
            layers[node.name].bind_deps({dep: layers[target] for dep, target in node.deps.items()})


def _configured_node(
    layer: LayerNodeConfig, table: Mapping[str, LayerProvider], by_name: Mapping[str, LayerProvider]
) -> LayerNode:
    provider = by_name.get(layer.name) or table.get(layer.type)
    if provider is None:
        raise KeyError(f"Layer type id '{layer.type}' is not registered.")
    return LayerNode(layer.name, provider, deps=layer.deps, metadata=layer.metadata)
