"""From the bytes of a request body to a validated model, or to the contract's error items (protocol 1.8, 'Bad input').

Two steps, because credentials are judged between them: a text that is not JSON is refused before, a violated schema
after (quirk Q6).
"""

import gc
import json
import re
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from dify_agent.http.errors import HttpError
from dify_agent.http.json_bounds import MAX_SEPARATORS, infinity_offset, is_deeper, line_start
from dify_agent.http.members import MAX_MEMBERS, MEMBER_BYTES, has_more_members
from dify_agent.protocol.separators import has_more_separators

ModelT = TypeVar("ModelT", bound=BaseModel)

_JSON_TYPE: Final = re.compile(r"\s*application/(?:[^;\s]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_BOM: Final = b"\xef\xbb\xbf"
_POSITION: Final = re.compile(r" at line (\d+) column (\d+)$")

MAX_NESTING: Final = 200

SMALL_BODY_BYTES: Final = 64 * 1024
"""Up to here a body is judged at once, which takes 15 ms at worst, and 60 with thousands of violations, and is refused
with all that the contract says. A larger one belongs into a worker thread, and its refusal does not repeat it."""

MAX_ITEMS: Final = 100
"""Violations that an answer names."""
MAX_ECHOED: Final = 1000
"""Characters of a text that are repeated in the refusal of a large body."""

_MISSING: Final = {"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}
_TOO_WIDE: Final = {
    "type": "too_long",
    "loc": ["body"],
    "msg": f"Body should have at most {MAX_MEMBERS} members outside of free-form JSON",
    "input": None,
    "ctx": {"max_length": MAX_MEMBERS},
}


class NotJson:
    """A body sent with another content type, or none: its text, which no model accepts."""

    def __init__(self, text: str) -> None:
        self.text = text


def parse_body(raw: bytes, content_type: str | None) -> Any:
    """The JSON value of ``raw``; None for no body; `NotJson` when the content type is not JSON's.

    The parser refuses NaN and infinities, lone surrogates, integers of more than 4,300 digits, invalid UTF-8, and
    nesting above 200; two things that slip through it (an empty innermost container, a number beyond a double) are
    looked for where the text makes them possible. Refused before parsing: more separators than `MAX_SEPARATORS`.

    Raises:
        HttpError: 422 with one ``json_invalid`` item, which never repeats the body.
    """
    if not raw:
        return None
    if content_type is None or not _JSON_TYPE.match(content_type):
        return NotJson(_decode(raw))
    text = raw.removeprefix(_BOM)
    if has_more_separators(text, MAX_SEPARATORS):
        raise _json_invalid(len(text), "too many values")
    try:
        value = _parse(text)
    except ValueError as error:
        raise _json_invalid(*_diagnosis(text, str(error))) from None
    if is_deeper(text, value, MAX_NESTING):
        raise _json_invalid(len(text), "recursion limit exceeded")
    huge = infinity_offset(text, value)
    if huge is not None:
        raise _json_invalid(huge, "number out of range")
    return value


def _parse(text: bytes) -> Any:
    """The parser's value. The garbage collector pauses meanwhile: a value has no cycles, and walking it again and again
    while it grows takes several times as long as the parser itself (measured)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return from_json(text, allow_inf_nan=False)
    finally:
        if collecting:
            gc.enable()


def validate_body(model: type[ModelT], value: Any, size: int) -> ModelT:
    """``value``, from a body of ``size`` bytes, as ``model``.

    Raises:
        HttpError: 422 with the violations, at most `MAX_ITEMS`.
    """
    if value is None:
        raise HttpError(422, [_MISSING])
    if size > MEMBER_BYTES * MAX_MEMBERS and has_more_members(model, value, MAX_MEMBERS):
        raise HttpError(422, [_TOO_WIDE])
    try:
        # from_attributes gives the contract's `model_attributes_type` for what is no object; it accepts nothing more,
        # since a JSON value has no attributes.
        return model.model_validate(value.text if isinstance(value, NotJson) else value, from_attributes=True)
    except ValidationError as error:
        items = error_items(error, "body")
    raise HttpError(422, items if size <= SMALL_BODY_BYTES else [_shortened(item) for item in items])


def read_model(model: type[ModelT], raw: bytes, content_type: str | None) -> ModelT:
    """Both steps in one, for a body whose sender is known.

    Raises:
        HttpError: 422.
    """
    return validate_body(model, parse_body(raw, content_type), len(raw))


def error_items(error: ValidationError, *prefix: str) -> list[Any]:
    """The first items of ``error`` as the contract has them: ``loc`` behind ``prefix``, no ``url``."""
    items = error.errors(include_url=False)[:MAX_ITEMS]
    return [{**item, "loc": [*prefix, *item["loc"]]} for item in items]


def _shortened(item: dict[str, Any]) -> dict[str, Any]:
    """An item without the parts of a large body: a few violations could repeat all of it a hundred times."""
    repeated = item["input"]
    if isinstance(repeated, (dict, list)) or (isinstance(repeated, str) and len(repeated) > MAX_ECHOED):
        repeated = None
    loc = [part[:MAX_ECHOED] if isinstance(part, str) else part for part in item["loc"]]
    return {**item, "loc": loc, "input": repeated}


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _json_invalid(error.start, error.reason) from None


def _json_invalid(offset: int, reason: str) -> HttpError:
    place = {"type": "json_invalid", "loc": ["body", offset], "msg": "JSON decode error"}
    return HttpError(422, [{**place, "input": {}, "ctx": {"error": reason}}])


def _diagnosis(text: bytes, message: str) -> tuple[int, str]:
    """Offset and reason of a refused text.

    Callers know the standard library's wording and its offsets in characters, so that parser explains what it refuses
    too; what only the stricter one refuses is explained by that one, whose offsets count bytes. So is a large text,
    for which the other parser would take seconds.
    """
    try:
        if len(text) <= SMALL_BODY_BYTES:
            json.loads(text.decode())
    except json.JSONDecodeError as error:
        return error.pos, error.msg
    except UnicodeDecodeError as error:
        return error.start, error.reason
    except (ValueError, RecursionError):
        pass
    match = _POSITION.search(message)
    if match is None:
        return 0, message
    line, column = int(match[1]), int(match[2])
    return line_start(text, line) + max(column - 1, 0), message[: match.start()]
