"""Calls of plugin tools at the plugin daemon (specification: integrations 4.3, 4.4, framing 3.6). Never repeated."""

from typing import Any, Final

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from dify_agent.backends.transport import OutboundHttp, TransportReason, tenant_segment, transport_failure
from dify_agent.errors import DifyAgentError, RunFailedError
from dify_agent.layers.dify_plugin.messages import Observation
from dify_agent.layers.inner_api import brief
from dify_agent.layers.outbound_call import MAX_ERROR_CHARS, Reply, posted
from dify_agent.model.dify.lines import LineSplitter, payload

MAX_LINE_BYTES: Final = 8 << 20
"""Of one item of a reply. Chunks of files are 8 KiB."""
MAX_REPLY_BYTES: Final = 256 << 20
"""Of one reply, decompressed, the base64 of several files of 30 MiB included."""
MAX_ERROR_BYTES: Final = 64 << 10

UNREACHABLE: Final = "plugin_daemon_unreachable"
"""``run_failed.data.reason``: refused, reset, or closed in the middle of a reply."""
TIMEOUT: Final = "plugin_daemon_timeout"
"""``run_failed.data.reason``: one of ``DIFY_AGENT_OUTBOUND_HTTP_{CONNECT,READ,WRITE}_TIMEOUT`` ran out; the text names
it. A connection that the pool did not give in time is ``outbound_pool_exhausted``, as for models."""

_PEER: Final = "the plugin daemon"
_WRAPPER: Final = "PluginInvokeError"
_MAX_WRAPPINGS: Final = 16


class PluginDaemonUnavailableError(RunFailedError):
    """The plugin daemon could not be asked, or did not answer to the end: the run fails."""


class PluginDaemonError(DifyAgentError):
    """The plugin daemon, or the plugin behind it, answered with an error."""

    def __init__(self, message: str, *, error_type: str | None, status: int | None) -> None:
        super().__init__(message[:MAX_ERROR_CHARS])
        self.error_type = error_type
        """Class name of the innermost error, if the daemon named one."""
        self.status = status
        """HTTP status; for an error inside a stream the one that its code stands for."""


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, strict=True)

    code: int
    message: str = ""
    data: Any = None


async def invoke_tool(outbound: OutboundHttp, *, tenant_id: str, plugin_id: str, content: bytes) -> str:
    """POST ``content``, a JSON body, and gather the whole reply into the text that the model reads.

    Raises:
        PluginDaemonError: the daemon or the plugin refused or failed.
        ValueError: the reply is malformed or too large, or the tenant cannot stand in a path.
        PluginDaemonUnavailableError: the transport failed.
    """
    url = f"{outbound.daemon_url}/plugin/{tenant_segment(tenant_id)}/dispatch/tool/invoke"
    try:
        async with posted(outbound.daemon, url, content, {"X-Plugin-ID": plugin_id}) as reply:
            if reply.is_success:
                return await _gathered(reply)
            body = await reply.read(MAX_ERROR_BYTES)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        text = f"A plugin tool could not be called: {error} Check DIFY_AGENT_PLUGIN_DAEMON_URL"
        raise PluginDaemonUnavailableError(text, reason=UNREACHABLE) from error
    except httpx2.RequestError as error:
        raise _unavailable(error) from error
    raise http_error(reply.status, body.decode(errors="replace"))


def http_error(status: int, body: str) -> PluginDaemonError:
    """The error in an HTTP answer: ``{"error_type", "message"}``, the same as text in ``message`` of an envelope
    ``{"code", "message"}``, or the body as it is."""
    error_type, message = _unwrapped(body)
    if error_type is None and (envelope := _json_object(body)) is not None:
        inner = envelope.get("message")
        if isinstance(inner, str) and inner:
            error_type, message = _unwrapped(inner)
    return PluginDaemonError(message.strip() or f"HTTP {status} without a text", error_type=error_type, status=status)


def _stream_error(code: int, text: str) -> PluginDaemonError:
    """The error in an item: its code is the negative of an HTTP status."""
    error_type, message = _unwrapped(text)
    return PluginDaemonError(message.strip() or f"error {code}", error_type=error_type, status=abs(code))


async def _gathered(reply: Reply) -> str:
    observation = Observation()
    lines = LineSplitter(MAX_LINE_BYTES)
    size = 0
    async for chunk in reply.chunks:
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"the tool's reply is larger than {MAX_REPLY_BYTES} bytes")
        for line in lines.feed(chunk):
            _take(observation, payload(line))
    _take(observation, payload(lines.finish()))
    return observation.text()


def _take(observation: Observation, item: bytes) -> None:
    if not item:
        return
    try:
        envelope = _Envelope.model_validate(from_json(item))
    except ValidationError as error:
        raise ValueError(f"the tool's reply has a line that is no item ({brief(error)})") from error
    except ValueError as error:
        raise ValueError("the tool's reply has a line that is not JSON") from error
    if envelope.code != 0:
        raise _stream_error(envelope.code, envelope.message)
    if envelope.data is None:
        raise ValueError("the tool's reply has an item without data")
    observation.add(envelope.data)


def _unwrapped(text: str) -> tuple[str | None, str]:
    """Type and message of the innermost error in ``text``; no type when it is no encoded error."""
    error_type: str | None = None
    for _ in range(_MAX_WRAPPINGS):
        encoded = _json_object(text)
        if encoded is None or not isinstance(encoded.get("error_type"), str):
            break
        error_type, message = encoded["error_type"], encoded.get("message")
        text = message if isinstance(message, str) else ""
        if error_type != _WRAPPER:
            break
    return error_type, text


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _unavailable(error: httpx2.RequestError) -> PluginDaemonUnavailableError:
    failure = transport_failure(error, _PEER)
    reason: str = TIMEOUT if failure.timed_out else UNREACHABLE
    if failure.reason is TransportReason.POOL_EXHAUSTED:
        reason = failure.reason
    return PluginDaemonUnavailableError(f"A plugin tool could not be called: {failure.message}.", reason=reason)
