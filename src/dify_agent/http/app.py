"""The app: routes, error answers and nothing that lives longer than a request."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from quart.routing import QuartRule
from quart.sessions import SessionInterface
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter

from dify_agent.http.connection import HttpConnection, WebSocketConnection
from dify_agent.http.errors import is_routable, register_error_handlers
from dify_agent.http.health import HealthRoutes
from dify_agent.http.metrics import MetricsRoute
from dify_agent.http.openapi import DocumentRoutes
from dify_agent.http.runs import BlankPromptCheck, RunRoutes
from dify_agent.http.settings import HttpSettings
from dify_agent.http.websocket import WebSocketRoute
from dify_agent.metrics import Metrics
from dify_agent.store.base import RunStore
from dify_agent.supervisor.handle import RunService

logger = logging.getLogger(__name__)

ExceptionInfo = tuple[type, BaseException, TracebackType] | tuple[None, None, None]

_UNROUTABLE: Final = "/\0"
"""Stands for a path that must not match: no route contains a NUL."""


class _Rule(QuartRule):
    """A rule for exactly the methods it names: HEAD is a wrong method on the run routes (protocol 1.1)."""

    def __init__(self, string: str, **options: Any) -> None:
        super().__init__(string, **options)
        if self.methods is not None and "HEAD" not in (options.get("methods") or ()):
            self.methods.discard("HEAD")


class _NoSessions(SessionInterface):
    """This server sets no cookies and reads none."""

    async def open_session(self, app: Any, request: Any) -> None:
        return None

    async def save_session(self, app: Any, session: Any, response: Any) -> None:
        return None


class RunApp(QuartTrio):
    """The ASGI app. Its lifespan nursery stays empty: what must live with the process belongs to the supervisor."""

    asgi_http_class = HttpConnection  # type: ignore[assignment]
    asgi_websocket_class = WebSocketConnection  # type: ignore[assignment]
    session_interface = _NoSessions()  # type: ignore[assignment]
    url_rule_class = _Rule  # type: ignore[assignment]

    def __init__(self, service: RunService, settings: HttpSettings) -> None:
        super().__init__(__name__, static_folder=None, template_folder=None)
        self.settings = settings
        self._service = service
        self.url_map.merge_slashes = False
        self.url_map.redirect_defaults = False
        self.config["MAX_CONTENT_LENGTH"] = settings.max_request_body_bytes
        self.config["BODY_TIMEOUT"] = settings.body_timeout_seconds

    @property
    def draining(self) -> bool:
        """Whether every response has to close its connection."""
        return self._service.draining

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Bind the routes to a request by its path alone: the host is the proxy's business."""
        if request is None:
            return None
        path = request.scope["path"]  # request.path has lost all but one of the slashes in front
        if not is_routable(request):
            path = _UNROUTABLE
        return self.url_map.bind("", url_scheme=request.scheme, path_info=path, default_method=request.method)

    def is_route(self, path: str) -> bool:
        """Whether some method is routed at ``path``."""
        try:
            self.url_map.bind("").match(path, method="GET")
        except MethodNotAllowed:
            return True
        except NotFound:
            return False
        return True

    def log_exception(self, exception_info: ExceptionInfo) -> None:
        """Log what became a 500. Path and query stay out: they may carry what a log must not."""
        logger.error("a request handler failed; the client got a 500", exc_info=exception_info)


def create_app(
    *,
    service: RunService,
    store: RunStore,
    settings: HttpSettings | None = None,
    blank_prompt_check: BlankPromptCheck = lambda _request: False,
    metrics: Metrics | None = None,
) -> RunApp:
    """Build the app over a supervisor's handle and a store.

    Args:
        service: creates, cancels and tails runs; says whether the process drains.
        store: read for status and pages.
        settings: defaults as in `HttpSettings`.
        blank_prompt_check: whether a request's effective prompt is provably blank, which answers 422 (decision D1).
        metrics: what the front counts into, and what ``/metrics`` shows.
    """
    settings = settings or HttpSettings()
    metrics = metrics or Metrics()
    app = RunApp(service, settings)
    register_error_handlers(app)
    runs = RunRoutes(service, store, settings, blank_prompt_check=blank_prompt_check, metrics=metrics)
    _route(app, "POST", "/runs", "create_run", runs.create)
    _route(app, "GET", "/runs/<run_id>", "get_run_status", runs.status)
    _route(app, "POST", "/runs/<run_id>/cancel", "cancel_run", runs.cancel)
    _route(app, "GET", "/runs/<run_id>/events", "get_run_events", runs.events)
    _route(app, "GET", "/runs/<run_id>/events/sse", "stream_run_events", runs.stream)
    sockets = WebSocketRoute(service, settings, metrics)
    path = "/runs/<run_id>/events/ws"
    handshake: Any = sockets.stream  # answers nothing once it has accepted
    app.add_url_rule(path, "run_events_websocket", handshake, websocket=True, provide_automatic_options=False)
    _route(app, "GET", path, "run_events_no_websocket", sockets.upgrade_required)
    health = HealthRoutes(service)
    _open_route(app, "/healthz", health.healthz)
    _open_route(app, "/readyz", health.readyz)
    _route(app, "GET", "/metrics", "metrics", MetricsRoute(metrics, settings).show)
    documents = DocumentRoutes()
    _open_route(app, "/openapi.json", documents.openapi)
    _open_route(app, "/docs", documents.page)
    _open_route(app, "/redoc", documents.page)
    _open_route(app, "/docs/oauth2-redirect", documents.oauth2_redirect)
    return app


def _route(app: RunApp, method: str, path: str, endpoint: str, view: Callable[..., Any]) -> None:
    app.add_url_rule(path, endpoint, view, methods=[method], provide_automatic_options=False)


def _open_route(app: RunApp, path: str, view: Callable[..., Any]) -> None:
    """A route without a token. Probes and link checkers may use HEAD."""
    app.add_url_rule(path, path, view, methods=["GET", "HEAD"], provide_automatic_options=False)
