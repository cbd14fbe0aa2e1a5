"""``LayerProvider``: a reusable plan for constructing one class of layer from a config."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias

from typing_extensions import TypeVar

from agenton.compositor.boundary import validate_boundary
from agenton.layers.base import AnyLayer, Layer, LayerConfig

if TYPE_CHECKING:
    from agenton.compositor import LayerConfigInput, LayerProviderInput

LayerT = TypeVar("LayerT", bound=AnyLayer, default=Any)

LayerFactory: TypeAlias = Callable[[LayerConfig], AnyLayer]
"""Builds a fresh layer from its validated config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProvider(Generic[LayerT]):
    """Constructs layers of ``layer_type``; holds no layer and may serve any number of runs.

    ``create`` gets the validated config and nothing else, and must return a new instance each time.
    """

    layer_type: type[LayerT]
    create: Callable[[Any], LayerT]

    @classmethod
    def from_layer_type(cls, layer_type: type[LayerT]) -> Self:
        """Provider that constructs through ``layer_type.from_config``."""
        return cls(layer_type=layer_type, create=layer_type.from_config)

    @classmethod
    def from_factory(cls, *, layer_type: type[LayerT], create: Callable[[Any], LayerT]) -> Self:
        """Provider that constructs through ``create(validated_config)``."""
        return cls(layer_type=layer_type, create=create)

    @property
    def type_id(self) -> str | None:
        """The layer class's type id."""
        return self.layer_type.type_id

    def validate_config(self, config: "LayerConfigInput" = None) -> LayerConfig:
        """Validate ``config`` against the layer's config type, without constructing; ``None`` means ``{}``.

        Raises:
            pydantic.ValidationError: it does not fit.
        """
        return validate_boundary(self.layer_type.config_type, {} if config is None else config)

    def create_layer(self, config: "LayerConfigInput" = None) -> LayerT:
        """Validate ``config`` and construct; raises what ``validate_config`` and ``create_layer_from_config`` raise."""
        return self.create_layer_from_config(self.validate_config(config))

    def create_layer_from_config(self, config: LayerConfig) -> LayerT:
        """Construct a layer from a config model, which is validated once more, and set ``layer.config``.

        Raises:
            TypeError: the factory returned another class.
            ValueError: the factory returned an instance that was handed out before.
        """
        validated = self.validate_config(config)
        layer = self.create(validated)
        if not isinstance(layer, self.layer_type):
            expected, actual = self.layer_type.__name__, type(layer).__name__
            raise TypeError(f"LayerProvider for '{expected}' returned '{actual}', expected '{expected}'.")
        _claim(layer)
        layer.config = validated
        return layer


def as_provider(implementation: "LayerProviderInput") -> LayerProvider:
    """The provider that ``implementation`` is, or one for the layer class it is.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(implementation, LayerProvider):
        return implementation
    if isinstance(implementation, type) and issubclass(implementation, Layer):
        return LayerProvider.from_layer_type(implementation)
    raise TypeError("LayerNode implementation must be a Layer subclass or LayerProvider.")


def provider_table(providers: "Iterable[LayerProviderInput]") -> dict[str, LayerProvider]:
    """Providers by type id.

    Raises:
        ValueError: a provider has no type id, or two have the same.
    """
    table: dict[str, LayerProvider] = {}
    for provider in map(as_provider, providers):
        type_id = provider.type_id
        if type_id is None:
            raise ValueError(f"Layer provider for '{provider.layer_type.__name__}' must declare a type_id.")
        if type_id in table:
            raise ValueError(f"Layer type id '{type_id}' is already registered.")
        table[type_id] = provider
    return table


# Layers handed out by any provider of this process, by identity: a layer class may define equality as it likes, and
# dataclass layers are not hashable. Entries leave with their layer.
_handed_out: "dict[int, weakref.ref[AnyLayer]]" = {}


def _claim(layer: AnyLayer) -> None:
    key = id(layer)
    known = _handed_out.get(key)
    if known is not None and known() is layer:
        raise ValueError(
            "LayerProvider factories must return a fresh layer instance for each invocation; "
            f"got reused instance of '{type(layer).__name__}'."
        )

    def forget(reference: "weakref.ref[AnyLayer]") -> None:
        # The id may belong to a newer layer by the time this runs.
        if _handed_out.get(key) is reference:
            del _handed_out[key]

    _handed_out[key] = weakref.ref(layer, forget)
