"""Error answers of the contract (protocol 1.1, 1.8): which exception becomes which status, headers and body."""

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog
from pydantic_core import to_json
from quart import has_request_context, request
from quart.wrappers import Response
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from dify_agent.errors import (
    IdempotencyConflictError,
    RunCancellationConflictError,
    RunNotFoundError,
    SchedulerStoppingError,
    StoreUnavailableError,
    TooManyActiveRunsError,
)
from dify_agent.store.base import KeyUnreadableError

if TYPE_CHECKING:
    from dify_agent.http.app import RunApp

JSON: Final = "application/json"

RETRY_AFTER_SECONDS: Final = 1
"""For a store that is coming back, a process that drains and one that is full alike: another replica answers at
once."""

_log = structlog.get_logger()

_RETRY: Final = {"Retry-After": str(RETRY_AFTER_SECONDS)}
_CLOSE: Final = {"Connection": "close"}


class HttpError(Exception):
    """Ends a request with ``{"detail": detail}``, a text or the list of validation items."""

    def __init__(self, status: int, detail: str | list[Any], headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> TrioResponse:
    """An answer whose body is finished JSON text."""
    return TrioResponse(body, status, headers, content_type=JSON)


def error_body(detail: str | list[Any]) -> bytes:
    """``{"detail": …}``. What JSON cannot hold, such as the exception in the ``ctx`` of an item, becomes ``{}``."""
    return to_json({"detail": detail}, fallback=_empty_object)


def _empty_object(_value: Any) -> dict[str, Any]:
    return {}


def _error(status: int, detail: str | list[Any], headers: dict[str, str] | None = None) -> TrioResponse:
    return json_response(error_body(detail), status, headers)


def register_error_handlers(app: "RunApp") -> None:
    """Teach ``app`` the answers. An exception without one is logged and becomes the plain-text 500 (quirk Q32)."""
    handlers = _ErrorHandlers(app)
    app.register_error_handler(HttpError, handlers.http_error)
    app.register_error_handler(RunNotFoundError, handlers.run_not_found)
    app.register_error_handler(RunCancellationConflictError, handlers.conflict)
    app.register_error_handler(IdempotencyConflictError, handlers.conflict)
    app.register_error_handler(TooManyActiveRunsError, handlers.too_many_runs)
    app.register_error_handler(SchedulerStoppingError, handlers.retry_later)
    app.register_error_handler(StoreUnavailableError, handlers.retry_later)
    app.register_error_handler(KeyUnreadableError, handlers.unreadable)
    app.register_error_handler(HTTPException, handlers.framework_error)


class _ErrorHandlers:
    """One answer per kind of exception. Async without need: the framework would run a sync handler in a thread."""

    def __init__(self, app: "RunApp") -> None:
        self._app = app

    async def http_error(self, error: HttpError) -> Response:
        return _error(error.status, error.detail, error.headers)

    async def run_not_found(self, error: RunNotFoundError) -> Response:
        return _error(404, str(error))

    async def conflict(self, error: RunCancellationConflictError | IdempotencyConflictError) -> Response:
        return _error(409, str(error))

    async def too_many_runs(self, error: TooManyActiveRunsError) -> Response:
        return _error(429, str(error), _RETRY)

    async def retry_later(self, error: SchedulerStoppingError | StoreUnavailableError) -> Response:
        return _error(503, str(error), _RETRY)

    async def unreadable(self, error: KeyUnreadableError) -> Response:
        log_unreadable(error)
        return _error(500, str(error))

    async def framework_error(self, error: HTTPException) -> Response:
        if isinstance(error, RequestEntityTooLarge):
            return _error(413, f"request body exceeds {self._app.settings.max_request_body_bytes} bytes", _CLOSE)
        if isinstance(error, NotFound):
            return _not_found(self._app)
        if isinstance(error, MethodNotAllowed):
            return _error(405, "Method Not Allowed", {"Allow": ", ".join(sorted(error.valid_methods or ()))})
        if error.code == 408:
            return _error(408, "Request Timeout", _CLOSE)
        if error.code is None or error.code >= 500:
            return TrioResponse("Internal Server Error", 500, content_type="text/plain; charset=utf-8")
        return _error(error.code, error.name)


def log_unreadable(error: KeyUnreadableError) -> None:
    """One line for whoever has to mend the store; no traceback, since nothing here is at fault."""
    _log.error("a key of the store cannot be read", run_id=error.run_id, key=error.key, why=str(error))


def is_routable(request: BaseRequestWebsocket) -> bool:
    """Whether a path may match a route at all.

    A percent-encoded slash never does; neither does a NUL, which then reaches no store, nor a doubled slash in front,
    which the router would take for one.
    """
    path = request.scope["path"]
    return not (path.startswith("//") or "\0" in path or b"%2f" in request.scope.get("raw_path", b"").lower())


def _not_found(app: "RunApp") -> Response:
    """404, or 307 to the path without its trailing slashes where that is a route (protocol 1.1)."""
    if not has_request_context():  # a WebSocket handshake is not redirected
        return _error(404, "Not Found")
    full_path = request.scope["path"]
    path = full_path.rstrip("/")
    if path == full_path or not is_routable(request) or not app.is_route(path):
        return _error(404, "Not Found")
    query = request.query_string.decode("ascii", "replace")
    location = f"{request.scheme}://{request.host}{quote(path)}" + (f"?{query}" if query else "")
    return TrioResponse(b"", 307, {"Location": location})
