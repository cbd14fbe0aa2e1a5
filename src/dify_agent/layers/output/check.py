"""The check of an output against its schema, as a Pydantic type. Texts: layers 2.6."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dify_agent.loop.port import OUTPUT_TOOL_NAME
from dify_agent.protocol.extent import Extent, NotJsonError, TooManyValuesError, format_path, measure
from dify_agent.protocol.json_schema import TooCostlyError, checked_extent, compile_schema

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
        self._schema: Final = compile_schema(schema)
        try:
            self._extent: Final = measure(exposed)
        except NotJsonError as error:
            raise ValueError(f"The output schema is not JSON: {error}") from None
        except TooManyValuesError as error:
            raise ValueError(f"The output schema is too large: {error}") from None

    def validate(self, value: Any, to_object: ValidatorFunctionWrapHandler) -> dict[str, Any]:
        """The output, if it is one."""
        if not isinstance(value, dict):
            result: dict[str, Any] = to_object(value)  # refuses it in Pydantic's words
            return result
        try:
            extent = checked_extent(value)
            # Pydantic copies only the outermost object; its keys are strings by now.
            valid = self._schema.is_valid(value, extent)
        except NotJsonError as error:
            raise _not_json(error) from None
        except TooCostlyError as error:
            raise _refusal(f"Output cannot be checked: {error}") from None
        if not valid:
            raise _mismatch(self._first_error(value, extent))
        return value

    def _listing_cost(self, extent: Extent) -> int:
        """At worst each part of the schema refuses each value, and quotes itself or the value."""
        quoted = self._extent.values * extent.characters + extent.values * self._extent.characters
        return quoted + ERROR_COST * self._extent.values * extent.values

    def _first_error(self, value: dict[str, Any], extent: Extent) -> "SchemaError | None":
        """The first error by path; where listing all may cost too much, the first in the order of the schema, or none
        at all."""
        if self._listing_cost(extent) > LISTING_COST:
            return self._schema.first_error(value, extent)
        return min(self._schema.errors(value), key=_position)


def _position(error: "SchemaError") -> list[tuple[bool, int | str]]:
    """Sorts by path, indices as numbers and before names."""
    return [(isinstance(step, str), step) for step in error.instance_path]


def _mismatch(error: "SchemaError | None") -> PydanticCustomError:
    if error is None:
        return _refusal("Output does not match JSON Schema: $: too large to say where")
    message = error.message
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}…"
    return _refusal(f"Output does not match JSON Schema: {format_path(list(error.instance_path))}: {message}")


def _refusal(text: str) -> PydanticCustomError:
    # The text goes through the context, so that braces in it are not taken for a template's fields.
    return PydanticCustomError(ERROR_TYPE, "{text}", {"text": text})


def _not_json(error: NotJsonError) -> ValidationError:
    """Names the value instead of holding it: an error with such a value in it cannot be told to a model."""
    kind = PydanticCustomError(ERROR_TYPE, "Output is not JSON: {text}", {"text": str(error)})
    details = InitErrorDetails(type=kind, loc=(), input=f"<value at {error.path}>")
    return ValidationError.from_exception_data(OUTPUT_TOOL_NAME, [details], input_type="json")
