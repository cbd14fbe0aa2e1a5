"""Bounds of a JSON Schema before anything is compiled."""

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from dify_agent.protocol.schema_walk import (
    DATA_KEYWORDS,
    References,
    Schema,
    definitions,
    resource_of,
    subschemas,
)

SCHEMAS_LIMIT: Final = 5_000
"""Subschemas as written: they take up to a fifth of a second to measure and compile (measured)."""
EXPANSION_LIMIT: Final = 20_000
"""Subschemas after all references are put in. References to references double with each step: thirty of them make a
thousand million checks of one value."""
DATA_LIMIT: Final = 100_000
"""JSON values in them, the options of an ``enum`` say, counted in the same way."""
DEPTH_LIMIT: Final = 1000
"""Subschemas within one another, a reference counting as one step: the validator recurses on the thread's stack, and
50,000 of them ended the process (measured)."""
INTEGER_BITS: Final = 128
"""Of a bound or a divisor: checks against one of 2,000 digits take half a millisecond each (measured)."""

TOO_MANY: Final = f"the schema has more than {SCHEMAS_LIMIT} subschemas"
TOO_LARGE: Final = f"the schema has more than {EXPANSION_LIMIT} subschemas once its references are put in"
TOO_MUCH_DATA: Final = f"the schema has more than {DATA_LIMIT} values once its references are put in"
TOO_DEEP: Final = f"the schema is nested more than {DEPTH_LIMIT} levels deep once its references are put in"
TOO_LONG: Final = f"the schema has an integer of more than {INTEGER_BITS} bits"


class _Size(NamedTuple):
    schemas: int
    """Subschemas, itself included."""
    values: int
    """JSON values in them."""
    height: int
    """Subschemas within one another."""


def check_size(schema: Schema) -> None:
    """Refuse a schema that is too large. Does not recurse: chains of references may be long.

    Raises:
        ValueError: over a limit, or a reference leads out of the schema.
    """
    expansion = _Expansion(schema)
    open_schemas = [expansion.size(schema, schema)]
    answer: _Size | None = None
    while open_schemas:
        measuring = open_schemas[-1]
        try:
            inner = next(measuring) if answer is None else measuring.send(answer)
        except StopIteration as done:
            open_schemas.pop()
            answer = done.value
        else:
            open_schemas.append(expansion.size(*inner))
            answer = None
        if len(open_schemas) > DEPTH_LIMIT:
            raise ValueError(TOO_DEEP)


def count_values(value: Any) -> int:
    """JSON values in ``value``, itself included. Does not recurse.

    Raises:
        ValueError: they are too many, or an integer is too long.
    """
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += 1
        if isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int) and item.bit_length() > INTEGER_BITS:
            raise ValueError(TOO_LONG)
        if count > DATA_LIMIT:
            raise ValueError(TOO_MUCH_DATA)
    return count


class _Expansion:
    """What a schema comes to with every reference put in; what stands in itself counts 1 there."""

    def __init__(self, schema: Schema) -> None:
        self._references = References(schema)
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._written: set[int] = set()

    def size(self, schema: Schema, resource: Schema) -> Generator[tuple[Schema, Schema], _Size, _Size]:
        """Yields each schema whose size it needs, with its resource; returns its own size."""
        self._count(schema)
        resource = resource_of(schema, resource)
        count, values, height = 1, _own_values(schema), 0
        defined = {id(child) for child in definitions(schema)}
        for child in subschemas(schema):
            size = yield child, resource
            height = max(height, size.height)
            if id(child) not in defined:  # those count where they are referred to
                count, values = count + size.schemas, values + size.values
        for target in self._references.targets(schema, resource):
            key = (id(target[0]), id(target[1]))
            if key not in self._sizes:
                self._sizes[key] = _Size(1, 1, 1)  # met again while it is measured: a cycle, which the instance bounds
                self._sizes[key] = yield target
            size = self._sizes[key]
            count, values, height = count + size.schemas, values + size.values, max(height, size.height)
        if count > EXPANSION_LIMIT:
            raise ValueError(TOO_LARGE)
        if values > DATA_LIMIT:
            raise ValueError(TOO_MUCH_DATA)
        if height >= DEPTH_LIMIT:
            raise ValueError(TOO_DEEP)
        return _Size(count, values, height + 1)

    def _count(self, schema: Schema) -> None:
        self._written.add(id(schema))
        if len(self._written) > SCHEMAS_LIMIT:
            raise ValueError(TOO_MANY)


def _own_values(schema: Schema) -> int:
    """JSON values of ``schema`` outside its subschemas."""
    count = 0
    for keyword, value in schema.items():
        if keyword in DATA_KEYWORDS:
            count += count_values(value)
        elif isinstance(value, list):
            count += count_values([item for item in value if not isinstance(item, Mapping)])
        elif not isinstance(value, Mapping):
            count += count_values(value)
    return count
