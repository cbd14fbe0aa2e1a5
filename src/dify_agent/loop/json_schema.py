"""Checks of tool arguments against a JSON Schema, reported as Pydantic's own errors."""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from dify_agent.protocol.json_schema import compile_schema

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_ERRORS = 20
"""Errors reported for one call: enough to correct it, and a bound for what goes into the model's context."""


class JsonSchemaCheck:
    """A JSON Schema, ready to check arguments with.

    A schema that cannot be compiled checks nothing: its author cannot answer for it in the middle of a run.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator: Validator | None = None
        try:
            self._validator = compile_schema(schema)
        except (ValueError, RecursionError):
            return

    def check(self, values: Mapping[str, Any], *, title: str) -> None:
        """Check ``values``, the arguments of the tool ``title``.

        Raises:
            ValidationError: they do not fit; one entry of type ``json_schema`` for each error.
        """
        if self._validator is None:
            return
        found = list(islice(self._validator.iter_errors(values), MAX_ERRORS))
        if found:
            found.sort(key=lambda error: [str(step) for step in error.instance_path])
            raise ValidationError.from_exception_data(title, [_detail(error) for error in found], input_type="json")


def _detail(error: Any) -> InitErrorDetails:
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    kind = PydanticCustomError("json_schema", "{text}", {"text": error.message})
    return InitErrorDetails(type=kind, loc=tuple(error.instance_path), input=error.instance)
