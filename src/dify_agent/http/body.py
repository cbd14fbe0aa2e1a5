"""From the bytes of a request body to a validated model, or to the contract's error items (protocol 1.8, 'Bad input').

Two steps, because credentials are judged between them: a text that is not JSON is refused before, a violated schema
after (quirk Q6).
"""

import json
import re
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from dify_agent.http.errors import HttpError

ModelT = TypeVar("ModelT", bound=BaseModel)

_JSON_TYPE: Final = re.compile(r"\s*application/(?:[^;\s]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_BOM: Final = b"\xef\xbb\xbf"
_POSITION: Final = re.compile(r" at line (\d+) column (\d+)$")
_MAYBE_HUGE: Final = re.compile(rb"[0-9][eE]\+?0*[1-9][0-9]{2}|[0-9]{200}")
"""What a number beyond the range of a double has: an exponent of three digits, or very many digits. Only a text with
one is walked for infinities, because the walk costs as much as the parse."""

MAX_NESTING: Final = 200

_MISSING: Final = {"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}


class NotJson:
    """A body sent with another content type, or none: its text, which no model accepts."""

    def __init__(self, text: str) -> None:
        self.text = text


def parse_body(raw: bytes, content_type: str | None) -> Any:
    """The JSON value of ``raw``; None for no body; `NotJson` when the content type is not JSON's.

    The parser refuses NaN and infinities, lone surrogates, integers of more than 4,300 digits, invalid UTF-8, and
    nesting above 200; two things that slip through it (an empty innermost container, a number beyond a double) are
    looked for where the text makes them possible.

    Raises:
        HttpError: 422 with one ``json_invalid`` item, which never repeats the body.
    """
    if not raw:
        return None
    if content_type is None or not _JSON_TYPE.match(content_type):
        return NotJson(_decode(raw))
    text = raw.removeprefix(_BOM)
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _json_invalid(*_diagnosis(text, str(error))) from None
    if text.count(b"[") + text.count(b"{") > MAX_NESTING and _is_deeper(value, MAX_NESTING):
        raise _json_invalid(len(text), "recursion limit exceeded")
    huge = _MAYBE_HUGE.search(text)
    if huge is not None and _has_infinity(value):
        raise _json_invalid(huge.start(), "number out of range")
    return value


def validate_body(model: type[ModelT], value: Any) -> ModelT:
    """``value`` as ``model``.

    Raises:
        HttpError: 422 with all violations.
    """
    if value is None:
        raise HttpError(422, [_MISSING])
    try:
        # from_attributes gives the contract's `model_attributes_type` for what is no object; it accepts nothing more,
        # since a JSON value has no attributes.
        return model.model_validate(value.text if isinstance(value, NotJson) else value, from_attributes=True)
    except ValidationError as error:
        raise HttpError(422, error_items(error, "body")) from None


def error_items(error: ValidationError, *prefix: str) -> list[Any]:
    """The items of ``error`` as the contract has them: ``loc`` behind ``prefix``, no ``url``."""
    items = error.errors(include_url=False)
    return [{**item, "loc": [*prefix, *item["loc"]]} for item in items]


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
    too; what only the stricter one refuses is explained by that one, whose offsets count bytes.
    """
    try:
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
    start = 0
    for _ in range(line - 1):
        start = text.index(b"\n", start) + 1
    return start + max(column - 1, 0), message[: match.start()]


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested deeper than ``levels``."""
    layer = [value]
    for _ in range(levels):
        layer = [child for item in layer if item for child in (item.values() if type(item) is dict else item)]
        layer = [child for child in layer if type(child) is dict or type(child) is list]
        if not layer:
            return False
    return True


def _has_infinity(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if item in (float("inf"), float("-inf")):
                return True
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
