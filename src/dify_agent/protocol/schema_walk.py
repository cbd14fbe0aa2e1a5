"""The way through a JSON Schema: which of its parts are schemas, and what its references mean."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is data, not a schema."""
NAMED_KEYWORDS: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value has names for keys, which mean nothing themselves, and schemas for values."""
REFERENCE_KEYWORDS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES: Final = ("$anchor", "$dynamicAnchor", "$id", "id")
"""Keywords that give a fragment a name; in older drafts ``#name`` is an id."""

Schema = Mapping[str, Any]


def subschemas(schema: Schema) -> Iterator[Schema]:
    """The schemas one level below, in order: what stands in schema positions, also under unknown keywords."""
    for keyword, value in schema.items():
        if keyword in DATA_KEYWORDS:
            continue
        if keyword in NAMED_KEYWORDS and isinstance(value, Mapping):
            for named in value.values():
                yield from schemas_in(named)
        else:
            yield from schemas_in(value)


def refuse_inner_documents(document: Schema) -> None:
    """References inside a part with an id of its own mean something else to the validator than to those who measure
    the schema: one such schema hung a process for good.

    Raises:
        ValueError: a part of ``document`` has an id. Its own is harmless.
    """
    keywords = ["$id"]
    if isinstance(draft := document.get("$schema"), str) and ("draft-03" in draft or "draft-04" in draft):
        keywords.append("id")
    pending = list(subschemas(document))
    while pending:
        schema = pending.pop()
        for keyword in keywords:
            if isinstance(schema.get(keyword), str):
                raise ValueError(f"'{keyword}' inside the schema is not supported; refer to '#/$defs/...' instead")
        pending.extend(subschemas(schema))


def definitions(schema: Schema) -> Iterator[Schema]:
    """Those of `subschemas` that apply only where something refers to them."""
    for keyword in ("$defs", "definitions"):
        if isinstance(named := schema.get(keyword), Mapping):
            yield from (value for value in named.values() if isinstance(value, Mapping))


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


def schemas_in(value: Any) -> Iterator[Schema]:
    """The schemas that are the value of one keyword."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from schemas_in(item)


def refuse_to_fetch(_uri: str) -> Any:
    """Raise `ValueError`: nothing outside the schema is looked at."""
    raise ValueError("only references within the schema are supported")


class References:
    """What the references of one schema document mean.

    Errs on the high side: a reference may be meant for the document or for the part of it with an ``$id`` of its own,
    and several anchors may have its name. All are given.
    """

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._anchors: dict[str, list[Schema]] | None = None

    def targets(self, schema: Schema, resource: Schema) -> Iterator[tuple[Schema, Schema]]:
        """What the references of ``schema`` itself may mean, each with its resource.

        Raises:
            ValueError: one leads out of the document.
        """
        for keyword in REFERENCE_KEYWORDS:
            if not isinstance(reference := schema.get(keyword), str):
                continue
            document, _, fragment = reference.partition("#")
            if document:
                refuse_to_fetch(document)
            if fragment and not fragment.startswith("/"):
                yield from ((target, target) for target in self._anchored(unquote(fragment)))
                continue
            bases = [self._document] if resource is self._document else [self._document, resource]
            for base in bases:
                yield from _pointed(base, fragment)

    def _anchored(self, name: str) -> list[Schema]:
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


def _pointed(base: Schema, pointer: str) -> Iterator[tuple[Schema, Schema]]:
    target: Any = base
    resource = base
    try:
        for target in _steps(base, pointer):
            resource = resource_of(target, resource)
    except LookupError:
        return
    if isinstance(target, Mapping):
        yield target, resource


def resource_of(node: Any, around: Schema) -> Schema:
    """The schema that fragments inside ``node`` are relative to."""
    return (
        node if isinstance(node, Mapping) and any(isinstance(node.get(key), str) for key in ("$id", "id")) else around
    )
