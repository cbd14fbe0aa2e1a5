"""Checks of tool arguments against a JSON Schema, reported as Pydantic's own errors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, to_json

from dify_agent.protocol.json_schema import compile_schema

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_ERRORS = 20
"""Errors reported for one call: enough to correct it, and a bound for what goes into the model's context."""
LISTING_BYTES = 10_000_000
"""Schema times arguments, in bytes of their text, up to which all errors are listed: the library finds all of them
before it gives the first, each with a message that may quote its value."""
_REFERENCES = (b'"$ref"', b'"$dynamicRef"', b'"$recursiveRef"')
"""A schema that refers to itself can find two errors where it found one a level higher: seventeen levels of arguments
took three seconds (measured). One error is found in a moment."""


class JsonSchemaCheck:
    """A JSON Schema, ready to check arguments with.

    A schema that cannot be compiled checks nothing: its author cannot answer for it in the middle of a run.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator: Validator | None = None
        text = to_json(schema, fallback=repr)
        self._schema_bytes = len(text)
        self._refers = any(keyword in text for keyword in _REFERENCES)
        try:
            self._validator = compile_schema(schema)
        except (ValueError, RecursionError):
            return

    def check(self, values: Mapping[str, Any], *, title: str) -> None:
        """Check ``values``, the arguments of the tool ``title``.

        Raises:
            ValidationError: they do not fit; one entry of type ``json_schema`` for each error.
        """
        if self._validator is None or self._validator.is_valid(values):
            return
        found = self._errors(values, self._validator)
        found.sort(key=lambda error: [str(step) for step in error.instance_path])
        details = [_detail(error) for error in found[:MAX_ERRORS]]
        raise ValidationError.from_exception_data(title, details, input_type="json")

    def _errors(self, values: Mapping[str, Any], validator: "Validator") -> list[Any]:
        import jsonschema_rs

        if self._refers or self._schema_bytes * len(repr(values)) > LISTING_BYTES:
            try:
                validator.validate(values)
            except jsonschema_rs.ValidationError as error:
                return [error]
        return list(validator.iter_errors(values))


def _detail(error: Any) -> InitErrorDetails:
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    kind = PydanticCustomError("json_schema", "{text}", {"text": error.message})
    return InitErrorDetails(type=kind, loc=tuple(error.instance_path), input=error.instance)
