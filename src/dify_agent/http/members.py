"""How wide a body is where its model judges each member: the bound on how many violations there can be.

A violation costs microseconds to find and again to report, in calls that keep the interpreter's lock; a body of 64 MiB
can have millions (15 s, measured). Members of free-form JSON (`JsonValue`) cannot violate anything and do not count.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

MAX_MEMBERS: Final = 5_000
"""A thousand layers with all their members; the largest compositions in sight have fifty."""

MEMBER_BYTES: Final = 2
"""A member takes at least so much text: a digit and a comma."""


def has_more_members(model: type[BaseModel], value: Any, limit: int) -> bool:
    """Whether the containers in ``value`` whose members ``model`` judges have more than ``limit`` of them together."""
    found = 0
    for width in _widths(model, value):
        found += width
        if found > limit:
            return True
    return False


def _widths(kind: Any, value: Any) -> Iterator[int]:
    """The size of each judged container of ``value``, as far as it has the form that ``kind`` wants."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        for option in arguments:
            yield from _widths(option, value)
    elif isinstance(value, list) and get_origin(kind) is list:
        yield len(value)
        for item in value:
            yield from _widths(arguments[0], item)
    elif isinstance(value, dict) and get_origin(kind) is dict:
        if arguments[1] is not JsonValue:
            yield len(value)
            for item in value.values():
                yield from _widths(arguments[1], item)
    elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
        yield len(value)
        for name, field in kind.model_fields.items():
            if name in value:
                yield from _widths(field.annotation, value[name])
