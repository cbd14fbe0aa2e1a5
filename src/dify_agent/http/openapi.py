"""The OpenAPI 3.1 document, generated from the protocol's models, and pages that show it without the internet.

Written by hand around Pydantic's JSON schemas, and not by quart-schema: its request validation answers HTML pages
with 400 and 500, accepts lone surrogates (measured), and knows neither the order of checks nor the error items of the
contract. Used for documentation alone it would still need every code, header and parameter below to be repeated at
the handlers. A test compares the routes named here with those of the app.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic.json_schema import models_json_schema
from pydantic_core import to_json
from quart.wrappers import Response
from quart_trio.wrappers import TrioResponse

from dify_agent.http.docs_page import OAUTH2_REDIRECT_PAGE, PAGE
from dify_agent.http.errors import json_response
from dify_agent.http.query import DEFAULT_LIMIT, MAX_LIMIT, MAX_WAIT_SECONDS, START_TEXT
from dify_agent.protocol.schemas import (
    CancelRunRequest,
    CancelRunResponse,
    CreateRunRequest,
    CreateRunResponse,
    RunEventsResponse,
    RunStatusResponse,
)

TITLE: Final = "Dify Agent Run Server"
VERSION: Final = "0.1.0"

_HTML: Final = "text/html; charset=utf-8"
_REF: Final = "#/components/schemas/{model}"

_STRING: Final = {"type": "string"}
_DETAIL: Final = {"type": "object", "properties": {"detail": _STRING}, "required": ["detail"]}
_ITEM: Final = {
    "type": "object",
    "properties": {
        "type": _STRING,
        "loc": {"type": "array", "items": {"anyOf": [_STRING, {"type": "integer"}]}},
        "msg": _STRING,
        "input": {},
        "ctx": {"type": "object"},
    },
    "required": ["type", "loc", "msg", "input"],
}
_ITEMS: Final = {"type": "array", "items": {"$ref": "#/components/schemas/ValidationError"}}
_INVALID: Final = {
    "type": "object",
    "properties": {"detail": {"anyOf": [_ITEMS, _STRING]}},
    "required": ["detail"],
}
_HEALTH: Final = {
    "type": "object",
    "properties": {"status": {"enum": ["ok", "ready", "draining", "store_unavailable"]}},
    "required": ["status"],
}

_ERRORS: Final = {
    400: "The request is not HTTP/1.1 as this server reads it",
    401: "Missing or wrong bearer token",
    404: "No such run, or it has expired",
    408: "The body did not arrive in time",
    409: "The run has already succeeded or failed",
    413: "The body exceeds the limit; the connection is closed",
    422: "The body or a parameter violates its schema",
    426: "The request is no WebSocket handshake of version 13",
    429: "The server has too many open connections; this one is closed",
    431: "The request's headers are too large",
    503: "The store does not answer, or the server shuts down",
}
_CREATE_ERRORS: Final = {
    409: "The idempotency key was used with a different request",
    429: "Too many active runs on this server or of this tenant, or too many open connections",
}
_ERROR_HEADERS: Final = {401: "WWW-Authenticate", 426: "Upgrade", 429: "Retry-After", 503: "Retry-After"}
_WEBSOCKET: Final = """\
The run's events over a WebSocket. OpenAPI has no words for what follows the handshake:

- One text frame per event, the JSON that the event stream has as `data`. Frames with `control` in place of `type` are
  no events: `{"control":"trimmed","count":n}`, `{"control":"cancel_accepted"}`, `{"control":"error","detail":...}`.
- The client may send `{"type":"cancel","reason":...,"message":...}`.
- Close codes: 1000 after the terminal event, or with reason `expired`; 1001 when the server shuts down; 1008 refused
  (browsers); 1002, 1003, 1007, 1009 for frames it does not take; 1011 for a fault of the server.
- A browser offers the subprotocols `dify-agent.v1` and `bearer.` followed by the token in base64url.
"""
_ANY: Final = (400, 429, 431)
_STORE: Final = (*_ANY, 401, 503)
_WITH_BODY: Final = (408, 413, 422)

_RUN_ID: Final = {"name": "run_id", "in": "path", "required": True, "schema": _STRING}
_AFTER: Final = {
    "name": "after",
    "in": "query",
    "description": "Exclusive cursor: the id of the last event seen. Empty counts as absent.",
    "schema": {"type": "string", "default": START_TEXT, "pattern": r"^$|^[0-9]{1,20}(-[0-9]{1,20})?$"},
}
_LIMIT: Final = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
}
_WAIT: Final = {
    "name": "wait",
    "in": "query",
    "description": "Seconds to wait for an event before an empty page is answered.",
    "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
}
_AUTHORIZATION: Final = {"name": "Authorization", "in": "header", "required": False, "schema": _STRING}
_LAST_EVENT_ID: Final = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": _STRING}
_TRIMMED: Final = {
    "X-Events-Trimmed": {
        "description": "Events between the cursor and this page that are no longer kept.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


class DocumentRoutes:
    """Handlers of ``/openapi.json`` and the pages. None needs the token."""

    async def openapi(self) -> Response:
        """The document."""
        return json_response(openapi_json())

    async def page(self) -> Response:
        """A page that draws the document with its own script; ``/docs`` and ``/redoc`` are the same."""
        return TrioResponse(PAGE, content_type=_HTML)

    async def oauth2_redirect(self) -> Response:
        """Part of the contract's route table; there is no OAuth flow to return from."""
        return TrioResponse(OAUTH2_REDIRECT_PAGE, content_type=_HTML)


@cache
def openapi_json() -> bytes:
    """The document's text, built at the first call: the events' schema alone takes a tenth of a second."""
    return to_json(openapi_document())


def openapi_document() -> dict[str, Any]:
    """The document. Every code that a route can answer is in it (decision R18)."""
    schemas = {"ValidationError": _ITEM, "HTTPValidationError": _INVALID, "Error": _DETAIL, "Health": _HEALTH}
    _, definitions = models_json_schema(
        [
            (CreateRunRequest, "validation"),
            (CancelRunRequest, "validation"),
            (CreateRunResponse, "serialization"),
            (CancelRunResponse, "serialization"),
            (RunStatusResponse, "serialization"),
            (RunEventsResponse, "serialization"),
        ],
        ref_template=_REF,
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": _paths(),
        "components": {"schemas": definitions.get("$defs", {}) | schemas},
    }


def _paths() -> dict[str, Any]:
    run = "/runs/{run_id}"
    ready = _operation("readyz_readyz_get", 200, "Health", (*_ANY, 503), tag="health", failure="Health")
    return {
        "/runs": {
            "post": _operation(
                "create_run_runs_post",
                202,
                "CreateRunResponse",
                (*_STORE, *_WITH_BODY, 409),
                body="CreateRunRequest",
                meanings=_CREATE_ERRORS,
            )
        },
        run: {
            "get": _operation(
                "get_run_status_runs__run_id__get", 200, "RunStatusResponse", (*_STORE, 404), parameters=[_RUN_ID]
            )
        },
        f"{run}/cancel": {
            "post": _operation(
                "cancel_run_runs__run_id__cancel_post",
                200,
                "CancelRunResponse",
                (*_STORE, *_WITH_BODY, 404, 409),
                parameters=[_RUN_ID],
                body="CancelRunRequest",
            )
        },
        f"{run}/events": {
            "get": _operation(
                "get_run_events_runs__run_id__events_get",
                200,
                "RunEventsResponse",
                (*_STORE, 404, 422),
                parameters=[_RUN_ID, _AFTER, _LIMIT, _WAIT],
                headers=_TRIMMED,
            )
        },
        f"{run}/events/sse": {
            "get": _operation(
                "stream_run_events_runs__run_id__events_sse_get",
                200,
                None,
                (*_STORE, 404, 422),
                parameters=[_RUN_ID, _AFTER, _LAST_EVENT_ID],
            )
        },
        f"{run}/events/ws": {
            "get": _operation(
                "websocket_run_events_runs__run_id__events_ws_get",
                101,
                None,
                (*_STORE, 404, 422, 426),
                parameters=[_RUN_ID, _AFTER, _LAST_EVENT_ID],
                description=_WEBSOCKET,
            )
        },
        "/healthz": {"get": _operation("healthz_healthz_get", 200, "Health", _ANY, tag="health")},
        "/readyz": {"get": ready},
        "/metrics": {
            "get": _operation(
                "metrics_metrics_get",
                200,
                None,
                (*_ANY, 401),
                tag="health",
                media_type="text/plain",
                description="Prometheus's text format.",
            )
        },
    }


def _operation(
    operation_id: str,
    status: int,
    model: str | None,
    errors: tuple[int, ...],
    *,
    parameters: list[dict[str, Any]] | None = None,
    body: str | None = None,
    headers: dict[str, Any] | None = None,
    tag: str = "runs",
    failure: str = "Error",
    description: str | None = None,
    media_type: str = "text/event-stream",
    meanings: Mapping[int, str] = _ERRORS,
) -> dict[str, Any]:
    """One operation. ``model`` None means text of ``media_type`` or, with status 101, a WebSocket. ``meanings`` are the
    words for those errors that mean something else here than on other routes."""
    success: dict[str, Any] = {"description": "Successful Response"}
    if status != 101:
        success["content"] = {media_type: {"schema": _STRING}} if model is None else _json(model)
    if headers:
        success["headers"] = headers
    responses = {str(status): success} | {
        str(code): _error(code, failure, meanings.get(code, _ERRORS[code])) for code in sorted(errors)
    }
    fault: dict[str, Any] = {"text/plain": {"schema": _STRING}}
    if tag == "runs":  # what the store holds of a run, or of an idempotency key, cannot be read
        fault |= _json("Error")
    responses["500"] = {"description": "Internal Server Error", "content": fault}
    operation: dict[str, Any] = {"tags": [tag], "operationId": operation_id, "responses": responses}
    if description is not None:
        operation["description"] = description
    every = [*(parameters or []), *([_AUTHORIZATION] if tag == "runs" else [])]
    if every:
        operation["parameters"] = every
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _error(code: int, failure: str, meaning: str) -> dict[str, Any]:
    model = {422: "HTTPValidationError", 503: failure}.get(code, "Error")
    answer: dict[str, Any] = {"description": meaning, "content": _json(model)}
    if code in _ERROR_HEADERS:
        answer["headers"] = {_ERROR_HEADERS[code]: {"schema": _STRING}}
    return answer


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}
