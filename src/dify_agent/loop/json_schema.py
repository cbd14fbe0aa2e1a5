"""Checks of tool arguments against a JSON Schema, reported as Pydantic's own errors."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, to_json

from dify_agent.protocol.extent import Extent, NotJsonError
from dify_agent.protocol.json_schema import SchemaCheck, TooCostlyError, checked_extent, compile_schema

MAX_ERRORS = 20
"""Errors reported for one call: enough to correct it, and a bound for what goes into the model's context."""
LISTING_COST = 10_000_000
"""Bytes of the schema times characters and values of the arguments, up to which all errors are listed: the library
finds all of them before it gives the first, each with a message that may quote its value."""
TOO_LARGE = "<too large>"
"""Stands for arguments that are not repeated to the model."""


class JsonSchemaCheck:
    """A JSON Schema, ready to check arguments with.

    A schema that cannot be compiled checks nothing: its author cannot answer for it in the middle of a run.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema: SchemaCheck | None = None
        try:
            self._schema = compile_schema(schema)
            self._schema_bytes = len(to_json(schema))
        except (ValueError, RecursionError):
            return

    def check(self, values: Mapping[str, Any], *, title: str) -> None:
        """Check ``values``, the arguments of the tool ``title``.

        Raises:
            ValidationError: they do not fit, with one entry of type ``json_schema`` for each error; or they have no
                JSON form, or would take too long to check, which is one entry.
        """
        try:
            extent = checked_extent(values, finite=False)  # a tool may take NaN
            if self._schema is None or self._schema.is_valid(values, extent):
                return
        except NotJsonError as error:
            # Names the value instead of holding it: an error with such a value in it cannot be told to a model.
            raise _failure(title, [_refusal(f"not JSON: {error}", f"<value at {error.path}>")]) from None
        except TooCostlyError as error:
            raise _failure(title, [_refusal(f"the arguments cannot be checked: {error}", TOO_LARGE)]) from None
        found = self._errors(self._schema, values, extent)
        found.sort(key=lambda error: [str(step) for step in error.instance_path])
        details = [_detail(error) for error in found[:MAX_ERRORS]]
        raise _failure(title, details or [_refusal("too large to say where it does not fit", TOO_LARGE)])

    def _errors(self, schema: SchemaCheck, values: Mapping[str, Any], extent: Extent) -> list[Any]:
        size = self._schema_bytes * (extent.characters + extent.values)
        if schema.cyclic or size > LISTING_COST:
            first = schema.first_error(values, extent)
            return [] if first is None else [first]
        return list(schema.errors(values))


def _failure(title: str, details: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data(title, details, input_type="json")


def _detail(error: Any) -> InitErrorDetails:
    return InitErrorDetails(type=_text(error.message), loc=tuple(error.instance_path), input=error.instance)


def _refusal(text: str, shown: str) -> InitErrorDetails:
    return InitErrorDetails(type=_text(text), loc=(), input=shown)


def _text(text: str) -> PydanticCustomError:
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    return PydanticCustomError("json_schema", "{text}", {"text": text})
