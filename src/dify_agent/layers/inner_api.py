"""One JSON call of Dify API's inner routes, as core tools, knowledge and file parameters make it."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from dify_agent.backends.transport import OutboundHttp, transport_failure
from dify_agent.errors import DifyAgentError
from dify_agent.layers.outbound_call import MAX_ERROR_CHARS, json_bytes, posted

MAX_REPLY_BYTES: Final = 16 << 20
"""Of one reply, decompressed. The texts in it are for a model to read."""
BAD_REQUEST: Final = 400
INVALID_RESPONSE: Final = "invalid_response"

PEER: Final = "the Dify API"
"""What operators call the other end."""

ReplyT = TypeVar("ReplyT", bound=BaseModel)


class InnerCallError(DifyAgentError):
    """A call failed; the text is Dify API's own, or says what became of the transport."""

    def __init__(
        self, message: str, *, code: str | None = None, status: int | None = None, interrupted: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        """Dify API's, or ``invalid_response`` for a success with a body that breaks the contract."""
        self.status = status
        """HTTP status, None when there was no answer."""
        self.interrupted = interrupted
        """The transport failed or timed out: the same call may succeed later."""


def brief(error: ValidationError) -> str:
    """What does not fit, in one line and without the values."""
    problems = (f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()[:3])
    return "; ".join(problems)


async def post_inner(outbound: OutboundHttp, path: str, body: Mapping[str, Any], reply_type: type[ReplyT]) -> ReplyT:
    """POST ``body`` to ``/inner/api`` + ``path`` and read the answer as ``reply_type``.

    Raises:
        InnerCallError: no answer, one that is no success, or a success whose body does not fit.
        ValueError: ``body`` cannot be written as JSON; nothing was sent.
    """
    content = json_bytes(body)
    try:
        async with posted(outbound.dify_api, f"{outbound.dify_api_url}/inner/api{path}", content) as reply:
            raw = await reply.read(MAX_REPLY_BYTES)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise InnerCallError(f"Dify API cannot be asked: {error} Check DIFY_AGENT_INNER_API_URL") from error
    except httpx2.RequestError as error:
        raise InnerCallError(transport_failure(error, PEER).message, interrupted=True) from error
    if not reply.is_success:
        raise _refusal(reply.status, raw)
    if len(raw) > MAX_REPLY_BYTES:
        text = f"Dify API's reply is larger than {MAX_REPLY_BYTES} bytes"
        raise InnerCallError(text, code=INVALID_RESPONSE, status=reply.status)
    try:
        return reply_type.model_validate_json(raw)
    except ValidationError as error:
        text = f"Dify API's reply does not fit its contract ({brief(error)})"
        raise InnerCallError(text, code=INVALID_RESPONSE, status=reply.status) from error


def _refusal(status: int, raw: bytes) -> InnerCallError:
    """Error bodies are ``{"code", "message", "status"}``; anything else is its own text."""
    code, message = None, raw.decode(errors="replace")
    try:
        body = from_json(raw)
    except ValueError:
        body = None
    if isinstance(body, dict):
        if isinstance(body.get("code"), str):
            code = body["code"] or None
        if isinstance(body.get("message"), str):
            message = body["message"]
    text = message.strip()[:MAX_ERROR_CHARS] or f"HTTP {status} without a text"
    return InnerCallError(text, code=code, status=status)
