"""The check of an output against its schema, as a Pydantic type. Texts: layers 2.6."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dify_agent.layers.output.json_values import NotJsonError, format_path, measure
from dify_agent.loop.port import OUTPUT_TOOL_NAME
from dify_agent.protocol.json_schema import compile_schema
from dify_agent.protocol.json_values import MAX_VALUE_DEPTH

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError as SchemaError

ERROR_TYPE: Final = "json_schema_validation"
MESSAGE_CHARACTERS: Final = 2000
"""Of one message: some quote the value, which goes into the model's context anyway."""
LISTING_COST: Final = 100_000_000
"""Bound of listing errors, in characters of their messages: a third of a second. The library lists all before it gives
one, each with a message that may quote its value, so the bound has to be estimated before."""
ERROR_COST: Final = 2000
"""What an error costs beside its message, in the same unit (measured: 7 µs, against 3 ns a character)."""


def output_validator(schema: Mapping[str, Any], exposed: Mapping[str, Any]) -> TypeAdapter[dict[str, Any]]:
    """A validator of outputs: JSON objects that fit ``schema``. ``exposed`` is the same without references.

    Raises:
        ValueError: ``schema`` is no JSON Schema, or ``exposed`` is no JSON.
    """
    check = _OutputCheck(schema, exposed)
    return TypeAdapter(Annotated[dict[str, Any], WrapValidator(check.validate)])


class _OutputCheck:
    def __init__(self, schema: Mapping[str, Any], exposed: Mapping[str, Any]) -> None:
        self._validator: Final = compile_schema(schema)
        try:
            self._extent: Final = measure(exposed)
        except NotJsonError as error:
            raise ValueError(f"The output schema is not JSON: {error}") from None

    def validate(self, value: Any, to_object: ValidatorFunctionWrapHandler) -> dict[str, Any]:
        """The output, if it is one."""
        if not isinstance(value, dict):
            result: dict[str, Any] = to_object(value)  # refuses it in Pydantic's words
            return result
        try:
            cost = self._listing_cost(value)
        except NotJsonError as error:
            raise _not_json(error) from None
        # Pydantic copies only the outermost object; its keys are strings by now.
        if not self._validator.is_valid(value):
            raise _mismatch(self._first_error(value, cost))
        return value

    def _listing_cost(self, value: dict[str, Any]) -> int:
        """At worst each part of the schema refuses each value, and quotes itself or the value."""
        extent = measure(value, MAX_VALUE_DEPTH)
        quoted = self._extent.values * extent.characters + extent.values * self._extent.characters
        return quoted + ERROR_COST * self._extent.values * extent.values

    def _first_error(self, value: dict[str, Any], cost: int) -> "SchemaError":
        """The first error by path; where listing all may cost too much, the first in the order of the schema."""
        import jsonschema_rs

        if cost > LISTING_COST:
            try:
                self._validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                return error
        return min(self._validator.iter_errors(value), key=_position)


def _position(error: "SchemaError") -> list[tuple[bool, int | str]]:
    """Sorts by path, indices as numbers and before names."""
    return [(isinstance(step, str), step) for step in error.instance_path]


def _mismatch(error: "SchemaError") -> PydanticCustomError:
    message = error.message
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}…"
    text = f"{format_path(list(error.instance_path))}: {message}"
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    return PydanticCustomError(ERROR_TYPE, "Output does not match JSON Schema: {text}", {"text": text})


def _not_json(error: NotJsonError) -> ValidationError:
    """Names the value instead of holding it: an error with such a value in it cannot be told to a model."""
    kind = PydanticCustomError(ERROR_TYPE, "Output is not JSON: {text}", {"text": str(error)})
    details = InitErrorDetails(type=kind, loc=(), input=f"<value at {error.path}>")
    return ValidationError.from_exception_data(OUTPUT_TOOL_NAME, [details], input_type="json")
