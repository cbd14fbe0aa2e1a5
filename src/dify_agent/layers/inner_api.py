"""One JSON call of Dify API's inner routes, as core tools, knowledge and file parameters make it."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.replies import MAX_ERROR_CHARS, json_object
from dify_agent.backends.transport import DIFY_API, OutboundHttp, TransportReason, transport_failure
from dify_agent.errors import DifyAgentError, NamesSetting
from dify_agent.layers.outbound_call import MAX_REPLY_VALUES, json_bytes, posted
from dify_agent.protocol.separators import has_more_separators

MAX_REPLY_BYTES: Final = 8 << 20
"""Of one reply. The texts in it are for a model to read: a tool's may have half of this, and JSON escapes."""
MAX_NAMED_PROBLEMS: Final = 1000
"""Of a reply. Describing each takes microseconds, and it may have as many as values."""
BAD_REQUEST: Final = 400
INVALID_RESPONSE: Final = "invalid_response"

ReplyT = TypeVar("ReplyT", bound=BaseModel)


class InnerCallError(DifyAgentError, NamesSetting):
    """A call failed; the text is Dify API's own, or says what became of the transport."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        interrupted: bool = False,
        setting: str | None = None,
    ) -> None:
        super().__init__(message)
        self.setting = setting
        self.code = code
        """Dify API's, or ``invalid_response`` for a success with a body that breaks the contract."""
        self.status = status
        """HTTP status, None when there was no answer."""
        self.interrupted = interrupted
        """The transport failed or timed out: the same call may succeed later."""


def brief(error: ValidationError) -> str:
    """What does not fit, in one line and without the values. Names of members are the service's own."""
    if error.error_count() > MAX_NAMED_PROBLEMS:
        return f"{error.error_count()} problems"
    problems = (f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()[:3])
    return "; ".join(problems)


async def post_inner(
    outbound: OutboundHttp,
    path: str,
    body: Mapping[str, Any],
    reply_type: type[ReplyT],
    *,
    redactor: Redactor | None = None,
) -> ReplyT:
    """POST ``body`` to ``/inner/api`` + ``path`` and read the answer as ``reply_type``.

    The errors hold no secret that ``redactor`` knows; None: it knows the services' keys.

    Raises:
        InnerCallError: no answer, one that is no success, or a success whose body does not fit.
        ValueError: ``body`` cannot be written as JSON; nothing was sent.
    """
    redactor = redactor or outbound.redactor
    content = json_bytes(body)
    try:
        async with posted(outbound.dify_api, f"{outbound.dify_api_url}/inner/api{path}", content) as reply:
            raw = await (reply.read(MAX_REPLY_BYTES) if reply.is_success else reply.read_error())
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        text = f"Dify API cannot be asked: {error} Check {DIFY_API.url_setting}"
        raise InnerCallError(text, setting=DIFY_API.url_setting) from error
    except httpx2.RequestError as error:
        failure = transport_failure(error, DIFY_API)
        if failure.reason is TransportReason.ENCODED:
            raise InnerCallError(failure.message, code=INVALID_RESPONSE, setting=failure.setting) from error
        raise InnerCallError(failure.message, interrupted=True, setting=failure.setting) from error
    if not reply.is_success:
        raise _refusal(reply.status, raw, redactor)
    if len(raw) > MAX_REPLY_BYTES:
        text = f"Dify API's reply is larger than {MAX_REPLY_BYTES} bytes"
        raise InnerCallError(text, code=INVALID_RESPONSE, status=reply.status)
    if has_more_separators(raw, MAX_REPLY_VALUES):
        text = f"Dify API's reply has more than {MAX_REPLY_VALUES} values"
        raise InnerCallError(text, code=INVALID_RESPONSE, status=reply.status)
    try:
        return reply_type.model_validate_json(raw)
    except ValidationError as error:
        problem = redactor.redact_error(brief(error))[:MAX_ERROR_CHARS]
        text = f"Dify API's reply does not fit its contract ({problem})"
        is_page = not raw.lstrip().startswith(b"{")
        setting = DIFY_API.url_setting if is_page else None
        raise InnerCallError(text, code=INVALID_RESPONSE, status=reply.status, setting=setting) from error


def _refusal(status: int, raw: bytes, redactor: Redactor) -> InnerCallError:
    """Error bodies are ``{"code", "message", "status"}``; anything else is its own text."""
    code, message = None, raw.decode(errors="replace")
    body = json_object(raw)
    if body is not None:
        if isinstance(body.get("code"), str):
            code = body["code"] or None
        if isinstance(body.get("message"), str):
            message = body["message"]
    text = redactor.redact_error(message).strip()[:MAX_ERROR_CHARS] or f"HTTP {status} without a text"
    setting = DIFY_API.setting_to_check(status, code, is_object=body is not None)
    shown = None if code is None else redactor.redact_error(code)[:MAX_ERROR_CHARS]
    return InnerCallError(text, code=shown, status=status, setting=setting)
