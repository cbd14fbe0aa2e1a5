"""The schema as a model sees it: ``#/$defs`` references put in, titled ``final_output``. Rules: layers 2.6."""

from collections.abc import Mapping
from typing import Any, Final

from dify_agent.loop.port import OUTPUT_TOOL_NAME
from dify_agent.protocol.schema_size import EXPANSION_LIMIT
from dify_agent.protocol.schema_walk import (
    DATA_KEYWORDS,
    NAMED_KEYWORDS,
    REFERENCE_KEYWORDS,
    follow_pointer,
    subschemas,
)

MAX_DEPTH: Final = 200
"""Nesting of the result, the same as that of a request body; a step from a reference to its target counts too."""

REMOTE_REFERENCE: Final = (
    "Remote $ref values are not supported; only local fragment refs beginning with '#' are allowed."
)
RECURSIVE: Final = "Recursive $defs refs are not supported for structured output exposure."
TOO_DEEP: Final = f"The output schema is nested more than {MAX_DEPTH} levels deep once its references are put in."
TOO_LARGE: Final = f"The output schema has more than {EXPANSION_LIMIT} parts once its references are put in."
_LOCAL: Final = "#/$defs/"


def expose(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema for the model, with the description it has itself. Its values under data keywords are shared.

    Its references have the form that `check_references` wants. A definition that nothing refers to may be recursive or
    refer to nothing: it is dropped with ``$defs``.

    Raises:
        ValueError: a reference leads to itself or to nothing, or the result is too large or too deep.
    """
    try:
        exposed = _Inlining(schema).schema(schema, 0)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return exposed | {"title": OUTPUT_TOOL_NAME}


def check_references(schema: Mapping[str, Any]) -> None:
    """Check the form of every reference, in the order they stand in, also in definitions that are not used.

    Raises:
        ValueError: one does not begin with ``#/$defs/``.
    """
    pending = [schema]
    while pending:
        node = pending.pop()
        for reference in _references(node):
            if not reference.startswith("#"):
                raise ValueError(REMOTE_REFERENCE)
            if not reference.startswith(_LOCAL):
                raise ValueError(
                    f"Only local refs under '{_LOCAL}' are supported in this version; "
                    f"got unsupported local ref '{reference}'."
                )
        pending.extend(reversed(list(subschemas(node))))


def _references(schema: Mapping[str, Any]) -> list[str]:
    # The dynamic kinds are references too; they would dangle in a schema without definitions.
    return [value for keyword in REFERENCE_KEYWORDS if isinstance(value := schema.get(keyword), str)]


class _Inlining:
    """One walk through a schema, on which every reference is replaced by what it refers to."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document: Final = document
        self._open: set[int] = set()
        """Targets that the walk is inside of, by identity."""
        self._parts = 0

    def schema(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The schema without references and definitions; its own keywords override those of a target."""
        self._count(depth)
        result: dict[str, Any] = {}
        for reference in _references(schema):
            result |= self._target(reference, depth)
        for keyword, value in schema.items():
            if keyword == "$defs" or (keyword in REFERENCE_KEYWORDS and isinstance(value, str)):
                continue
            if keyword in DATA_KEYWORDS:
                result[keyword] = value
            elif keyword in NAMED_KEYWORDS and isinstance(value, Mapping):
                result[keyword] = self._named(value, depth + 1)
            else:
                result[keyword] = self._value(value, depth + 1)
        return result

    def _target(self, reference: str, depth: int) -> dict[str, Any]:
        try:
            target = follow_pointer(self._document, reference.removeprefix("#"))
        except LookupError:
            target = None
        if not isinstance(target, Mapping):
            raise ValueError(f"Local $ref '{reference}' could not be resolved from $defs.")
        if id(target) in self._open:
            raise ValueError(RECURSIVE)
        self._open.add(id(target))
        inlined = self.schema(target, depth + 1)
        self._open.remove(id(target))
        return inlined

    def _named(self, schemas: Mapping[str, Any], depth: int) -> dict[str, Any]:
        self._count(depth)
        return {name: self._value(schema, depth + 1) for name, schema in schemas.items()}

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self.schema(value, depth)
        if isinstance(value, list):
            self._count(depth)
            return [self._value(item, depth + 1) for item in value]
        return value

    def _count(self, depth: int) -> None:
        self._parts += 1
        if self._parts > EXPANSION_LIMIT:
            raise ValueError(TOO_LARGE)
        if depth >= MAX_DEPTH:
            raise ValueError(TOO_DEEP)
