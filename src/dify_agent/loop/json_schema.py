"""Checks of tool arguments against a JSON Schema, reported as Pydantic's own errors."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_ERRORS = 20
"""Errors reported for one call: enough to correct it, and a bound for what goes into the model's context."""


class JsonSchemaCheck:
    """A JSON Schema, ready to check arguments with.

    A schema that is itself broken, or refers to another document, checks nothing: its author cannot answer for it in
    the middle of a run, and fetching a document named by a request would let a caller reach inner hosts.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        kind: Any = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError:
            self._validator = None
        else:
            self._validator = kind(schema, registry=Registry())

    def check(self, values: Mapping[str, Any], *, title: str) -> None:
        """Check ``values``, the arguments of the tool ``title``.

        Raises:
            ValidationError: they do not fit; one entry of type ``json_schema`` for each error.
        """
        from referencing.exceptions import Unresolvable

        if self._validator is None:
            return
        try:
            found = list(islice(self._validator.iter_errors(values), MAX_ERRORS))
        except Unresolvable:
            return
        if found:
            found.sort(key=lambda error: [str(step) for step in error.absolute_path])
            raise ValidationError.from_exception_data(title, [_detail(error) for error in found], input_type="json")


def _detail(error: Any) -> InitErrorDetails:
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    kind = PydanticCustomError("json_schema", "{text}", {"text": error.message})
    return InitErrorDetails(type=kind, loc=tuple(error.absolute_path), input=error.instance)
