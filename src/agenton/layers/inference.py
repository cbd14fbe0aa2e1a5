"""Reads a layer class's schema types out of its generic bases, when the class is created.

A layer says ``class Search(PlainLayer[SearchDeps, SearchConfig])`` and gets ``deps_type`` and ``config_type`` from
that. Type variables are followed through any number of generic families in between.
"""

from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import NoDefault, get_original_bases

from agenton.layers.deps import LayerDeps, dependency_specs
from agenton.layers.schemas import LayerConfig

# typing_extensions builds its TypeVar on the one of typing, so one isinstance check sees both.
_Arguments = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _Schema:
    """One schema attribute: its position in ``Layer[...]``, and the parameter names a family may give it."""

    attribute: str
    position: int
    names: frozenset[str] = frozenset()


_DEPS = _Schema("deps_type", 0)
_CONFIG = _Schema("config_type", 4, frozenset({"ConfigT", "_ConfigT"}))
_RUNTIME_STATE = _Schema("runtime_state_type", 5, frozenset({"RuntimeStateT", "_RuntimeStateT"}))


def settle_schemas(cls: type, root: type) -> None:
    """Set and check the schema attributes of ``cls``, a new subclass of ``root`` (which is ``Layer``).

    A class with free type parameters whose deps type cannot be told yet is a template and is left alone.

    Raises:
        TypeError: an attribute is missing, has the wrong class, or the deps container is badly annotated.
    """
    deps_type = _settle(cls, _DEPS, root)
    if deps_type is None:
        if _parameters(cls):
            return
        raise TypeError(f"{cls.__name__} must define deps_type or inherit from Layer[DepsT].")
    if not _is_subclass(deps_type, LayerDeps):
        raise TypeError(f"{cls.__name__}.deps_type must be a LayerDeps subclass.")
    dependency_specs(deps_type)
    if not _is_subclass(_settle(cls, _CONFIG, root), LayerConfig):
        raise TypeError(f"{cls.__name__}.config_type must be a LayerConfig subclass.")
    if not _is_subclass(_settle(cls, _RUNTIME_STATE, root), BaseModel):
        raise TypeError(f"{cls.__name__}.runtime_state_type must be a Pydantic BaseModel subclass.")


def _settle(cls: type, schema: _Schema, root: type) -> Any:
    """The attribute's value: explicit, else inferred, else inherited; the first two are stored on ``cls``."""
    found = vars(cls).get(schema.attribute)
    if found is None:
        found = _inferred(cls, schema, root)
    if found is None:
        return getattr(cls, schema.attribute, None)
    settled = get_origin(found) or found
    setattr(cls, schema.attribute, settled)
    return settled


def _inferred(cls: type, schema: _Schema, root: type) -> Any:
    for base in get_original_bases(cls):
        found = _from_base(base, {}, schema, root)
        if isinstance(found, TypeVar):
            # A parameter that is still free is settled by a subclass; storing its default would stop the search there.
            found = None if found in _parameters(cls) else _default(found)
        if found is not None:
            return found
    return None


def _from_base(base: Any, outer: _Arguments, schema: _Schema, root: type) -> Any:
    """What ``base`` says about ``schema``: a class, an unresolved type variable, or ``None``."""
    origin = get_origin(base) or base
    if not _is_subclass(origin, root):
        return None
    arguments = _substituted(base, origin, outer)
    if origin is root:
        parameter = _parameters(root)[schema.position]
        return arguments.get(parameter, parameter)
    for parameter, argument in arguments.items():
        if parameter.__name__ in schema.names and not isinstance(argument, TypeVar):
            return argument
    if schema.attribute in vars(origin):
        return vars(origin)[schema.attribute]
    for further in get_original_bases(origin):
        found = _from_base(further, arguments, schema, root)
        if found is not None:
            return found
    return None


def _substituted(base: Any, origin: type, outer: _Arguments) -> _Arguments:
    """``origin``'s parameters with the arguments ``base`` gives them, seen with the arguments of the class below.

    An argument equal to the parameter's default counts as not given: Python 3.13 fills defaults in, 3.11 does not.
    """
    pairs = zip(_parameters(origin), get_args(base), strict=False)
    return {
        parameter: outer.get(given, given) if isinstance(given, TypeVar) else given
        for parameter, given in pairs
        if given is not _default(parameter)
    }


def _parameters(cls: type) -> tuple[Any, ...]:
    return getattr(cls, "__parameters__", ())


def _default(parameter: Any) -> Any:
    default = getattr(parameter, "__default__", NoDefault)
    return None if default is NoDefault else default


def _is_subclass(candidate: Any, base: type) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, base)
