"""What the fake Dify API refuses a request with, and how the body of a request is read."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dify_agent.testing.answers import Answer, json_answer
from dify_agent.testing.script import HttpError

ModelT = TypeVar("ModelT", bound=BaseModel)


class Refused(Exception):
    """Ends a request with an error of the service. The fakes themselves have not failed."""

    def __init__(self, answer: Answer, problem: str) -> None:
        super().__init__(problem)
        self.answer = answer


def refusal(status: int, code: str, message: str) -> Refused:
    """An error in the Dify API's form."""
    return Refused(json_answer(_error(status, code, message), status), message)


def invalid_request(message: str) -> Refused:
    """What every endpoint says of a request that does not fit."""
    return refusal(400, "invalid_request", message)


def parsed(model: type[ModelT], body: bytes) -> ModelT:
    """The body as ``model``.

    Raises:
        Refused: it does not fit.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as invalid:
        raise invalid_request(problems(invalid)) from None


def problems(invalid: ValidationError) -> str:
    """Where a value does not fit and why, without the value: it may be a secret."""
    items = invalid.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'body'}: {_problem(item)}" for item in items)


def _problem(item: ErrorDetails) -> str:
    if item["type"] == "union_tag_invalid":  # the one text of Pydantic's that repeats what it was given
        return "{discriminator} should be one of {expected_tags}".format(**item["ctx"])
    return item["msg"]


def envelope(error: HttpError) -> dict[str, Any]:
    """The body of a scripted error status."""
    return _error(error.status, error.code, error.message)


def _error(status: int, code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "status": status}
