"""Tools that work on an object of the run: ``with_object`` marks them, ``DynamicToolsLayer`` binds the object."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from agenton.layers import LayerDeps, PlainLayer, PlainTool
from agenton_collections.layers.plain.basic import ObjectLayer

ObjectT = TypeVar("ObjectT")
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

_BINDING = "__agenton_object_binding__"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class _ObjectBinding:
    """What ``with_object`` notes on a tool: the class of object it wants, and the tool as it was written."""

    object_type: type[Any]
    tool: Callable[..., Any]


class DynamicToolsLayerDeps(LayerDeps, Generic[ObjectT]):
    """Dependencies of ``DynamicToolsLayer``."""

    object_layer: ObjectLayer[ObjectT]


@dataclass
class DynamicToolsLayer(PlainLayer[DynamicToolsLayerDeps[ObjectT]], Generic[ObjectT]):
    """Contributes callables as tools; those marked by ``with_object`` get the object of ``object_layer`` first."""

    tool_entries: Sequence[Callable[..., Any]] = ()

    @property
    def tools(self) -> list[PlainTool]:
        """The entries, with the object bound where it is asked for.

        Raises:
            TypeError: the object is not of the class a tool was marked for.
        """
        value = self.deps.object_layer.value
        return [_with_bound_object(entry, value) for entry in self.tool_entries]


def with_object(
    object_type: type[ObjectT],
) -> Callable[
    [Callable[Concatenate[ObjectT, ParamsT], ResultT]],
    Callable[Concatenate[ObjectT, ParamsT], ResultT],
]:
    """Mark a tool whose first parameter takes the object of the run; the others are what a model sees.

    Raises (when it decorates):
        ValueError: the tool has no positional parameter.
        TypeError: the annotation of the first parameter cannot hold an ``object_type``.
    """

    def mark(
        tool: Callable[Concatenate[ObjectT, ParamsT], ResultT],
    ) -> Callable[Concatenate[ObjectT, ParamsT], ResultT]:
        parameters = list(inspect.signature(tool).parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise ValueError("Dynamic tools must accept the object dependency as their first parameter.")
        if not _accepts(_annotation(tool, parameters[0]), object_type):
            expected = _type_name(object_type)
            raise TypeError(f"Object-bound tool '{_qualname(tool)}' first parameter should accept '{expected}'.")
        marked = _forwarder(tool)
        setattr(marked, _BINDING, _ObjectBinding(object_type, tool))
        return marked

    return mark


def _with_bound_object(entry: Callable[..., Any], value: object) -> Callable[..., Any]:
    binding: _ObjectBinding | None = getattr(entry, _BINDING, None)
    if binding is None:
        return entry
    if not isinstance(value, get_origin(binding.object_type) or binding.object_type):
        expected, actual = _type_name(binding.object_type), type(value).__name__
        raise TypeError(
            f"Object-bound tool '{_qualname(binding.tool)}' expected object dependency of type '{expected}', "
            f"but got '{actual}'."
        )
    signature = inspect.signature(binding.tool)
    first, *others = signature.parameters.values()
    bound = _forwarder(binding.tool, value)
    bound.__dict__["__signature__"] = signature.replace(parameters=others)
    annotations = getattr(binding.tool, "__annotations__", {})
    bound.__annotations__ = {name: annotation for name, annotation in annotations.items() if name != first.name}
    return bound


def _forwarder(tool: Callable[..., Any], *bound: object) -> Callable[..., Any]:
    """A function that looks like ``tool``, async if it is, and calls it with ``bound`` before its own arguments."""
    if inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None)):  # noqa: B004
        awaitable_tool: Callable[..., Awaitable[Any]] = tool

        @wraps(tool)
        async def forward_async(*args: Any, **kwargs: Any) -> Any:
            return await awaitable_tool(*bound, *args, **kwargs)

        return forward_async

    @wraps(tool)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return tool(*bound, *args, **kwargs)

    return forward


def _annotation(tool: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The parameter's annotation; ``Any`` when there is none or it cannot be resolved."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    target = tool if hasattr(tool, "__annotations__") else getattr(tool, "__call__")  # noqa: B004, B009
    try:
        return get_type_hints(target, include_extras=True)[parameter.name]
    except Exception:  # noqa: BLE001 - annotations are arbitrary code; what cannot be told is accepted
        return Any


def _accepts(annotation: Any, object_type: type[Any]) -> bool:
    """Whether a parameter annotated so may be given an ``object_type``; what is no class is not judged."""
    origin = get_origin(annotation)
    if annotation is Any or origin is Annotated:
        return True
    if origin in (Union, UnionType):
        return any(member is NoneType or _accepts(member, object_type) for member in get_args(annotation))
    candidate = origin or annotation
    if not isinstance(candidate, type):
        return True
    try:
        return issubclass(get_origin(object_type) or object_type, candidate)
    except TypeError:
        return True  # such as a protocol that cannot be checked at runtime


def _type_name(object_type: type[Any]) -> str:
    return getattr(object_type, "__name__", str(object_type))


def _qualname(tool: Callable[..., Any]) -> str:
    return getattr(tool, "__qualname__", type(tool).__qualname__)
