"""JSON Schemas that callers send: compiled so that no schema and no value can stop the process.

The validator is ``jsonschema_rs``. The Python library was replaced because a schema's ``pattern`` runs in ``re``,
which backtracks without a bound and holds the interpreter lock meanwhile: one argument of 60 characters hung a
process for good (measured). Here patterns run in linear time, those with look-around within `BACKTRACK_LIMIT` steps.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from jsonschema_rs import Validator

BACKTRACK_LIMIT: Final = 10_000
REGEX_BYTES: Final = 1 << 20
"""Size of one compiled pattern."""
EXPANSION_LIMIT: Final = 100_000
"""Subschemas after all references are put in. References to references double with each step: thirty of them make a
thousand million checks of one value."""
DEPTH_LIMIT: Final = 1000
"""Subschemas within one another, a reference counting as one step: the validator recurses on the thread's stack, and
50,000 of them ended the process (measured)."""

TOO_LARGE: Final = f"the schema has more than {EXPANSION_LIMIT} subschemas once its references are put in"
TOO_DEEP: Final = f"the schema is nested more than {DEPTH_LIMIT} levels deep once its references are put in"

DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is data, not a schema."""
NAMED_KEYWORDS: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value has names for keys, which mean nothing themselves, and schemas for values."""
REFERENCE_KEYWORDS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES: Final = ("$anchor", "$dynamicAnchor", "$id", "id")
"""Keywords that give a fragment a name; in older drafts ``#name`` is an id."""

_Schema = Mapping[str, Any]


def compile_schema(schema: Mapping[str, Any]) -> "Validator":
    """A validator for ``schema``, draft by its ``$schema``, else the newest.

    Raises:
        ValueError: it is no valid JSON Schema, too large once expanded, nested too deeply, or has a reference that
            does not start with ``#``. Nothing is fetched: a document named by a request would let a caller reach
            inner hosts and files.
    """
    import jsonschema_rs

    _Expansion(schema).check()
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_BYTES)
    try:
        return jsonschema_rs.validator_for(dict(schema), pattern_options=patterns, retriever=_refuse_to_fetch)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(error.message) from None


def subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas one level below, in order: what stands in schema positions, also under unknown keywords."""
    for keyword, value in schema.items():
        if keyword in DATA_KEYWORDS:
            continue
        if keyword in NAMED_KEYWORDS and isinstance(value, Mapping):
            for named in value.values():
                yield from _schemas_in(named)
        else:
            yield from _schemas_in(value)


def follow_pointer(document: Any, pointer: str) -> Any:
    """What ``pointer``, the fragment of a reference, leads to (RFC 6901, section 6).

    Raises:
        LookupError: nothing is there.
    """
    return [document, *_steps(document, pointer)][-1]


def _steps(document: Any, pointer: str) -> Iterator[Any]:
    node = document
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node[key]
        elif isinstance(node, list) and key.isdecimal():
            node = node[int(key)]
        else:
            raise LookupError(key)
        yield node


def _schemas_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _schemas_in(item)


def _refuse_to_fetch(_uri: str) -> Any:
    raise ValueError("only references within the schema are supported")


class _Size(NamedTuple):
    schemas: int
    """Subschemas, itself included."""
    height: int
    """Subschemas within one another."""


class _Expansion:
    """How many subschemas a schema has with every reference put in; what stands in itself counts 1 there.

    Errs on the high side: a reference may be meant for the document or for the part of it with an ``$id`` of its own,
    and several anchors may have its name. All are counted.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._document = schema
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._anchors: dict[str, list[Mapping[str, Any]]] | None = None

    def check(self) -> None:
        """Measure, without recursion: chains of references may be long.

        Raises:
            ValueError: over a limit, or a reference leads out of the schema.
        """
        open_schemas = [self._size(self._document, self._document)]
        answer: _Size | None = None
        while open_schemas:
            measuring = open_schemas[-1]
            try:
                inner = next(measuring) if answer is None else measuring.send(answer)
            except StopIteration as done:
                open_schemas.pop()
                answer = done.value
            else:
                open_schemas.append(self._size(*inner))
                answer = None
            if len(open_schemas) > DEPTH_LIMIT:
                raise ValueError(TOO_DEEP)

    def _size(self, schema: _Schema, resource: _Schema) -> Generator[tuple[_Schema, _Schema], _Size, _Size]:
        """Yields each schema whose size it needs, with its resource; returns its own size."""
        resource = _resource(schema, resource)
        count, height = 1, 0
        for child in subschemas(schema):
            size = yield child, resource
            count, height = count + size.schemas, max(height, size.height)
        for target in self._targets(schema, resource):
            key = (id(target[0]), id(target[1]))
            if key not in self._sizes:
                self._sizes[key] = _Size(1, 1)  # met again while it is measured: a cycle, which the instance bounds
                self._sizes[key] = yield target
            size = self._sizes[key]
            count, height = count + size.schemas, max(height, size.height)
        if count > EXPANSION_LIMIT:
            raise ValueError(TOO_LARGE)
        if height >= DEPTH_LIMIT:
            raise ValueError(TOO_DEEP)
        return _Size(count, height + 1)

    def _targets(self, schema: _Schema, resource: _Schema) -> Iterator[tuple[_Schema, _Schema]]:
        """What the references of ``schema`` itself may mean, each with its resource."""
        for keyword in REFERENCE_KEYWORDS:
            if not isinstance(reference := schema.get(keyword), str):
                continue
            document, _, fragment = reference.partition("#")
            if document:
                _refuse_to_fetch(document)
            if fragment and not fragment.startswith("/"):
                yield from ((target, target) for target in self._anchored(unquote(fragment)))
                continue
            bases = [self._document] if resource is self._document else [self._document, resource]
            for base in bases:
                yield from _pointed(base, fragment)

    def _anchored(self, name: str) -> list[Mapping[str, Any]]:
        if self._anchors is None:
            self._anchors = {}
            pending = [self._document]
            while pending:
                schema = pending.pop()
                for keyword in _NAMES:
                    if isinstance(anchor := schema.get(keyword), str):
                        self._anchors.setdefault(anchor.removeprefix("#"), []).append(schema)
                pending.extend(subschemas(schema))
        return self._anchors.get(name, [])


def _pointed(base: _Schema, pointer: str) -> Iterator[tuple[_Schema, _Schema]]:
    target: Any = base
    resource = base
    try:
        for target in _steps(base, pointer):
            resource = _resource(target, resource)
    except LookupError:
        return
    if isinstance(target, Mapping):
        yield target, resource


def _resource(node: Any, around: _Schema) -> _Schema:
    """The schema that fragments inside ``node`` are relative to."""
    return (
        node if isinstance(node, Mapping) and any(isinstance(node.get(key), str) for key in ("$id", "id")) else around
    )
