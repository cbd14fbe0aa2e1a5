"""From what Dify or the way there reports to the error that ends the run (integrations 3.8).

Every failure has a reason of its own, which ``run_failed`` carries; none has an ``error_type``. No text holds a key, a
query string or a line of the answer.
"""

from enum import StrEnum
from typing import Any, Final

import httpx2
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_core import from_json

from dify_agent.backends.transport import transport_failure
from dify_agent.errors import Reason, RunFailedError

MAX_ERROR_TEXT: Final = 2000
_NESTED: Final = "PluginInvokeError"
_MAX_NESTING: Final = 16
_TOO_MANY: Final = 429
_QUOTA_CODE: Final = -429


class UpstreamReason(StrEnum):
    """Reasons beside those of `TransportReason`, ``incomplete_stream``, and the ``error_type`` that Dify names."""

    HTTP_ERROR = "upstream_http_error"
    """An HTTP status that is no success, without an ``error_type``."""
    RATE_LIMITED = "InvokeRateLimitError"
    """HTTP 429: rate or quota."""
    ERROR = "upstream_error"
    """An error in the stream whose kind cannot be read."""
    MALFORMED = "upstream_malformed_answer"
    """A line that is not what Dify sends."""
    LINE_TOO_LONG = "upstream_line_too_long"


_STATUS: Final[dict[str, int]] = {
    "PluginDaemonUnauthorizedError": 401,
    "InvokeAuthorizationError": 401,
    "PluginPermissionDeniedError": 403,
    "PluginDaemonBadRequestError": 400,
    "InvokeBadRequestError": 400,
    "CredentialsValidateFailedError": 400,
    "PluginUniqueIdentifierError": 400,
    "PluginDaemonNotFoundError": 404,
    "PluginNotFoundError": 404,
    "InvokeRateLimitError": 429,
    "AgentLLMQuotaExceededError": 429,
    "QuotaExceededError": 429,
    "PluginDaemonInternalServerError": 500,
    "PluginDaemonInnerError": 500,
    "InvokeConnectionError": 503,
    "InvokeServerUnavailableError": 503,
}
_PLAIN: Final = frozenset({"EndpointSetupFailedError", "TriggerProviderCredentialValidationError"})
"""Errors of the user's set-up: the message says it all."""


def stream_error(code: int, message: str, *, model_name: str) -> Exception:
    """The error for an envelope whose code is not zero."""
    details = _details(message)
    if details is None:
        reason = UpstreamReason.RATE_LIMITED if code == _QUOTA_CODE else UpstreamReason.ERROR
        text = _short(message) or f"the model's stream reported error {code} without a text"
        return RunFailedError(text, reason=reason)
    return _named_error(*details, status=None, model_name=model_name)


def http_error(status: int, body: bytes, *, model_name: str) -> Exception:
    """The error for an HTTP answer that is no success.

    A body that names an ``error_type`` decides (the daemon's); else the text has the status and the body's message.
    """
    text = _short(body.decode("utf-8", "replace"))
    message = text
    content = _object(body)
    if content is not None:
        details = _details(body) or _details(content.get("message"))
        if details is not None:
            return _named_error(*details, status=status, model_name=model_name)
        stated = content.get("message") or content.get("description")
        message = _short(stated) if isinstance(stated, str) else text
    if status == _TOO_MANY:
        return ModelHTTPError(status, model_name, message)
    described = f"status_code: {status}, model_name: {model_name}, body: {message}"
    return _http(status, UpstreamReason.HTTP_ERROR, described, model_name)


def transport_error(error: httpx2.RequestError, *, peer: str, model_name: str) -> Exception:
    """The error for a request that failed below HTTP: 504 for time-outs of ours, 503 for the rest."""
    failure = transport_failure(error, peer)
    text = f"The model request failed: {failure.message}."
    return _http(504 if failure.timed_out else 503, failure.reason, text, model_name)


def malformed(problem: str, *, peer: str) -> RunFailedError:
    """The error for a line that cannot be read."""
    return RunFailedError(
        f"{peer} sent a line of the model's answer that cannot be read ({problem}), so the run fails. "
        "Check that the address leads to it, and that its version fits this server's.",
        reason=UpstreamReason.MALFORMED,
    )


def line_too_long(max_bytes: int, *, peer: str) -> RunFailedError:
    """The error for a line that does not end."""
    return RunFailedError(
        f"{peer} sent a line of the model's answer longer than {max_bytes} bytes, so the run fails. "
        "Ask the model for smaller files, and check that the address leads to it.",
        reason=UpstreamReason.LINE_TOO_LONG,
    )


def cut_stream(*, peer: str) -> RunFailedError:
    """The error for an answer that ended before a finish reason or a usage (decision R15)."""
    return RunFailedError(
        f"The model's answer ended early: {peer} closed it without a finish reason or a usage, so the run fails. "
        "Run it again, and check the plugin and the connection to it.",
        reason=Reason.INCOMPLETE_STREAM,
    )


def _named_error(kind: str, message: str, *, status: int | None, model_name: str) -> Exception:
    text = _short(message) or kind
    if kind in _PLAIN:
        return RunFailedError(text, reason=kind)
    status = status or _STATUS.get(kind)
    if status is None:
        return RunFailedError(f"{kind}: {text}", reason=kind)
    return _http(status, kind, text, model_name)


def _http(status: int, reason: str, message: str, model_name: str) -> ModelHTTPError:
    return ModelHTTPError(status, model_name, {"error_type": str(reason), "message": message})


def _details(message: object) -> tuple[str, str] | None:
    """Kind and message of an error object in JSON text, taken out of the plugin errors it is wrapped in."""
    found = None
    for _ in range(_MAX_NESTING):
        content = _object(message)
        if content is None:
            break
        kind, message = content.get("error_type"), content.get("message")
        if not isinstance(kind, str) or not kind:
            break
        found = kind, message if isinstance(message, str) else ""
        if kind != _NESTED:
            break
    return found


def _object(text: object) -> dict[str, Any] | None:
    if not isinstance(text, str | bytes):
        return None
    try:
        content = from_json(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _short(text: str) -> str:
    """One paragraph of at most `MAX_ERROR_TEXT` characters: an error page must not fill the event log."""
    text = text.strip()
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:MAX_ERROR_TEXT]}…"
