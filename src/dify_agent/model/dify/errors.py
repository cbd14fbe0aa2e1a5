"""From what Dify or the way there reports to the error that ends the run (integrations 3.8).

Every failure has a reason of its own, which ``run_failed`` carries; none has an ``error_type``. No text holds a key, a
query string or a line of the answer.
"""

from enum import StrEnum
from typing import Any, Final

import httpx2
from pydantic_ai.exceptions import ModelHTTPError, UserError

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.replies import MAX_ERROR_CHARS, innermost_error, json_object
from dify_agent.backends.transport import PLUGIN_DAEMON, Peer, TransportReason, transport_failure
from dify_agent.errors import NamesSetting, Reason, RunFailedError

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
    """A line that is not what Dify sends, or lines that cannot be read at all."""
    LINE_TOO_LONG = "upstream_line_too_long"
    TOO_LARGE = "upstream_answer_too_large"
    """All lines together say too much."""


class UpstreamError(ModelHTTPError, NamesSetting):
    """A failed request to Dify, with the setting to look at where there is one."""


class NoAddressError(UserError, NamesSetting):
    """A service's address is no HTTP URL."""

    def __init__(self, peer: Peer) -> None:
        setting = peer.url_setting
        super().__init__(f"the address of {peer.name} is not an HTTP URL; the model was not asked (check {setting})")
        self.setting = setting


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


def stream_error(code: int, message: str, *, model_name: str, redactor: Redactor) -> Exception:
    """The error for an envelope whose code is not zero."""
    details = _details(message, redactor)
    if details is None:
        reason = UpstreamReason.RATE_LIMITED if code == _QUOTA_CODE else UpstreamReason.ERROR
        text = _short(message, redactor) or f"the model's stream reported error {code} without a text"
        return RunFailedError(text, reason=reason)
    return _named_error(*details, status=None, model_name=model_name)


def http_error(status: int, body: bytes, *, peer: Peer, model_name: str, redactor: Redactor) -> Exception:
    """The error for an HTTP answer that is no success.

    A body that names an ``error_type`` decides (the daemon's); else the text has the status and the body's message.
    Where it looks like a wrong key or address, the text ends with the variables to check.
    """
    content = json_object(body)
    details = None if content is None else _details(body, redactor) or _details(content.get("message"), redactor)
    kind = _kind(content, details, peer)
    setting = peer.setting_to_check(status, kind, is_object=content is not None)
    hint = peer.hint(status, setting)
    if details is not None:
        return _named_error(*details, status=status, model_name=model_name, setting=setting, hint=hint)
    stated = None if content is None else content.get("message") or content.get("description")
    message = _short(stated if isinstance(stated, str) else body.decode("utf-8", "replace"), redactor)
    if status == _TOO_MANY:
        return ModelHTTPError(status, model_name, message)
    described = f"status_code: {status}, model_name: {model_name}, body: {message}{hint}"
    return _http(status, UpstreamReason.HTTP_ERROR, described, model_name, setting)


def transport_error(error: httpx2.RequestError, *, peer: Peer, model_name: str) -> Exception:
    """The error for a request that failed below HTTP: 504 for time-outs of ours, 503 for the rest, and no status for a
    compressed answer."""
    failure = transport_failure(error, peer)
    text = f"The model request failed: {failure.message}."
    if failure.reason is TransportReason.ENCODED:
        return RunFailedError(text, reason=failure.reason, setting=failure.setting)
    return _http(504 if failure.timed_out else 503, failure.reason, text, model_name, failure.setting)


def malformed(problem: str, *, peer: Peer) -> RunFailedError:
    """The error for a line that cannot be read."""
    return RunFailedError(
        f"{peer.name} sent a line of the model's answer that cannot be read ({problem}), so the run fails. "
        f"Check that the address ({peer.url_setting}) leads to it, and that its version fits this server's.",
        reason=UpstreamReason.MALFORMED,
        setting=peer.url_setting,
    )


def line_too_long(max_bytes: int, *, peer: Peer) -> RunFailedError:
    """The error for a line that does not end."""
    return RunFailedError(
        f"{peer.name} sent a line of the model's answer longer than {max_bytes} bytes, so the run fails. "
        "Ask the model for smaller files, and check that the address leads to it.",
        reason=UpstreamReason.LINE_TOO_LONG,
    )


def answer_too_large(limit: str, *, peer: Peer) -> RunFailedError:
    """The error for an answer that does not end; ``limit`` is number and unit."""
    return RunFailedError(
        f"The model's answer has more than {limit}, so {peer.name} was not read on and the run fails. "
        "Ask for a shorter answer, or for smaller or fewer files.",
        reason=UpstreamReason.TOO_LARGE,
    )


def cut_stream(*, peer: Peer) -> RunFailedError:
    """The error for an answer that ended before a finish reason or a usage (decision R15)."""
    return RunFailedError(
        f"The model's answer ended early: {peer.name} closed it without a finish reason or a usage, so the run fails. "
        "Run it again, and check the plugin and the connection to it.",
        reason=Reason.INCOMPLETE_STREAM,
    )


def _named_error(
    kind: str, message: str, *, status: int | None, model_name: str, setting: str | None = None, hint: str = ""
) -> Exception:
    text = message or kind
    if kind in _PLAIN:
        return RunFailedError(text, reason=kind)
    status = status or _STATUS.get(kind)
    if status is None:
        return RunFailedError(f"{kind}: {text}", reason=kind)
    return _http(status, kind, f"{text}{hint}", model_name, setting)


def _http(status: int, reason: str, message: str, model_name: str, setting: str | None = None) -> UpstreamError:
    error = UpstreamError(status, model_name, {"error_type": str(reason), "message": message})
    error.setting = setting
    return error


def _kind(content: dict[str, Any] | None, details: tuple[str, str] | None, peer: Peer) -> str | None:
    """The kind of an HTTP error in the peer's own form: a code of the Dify API, an error type of the plugin daemon."""
    if peer is PLUGIN_DAEMON:
        return None if details is None else details[0]
    code = None if content is None else content.get("code")
    return code if isinstance(code, str) and code else None


def _details(text: object, redactor: Redactor) -> tuple[str, str] | None:
    """Type and message of the innermost error in ``text``, fit to be shown."""
    found = innermost_error(text)
    return None if found is None else (_short(found[0], redactor), _short(found[1], redactor))


def _short(text: str, redactor: Redactor) -> str:
    """One paragraph of at most `MAX_ERROR_CHARS` characters, without secrets: an error page must not fill the event
    log, and may show the request."""
    text = redactor.redact_error(text).strip()
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"
