"""JSON Schemas that callers send: compiled so that no schema and no value can stop the process.

The validator is ``jsonschema_rs``. The Python library was replaced because a schema's ``pattern`` runs in ``re``,
which backtracks without a bound: one argument of 60 characters hung a process for good (measured). This one matches in
linear time, but it too holds the interpreter lock while it compiles and checks (measured), so a thread would not help:
both are bounded before they begin, a schema by its size and a check by an estimate of its cost.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dify_agent.errors import DifyAgentError
from dify_agent.protocol.extent import Extent, TooManyValuesError, measure
from dify_agent.protocol.json_values import MAX_VALUE_DEPTH
from dify_agent.protocol.schema_cost import COST_LIMIT, SchemaCost, schema_cost
from dify_agent.protocol.schema_patterns import pattern_costs, regex_options
from dify_agent.protocol.schema_size import check_size
from dify_agent.protocol.schema_walk import refuse_inner_documents, refuse_to_fetch

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

LONG_INTEGERS: Final = 200
"""Of more than 64 bits in one value: ``uniqueItems`` compares each of them to all others, 2,000 in 8 s (measured)."""
ERROR_LIMIT: Final = 20_000
"""Errors that may be listed to report one, at 7 µs each (measured)."""

TOO_COSTLY: Final = "it is too large to be checked against its schema; send less, or several smaller ones"
TOO_LONG: Final = f"it has more than {LONG_INTEGERS} integers of more than 64 bits"


class TooCostlyError(DifyAgentError):
    """A value that would take too long to check. The text says what to do, without a subject."""


def checked_extent(value: Any, *, finite: bool = True) -> Extent:
    """The extent of a value that is to be checked; ``finite`` as in `measure`.

    Raises:
        NotJsonError: it is no JSON, or nested too deeply.
        TooCostlyError: it has too many values.
    """
    try:
        return measure(value, MAX_VALUE_DEPTH, finite=finite)
    except TooManyValuesError as error:
        raise TooCostlyError(str(error)) from None


class SchemaCheck:
    """A compiled schema."""

    def __init__(self, validator: "Validator", cost: SchemaCost) -> None:
        self._validator: Final = validator
        self._cost: Final = cost

    @property
    def cyclic(self) -> bool:
        """Whether the schema contains itself: then the number of errors can double with each level of a value."""
        return self._cost.cyclic

    def is_valid(self, value: Any, extent: Extent) -> bool:
        """Whether ``value`` fits; ``extent`` is its own.

        Raises:
            TooCostlyError: it would take more than about 0.3 s to find out.
        """
        if extent.long_integers > LONG_INTEGERS:
            raise TooCostlyError(TOO_LONG)
        if self._cost.of_check(extent) > COST_LIMIT:
            raise TooCostlyError(TOO_COSTLY)
        return self._validator.is_valid(value)

    def errors(self, value: Any) -> Iterator["ValidationError"]:
        """All errors of a value that does not fit. The caller knows that listing them is bounded."""
        return self._validator.iter_errors(value)

    def first_error(self, value: Any, extent: Extent) -> "ValidationError | None":
        """The first error in the order of the schema; None where finding it would take too long."""
        import jsonschema_rs

        if self._cost.of_one_error(extent) > ERROR_LIMIT:
            return None
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error
        return None


def check_schema(schema: Mapping[str, Any]) -> None:
    """Hold ``schema`` against the meta-schema of its draft, whatever its references lead to.

    `compile_schema` does so too, but finds a reference to nothing first.

    Raises:
        ValueError: it is no valid JSON Schema, exceeds a limit of `schema_size`, or names an unknown draft.
    """
    import jsonschema_rs

    check_size(schema)
    try:
        # Without a registry the library fetches an unknown ``$schema`` (measured); with an empty one it knows the
        # drafts and nothing else.
        jsonschema_rs.meta.validate(dict(schema), registry=jsonschema_rs.Registry([]))
    except jsonschema_rs.ValidationError as error:
        raise ValueError(error.message) from None
    except jsonschema_rs.ReferencingError:
        compile_schema(schema)  # in its words


def compile_schema(schema: Mapping[str, Any]) -> SchemaCheck:
    """A check for ``schema``, draft by its ``$schema``, else the newest. ``format`` is an annotation in every draft.

    Takes no more than about 0.3 s, whatever the schema.

    Raises:
        ValueError: it is no valid JSON Schema, exceeds a limit of `schema_size`, `schema_patterns` or `schema_cost`,
            has a pattern with look-around or a backreference, a part with an ``$id``, or a reference that does not
            start with ``#``. Nothing is fetched: a document named by a request would let a caller reach inner hosts
            and files.
    """
    import jsonschema_rs

    check_size(schema)
    refuse_inner_documents(schema)
    cost = schema_cost(schema, pattern_costs(schema))
    try:
        validator = jsonschema_rs.validator_for(
            dict(schema), pattern_options=regex_options(), retriever=refuse_to_fetch, validate_formats=False
        )
    except jsonschema_rs.ValidationError as error:
        raise ValueError(error.message) from None
    return SchemaCheck(validator, cost)
