"""Declared dependencies between layers: the container base, and what its annotations mean."""

import sys
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import Format, get_annotations

if TYPE_CHECKING:
    from agenton.layers.base import AnyLayer

_SPECS = "_layer_dep_specs"


@dataclass(frozen=True, slots=True)
class LayerDepSpec:
    """One declared dependency: the class a bound layer must have, and whether it may be left out."""

    layer_type: "type[AnyLayer]"
    optional: bool = False


class LayerDeps:
    """Base of dependency containers.

    A subclass annotates each dependency with a ``Layer`` subclass (a parametrised generic counts by its origin), or
    with such a class ``| None`` when it is optional. Instances hold plain references to layers of the same run.
    """

    def __init__(self, **deps: "AnyLayer | None") -> None:
        """Check and hold ``deps``; an optional one that is not given is ``None``.

        Raises:
            ValueError: a required dependency is missing or ``None``, or a name is not declared.
            TypeError: a layer has the wrong class, or an annotation of this class is not a layer class.
        """
        specs = dependency_specs(type(self))
        missing = sorted(name for name, spec in specs.items() if not spec.optional and name not in deps)
        if missing:
            raise ValueError(f"Missing layer dependencies: {', '.join(missing)}.")
        unknown = sorted(deps.keys() - specs.keys())
        if unknown:
            raise ValueError(f"Unknown layer dependencies: {', '.join(unknown)}.")
        for name, spec in specs.items():
            setattr(self, name, _checked(name, spec, deps.get(name)))


class NoLayerDeps(LayerDeps):
    """Container of a layer without dependencies."""


def dependency_specs(deps_type: type[LayerDeps]) -> dict[str, LayerDepSpec]:
    """The declared dependencies of ``deps_type`` by name, those of base classes first.

    Raises:
        TypeError: an annotation is neither a layer class nor a layer class ``| None``.
    """
    known: dict[str, LayerDepSpec] | None = vars(deps_type).get(_SPECS)
    if known is None:
        known = {
            name: _spec(deps_type, name, annotation)
            for owner in reversed(deps_type.__mro__)
            if owner is not LayerDeps and issubclass(owner, LayerDeps)
            for name, annotation in _annotations(owner)
        }
        setattr(deps_type, _SPECS, known)
    return known


def _checked(name: str, spec: LayerDepSpec, layer: "AnyLayer | None") -> "AnyLayer | None":
    if layer is None:
        if not spec.optional:
            raise ValueError(f"Dependency '{name}' is required but not provided.")
        return None
    if not isinstance(layer, spec.layer_type):
        expected, actual = spec.layer_type.__name__, type(layer).__name__
        raise TypeError(f"Dependency '{name}' should be of type '{expected}', but got type '{actual}'.")
    return layer


def _annotations(owner: type) -> list[tuple[str, Any]]:
    """``owner``'s own annotations with names resolved; what cannot be resolved stays as it was written."""
    return [(name, _resolved(owner, raw)) for name, raw in get_annotations(owner, format=Format.FORWARDREF).items()]


def _resolved(owner: type, annotation: Any) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    module = sys.modules.get(owner.__module__)
    try:
        return get_type_hints(holder, globalns=vars(module) if module else {}, localns=dict(vars(owner)))["it"]
    except (NameError, TypeError, SyntaxError):
        return annotation


def _spec(deps_type: type[LayerDeps], name: str, annotation: Any) -> LayerDepSpec:
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    layers = [member for member in members if member is not NoneType]
    layer_type = _layer_class(layers[0]) if len(layers) == 1 else None
    if layer_type is None:
        raise TypeError(
            f"{deps_type.__name__}.{name} must be annotated with a Layer subclass or Layer subclass | None."
        )
    return LayerDepSpec(layer_type=layer_type, optional=len(layers) < len(members))


def _layer_class(annotation: Any) -> "type[AnyLayer] | None":
    # The import is late because Layer itself needs this module to exist first.
    from agenton.layers.base import Layer

    candidate = get_origin(annotation) or annotation
    return candidate if isinstance(candidate, type) and issubclass(candidate, Layer) else None
