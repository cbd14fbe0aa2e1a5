"""Parts that answer a tool call, and the clean-up of validation errors in them."""

from typing import Any, Final, Literal

from pydantic import ValidationError
from pydantic_ai.exceptions import ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import (
    MULTI_MODAL_CONTENT_TYPES,
    RetryInfo,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserContent,
)

from dify_agent.protocol.json_values import MAX_VALUE_DEPTH, NotJsonDataError, json_data, readable_text

NO_JSON: Final = "<value without a JSON form>"
"""Stands for an argument that is nested too deeply, say."""

RetryCause = Literal["validation_error", "model_retry", "unknown_tool"]
UserExtra = str | list[UserContent] | None
"""What a tool adds for the model beside its result; stored as a user part behind all results."""


class UnknownToolError(ModelRetry):
    """A call of a name that is not offered."""


def status(call: ToolCallPart, text: str) -> ToolReturnPart:
    """A result that the loop itself gives."""
    return ToolReturnPart(tool_name=call.tool_name, content=text, tool_call_id=call.tool_call_id)


def failed(call: ToolCallPart, error: ToolFailed) -> ToolReturnPart:
    """The result of a tool that failed for good."""
    return ToolReturnPart(
        tool_name=call.tool_name, content=error.message, tool_call_id=call.tool_call_id, outcome="failed"
    )


def retried(
    call: ToolCallPart,
    error: ValidationError | ModelRetry,
    *,
    attempt: int | None = None,
    max_retries: int | None = None,
) -> ToolReturnPart:
    """The result that asks the model to call again."""
    cause: RetryCause = "model_retry"
    if isinstance(error, ValidationError):
        cause = "validation_error"
    elif isinstance(error, UnknownToolError):
        cause = "unknown_tool"
    return ToolReturnPart(
        tool_name=call.tool_name,
        content=error_details(error) if isinstance(error, ValidationError) else error.message,
        tool_call_id=call.tool_call_id,
        outcome="retried",
        retry=RetryInfo(cause=cause, attempt=attempt, max_retries=max_retries),
    )


def returned(call: ToolCallPart, value: Any) -> tuple[ToolReturnPart, UserExtra]:
    """The result of a tool that returned ``value``. What JSON cannot hold is replaced here, once: the model, the events
    and the history get the same.

    Raises:
        UserError: ``value`` is a list that holds ``ToolReturn`` objects, only the whole result may be one; or it has no
            JSON form.
    """
    if not isinstance(value, ToolReturn):
        if isinstance(value, list) and any(isinstance(item, ToolReturn) for item in value):
            raise UserError(
                f"The return value of tool {call.tool_name!r} contains invalid nested `ToolReturn` objects. "
                "`ToolReturn` should be used directly."
            )
        value = ToolReturn(return_value=value)
    part = ToolReturnPart(
        tool_name=call.tool_name,
        content=_storable(call, value.return_value),
        tool_call_id=call.tool_call_id,
        metadata=_storable(call, value.metadata),
    )
    extra = value.content or None
    if isinstance(extra, str):
        return part, readable_text(extra)
    return part, extra and [readable_text(item) if isinstance(item, str) else item for item in extra]


def _storable(call: ToolCallPart, value: Any) -> Any:
    try:
        return json_data(value, MAX_VALUE_DEPTH, opaque=MULTI_MODAL_CONTENT_TYPES)
    except NotJsonDataError as error:
        raise UserError(f"The result of tool {call.tool_name!r} cannot be kept as JSON: {error}.") from error


def error_details(error: ValidationError) -> list[dict[str, Any]]:
    """The errors as JSON data, with the value that failed as a whole only once.

    Errors at the root, or one level below, repeat the same input; for a large one that fills the model's context.
    What JSON cannot hold is replaced as in a tool's result, a value without any JSON form by `NO_JSON`.
    """
    details = error.errors(include_url=False, include_context=False)
    cleaned: list[dict[str, Any]] = []
    first_input: Any = None
    first_seen = False
    for detail in details:
        entry: dict[str, Any] = {**detail, "loc": list(detail["loc"])}
        if len(detail["loc"]) <= 1:
            if first_seen and detail["input"] == first_input:
                del entry["input"]
            elif not first_seen:
                first_input, first_seen = detail["input"], True
        cleaned.append(_storable_detail(entry))
    return cleaned


def _storable_detail(entry: dict[str, Any]) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json_data(entry, MAX_VALUE_DEPTH)
    except NotJsonDataError:
        data = json_data(entry | {"input": NO_JSON}, MAX_VALUE_DEPTH)
    return data
