"""Calls of plugin tools at the plugin daemon (specification: integrations 4.3, 4.4, framing 3.6). Never repeated."""

from typing import Any, Final

import httpx2
import trio
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.replies import MAX_ERROR_CHARS, innermost_error, json_object
from dify_agent.backends.transport import (
    PLUGIN_DAEMON,
    OutboundHttp,
    TransportReason,
    plugin_header,
    tenant_segment,
    transport_failure,
)
from dify_agent.errors import DifyAgentError, NamesSetting, RunFailedError
from dify_agent.layers.dify_plugin.messages import Observation
from dify_agent.layers.inner_api import brief
from dify_agent.layers.outbound_call import MAX_REPLY_VALUES, Reply, posted
from dify_agent.model.dify.lines import LineSplitter, payload
from dify_agent.protocol.separators import has_more_separators

MAX_LINE_BYTES: Final = 8 << 20
"""Of one item of a reply. More than a line of a model's answer may have: a tool says its text, its JSON or a small file
in one item (larger files come in chunks of 8 KiB), and its result is read whole by the model anyway."""
MAX_REPLY_BYTES: Final = 256 << 20
"""Of one reply, the base64 of several files of 30 MiB included."""
_LINE_BYTES: Final = 64
"""Of a line beside its characters: what an empty one costs to look at."""
_LINES_PER_TURN: Final = 64
"""An item costs some 20 µs, and a read can hold as many lines as bytes."""

UNREACHABLE: Final = "plugin_daemon_unreachable"
"""``run_failed.data.reason``: refused, reset, or closed in the middle of a reply."""
TIMEOUT: Final = "plugin_daemon_timeout"
"""``run_failed.data.reason``: one of ``DIFY_AGENT_OUTBOUND_HTTP_{CONNECT,READ,WRITE}_TIMEOUT`` ran out; the text names
it. A connection that the pool did not give in time is ``outbound_pool_exhausted``, as for models."""


class PluginDaemonUnavailableError(RunFailedError):
    """The plugin daemon could not be asked, or did not answer to the end: the run fails."""


class PluginDaemonError(DifyAgentError, NamesSetting):
    """The plugin daemon, or the plugin behind it, answered with an error."""

    def __init__(self, message: str, *, error_type: str | None, status: int | None, setting: str | None = None) -> None:
        super().__init__(message[:MAX_ERROR_CHARS])
        self.setting = setting
        self.error_type = error_type
        """Class name of the innermost error, if the daemon named one."""
        self.status = status
        """HTTP status; for an error inside a stream the one that its code stands for."""


class ForeignReplyError(ValueError, NamesSetting):
    """The reply is not the plugin daemon's: a page of another program, say."""

    setting = PLUGIN_DAEMON.url_setting


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, strict=True)

    code: int
    message: str | None = None
    data: Any = None


async def invoke_tool(
    outbound: OutboundHttp, *, tenant_id: str, plugin_id: str, content: bytes, redactor: Redactor
) -> str:
    """POST ``content``, a JSON body, and gather the whole reply into the text that the model reads.

    The text holds no key of a service; errors hold nothing that ``redactor`` knows, which is more.

    Raises:
        PluginDaemonError: the daemon or the plugin refused or failed.
        ValueError: the reply is malformed or too large, or tenant or plugin cannot stand in the request.
        PluginDaemonUnavailableError: the transport failed.
    """
    url = f"{outbound.daemon_url}/plugin/{tenant_segment(tenant_id)}/dispatch/tool/invoke"
    try:
        async with posted(outbound.daemon, url, content, plugin_header(plugin_id)) as reply:
            if reply.is_success:
                return outbound.redactor.redact(await _gathered(reply, redactor))
            body = await reply.read_error()
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        setting = PLUGIN_DAEMON.url_setting
        text = f"A plugin tool could not be called: {error} Check {setting}"
        raise PluginDaemonUnavailableError(text, reason=UNREACHABLE, setting=setting) from error
    except httpx2.RequestError as error:
        raise _unread(error) from error
    raise http_error(reply.status, body.decode(errors="replace"), redactor)


def http_error(status: int, body: str, redactor: Redactor) -> PluginDaemonError:
    """The error in an HTTP answer: ``{"error_type", "message"}``, the same as text in ``message`` of an envelope
    ``{"code", "message"}``, or the body as it is."""
    error_type, message = _kind_and_text(body)
    envelope = json_object(body)
    if error_type is None and envelope is not None:
        inner = envelope.get("message")
        if isinstance(inner, str) and inner:
            error_type, message = _kind_and_text(inner)
    setting = PLUGIN_DAEMON.setting_to_check(status, error_type, is_object=envelope is not None)
    text = redactor.redact_error(message).strip() or f"HTTP {status} without a text"
    return PluginDaemonError(text, error_type=error_type, status=status, setting=setting)


def _stream_error(code: int, text: str, redactor: Redactor) -> PluginDaemonError:
    """The error in an item: its code is the negative of an HTTP status."""
    error_type, message = _kind_and_text(text)
    shown = redactor.redact_error(message).strip() or f"error {code}"
    return PluginDaemonError(shown, error_type=error_type, status=abs(code))


async def _gathered(reply: Reply, redactor: Redactor) -> str:
    observation = Observation()
    lines = LineSplitter(MAX_LINE_BYTES)
    size = 0
    async for chunk in reply.chunks:
        completed = lines.feed(chunk)
        size += len(chunk) + _LINE_BYTES * len(completed)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"the tool's reply is larger than {MAX_REPLY_BYTES} bytes")
        for number, line in enumerate(completed, 1):
            _take(observation, payload(line), redactor)
            if number % _LINES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
    _take(observation, payload(lines.finish()), redactor)
    return observation.text()


def _take(observation: Observation, item: bytes, redactor: Redactor) -> None:
    if not item:
        return
    if has_more_separators(item, MAX_REPLY_VALUES):
        raise ValueError(f"the tool's reply has a line of more than {MAX_REPLY_VALUES} values")
    try:
        envelope = _Envelope.model_validate(from_json(item))
    except ValidationError as error:
        raise ValueError(f"the tool's reply has a line that is no item ({brief(error)})") from error
    except ValueError as error:
        kind = ValueError if item.startswith(b"{") else ForeignReplyError  # cut short, or of somebody else
        raise kind("the tool's reply has a line that is not JSON") from error
    if envelope.code != 0:
        raise _stream_error(envelope.code, envelope.message or "", redactor)
    if envelope.data is None:
        raise ValueError("the tool's reply has an item without data")
    observation.add(envelope.data)


def _kind_and_text(text: str) -> tuple[str | None, str]:
    """Type and message of the innermost error in ``text``; no type and all of it when it is no encoded error."""
    return innermost_error(text) or (None, text)


def _unread(error: httpx2.RequestError) -> PluginDaemonUnavailableError | ForeignReplyError:
    failure = transport_failure(error, PLUGIN_DAEMON)
    if failure.reason is TransportReason.ENCODED:
        return ForeignReplyError(f"the tool's reply cannot be read: {failure.message}")
    reason: str = TIMEOUT if failure.timed_out else UNREACHABLE
    if failure.reason is TransportReason.POOL_EXHAUSTED:
        reason = failure.reason
    text = f"A plugin tool could not be called: {failure.message}."
    return PluginDaemonUnavailableError(text, reason=reason, setting=failure.setting)
