"""Query parameters and cursors of the event routes (protocol 1.6, 1.7, 4.4; decision R3).

All violations are reported together. An empty ``after`` or ``Last-Event-ID`` counts as absent on every transport.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from pydantic import Field, TypeAdapter, ValidationError

from dify_agent.http.body import error_items
from dify_agent.http.errors import HttpError
from dify_agent.protocol.event_id import START, EventId

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 500
MAX_WAIT_SECONDS: Final = 30.0
START_TEXT: Final = str(START)

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)]

_LIMIT: Final[TypeAdapter[int]] = TypeAdapter(Limit)
_WAIT: Final[TypeAdapter[float]] = TypeAdapter(Wait)


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What a poll asks for. ``after_text`` is the cursor as it was sent: an empty page repeats it (quirk Q13)."""

    after: EventId
    after_text: str
    limit: int
    wait_seconds: float


def parse_page_query(query_string: bytes) -> PageQuery:
    """The parameters of a polling page.

    Raises:
        HttpError: 422 with every violation.
    """
    query = _parameters(query_string)
    items: list[Any] = []
    after_text = query.get("after") or START_TEXT
    after = _cursor(after_text, ("query", "after"), items)
    limit = _number(_LIMIT, query, "limit", DEFAULT_LIMIT, items)
    wait_seconds = _number(_WAIT, query, "wait", 0.0, items)
    if items:
        raise HttpError(422, items)
    return PageQuery(after, after_text, limit, wait_seconds)


def parse_stream_cursor(query_string: bytes, last_event_id: str | None) -> EventId:
    """Where a stream starts: a non-empty ``after``, else a non-empty ``Last-Event-ID``, else the beginning (quirk Q14).

    Raises:
        HttpError: 422 for a cursor that is none; the one that is not used is not looked at.
    """
    items: list[Any] = []
    after = _parameters(query_string).get("after")
    if after:
        cursor = _cursor(after, ("query", "after"), items)
    else:
        cursor = _cursor(last_event_id or START_TEXT, ("header", "last-event-id"), items)
    if items:
        raise HttpError(422, items)
    return cursor


def _parameters(query_string: bytes) -> dict[str, str]:
    """The last value of each parameter, as the contract's original reads a repeated one."""
    if not query_string:
        return {}
    return dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))


def _cursor(text: str, loc: tuple[str, str], items: list[Any]) -> EventId:
    try:
        return EventId.parse(text)
    except ValueError as error:
        item = {"type": "value_error", "loc": loc, "msg": f"Value error, {error}", "input": text, "ctx": {"error": {}}}
        items.append(item)
        return START


def _number(adapter: TypeAdapter[Any], query: dict[str, str], name: str, default: Any, items: list[Any]) -> Any:
    if name not in query:
        return default
    try:
        return adapter.validate_python(query[name])
    except ValidationError as error:
        items.extend(error_items(error, "query", name))
        return default
