"""JSON Schemas that callers send: compiled so that no schema and no value can stop the process.

The validator is ``jsonschema_rs``. The Python library was replaced because a schema's ``pattern`` runs in ``re``,
which backtracks without a bound and holds the interpreter lock meanwhile: one argument of 60 characters hung a
process for good (measured). Here patterns run in linear time, those with look-around within `BACKTRACK_LIMIT` steps.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jsonschema_rs import Validator

BACKTRACK_LIMIT: Final = 10_000
REGEX_BYTES: Final = 1 << 20
"""Size of one compiled pattern."""
EXPANSION_LIMIT: Final = 100_000
"""Subschemas after all references are put in. References to references double with each step: thirty of them make a
thousand million checks of one value."""

_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is data, not a schema."""


def compile_schema(schema: Mapping[str, Any]) -> "Validator":
    """A validator for ``schema``, draft by its ``$schema``, else the newest.

    Raises:
        ValueError: it is no valid JSON Schema, too large once expanded, or refers to another document. Nothing is
            fetched: a document named by a request would let a caller reach inner hosts and files.
    """
    import jsonschema_rs

    if _expanded_size(schema) > EXPANSION_LIMIT:
        raise ValueError(f"the schema has more than {EXPANSION_LIMIT} subschemas once its references are put in")
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_BYTES)
    try:
        return jsonschema_rs.validator_for(dict(schema), pattern_options=patterns, retriever=_refuse_to_fetch)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(error.message) from None


def _refuse_to_fetch(_uri: str) -> Any:
    raise ValueError("only references within the schema are supported")


def _expanded_size(schema: Mapping[str, Any]) -> int:
    """How many containers the schema has with every local reference put in; a reference to what it stands in counts
    1."""
    sizes: dict[str, int] = {}

    def size(node: Any) -> int:
        if isinstance(node, list):
            return sum(map(size, node))
        if not isinstance(node, Mapping):
            return 0
        own = 1 + sum(size(value) for key, value in node.items() if key not in _DATA)
        reference = node.get("$ref")
        return own + target_size(reference) if isinstance(reference, str) else own

    def target_size(reference: str) -> int:
        if reference not in sizes:
            sizes[reference] = 1  # met again while it is measured: a cycle, which the instance bounds
            sizes[reference] = size(_target(schema, reference))
        return sizes[reference]

    return size(schema)


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    """What a local reference points to; None for others."""
    if not reference.startswith("#/"):
        return None
    node: Any = schema
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
