"""Outbound HTTP of the process: one connection pool, one client per service, and words for what goes wrong there.

The pool is shared, so that ``DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS`` and ``..._MAX_KEEPALIVE_CONNECTIONS`` are
totals (decision R10). Timeouts are per wait: ``read`` bounds the silence between two pieces of an answer, not its sum.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

import httpx2
import trio

from dify_agent.backends.pool import NOT_ENCODED, EncodedAnswerError, GuardedTransport
from dify_agent.backends.redaction import Redactor

CLOSE_SECONDS: Final = 5.0
DAEMON_KEY_HEADER: Final = "X-Api-Key"
DIFY_API_KEY_HEADER: Final = "X-Inner-Api-Key"

_TOO_MANY_REQUESTS: Final = 429
_NOT_THERE: Final = frozenset({401, 403, 404, 405})
"""What any web server answers where the service is not: only the service's own form makes them its answer."""
_REFUSALS: Final = frozenset({401, 404})


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A service of Dify in an operator's words, with the variables that lead to it."""

    name: str
    url_setting: str
    wrong_key: tuple[int, str]
    """Status and kind of the answer to a wrong key."""
    wrong_key_setting: str
    """Variables to look at then."""
    url_hint: str = ""

    def setting_to_check(self, status: int, kind: str | None, *, is_object: bool) -> str | None:
        """Variables that an operator has to look at after an HTTP error; None when they are not the cause.

        Args:
            status: HTTP status.
            kind: the error's kind in the service's own form, None when the answer has not got it.
            is_object: whether the body is a JSON object: other programs' error pages are none.
        """
        if (status, kind) == self.wrong_key:
            return self.wrong_key_setting
        if kind is not None or status == _TOO_MANY_REQUESTS or (is_object and status not in _NOT_THERE):
            return None
        return self.url_setting

    def hint(self, status: int | None, setting: str | None) -> str:
        """What a text about a refusal (401, 404) that a setting can mend ends with; else nothing."""
        if setting is None or status not in _REFUSALS:
            return ""
        url_hint = self.url_hint if self.url_setting in setting else ""
        return f" (check {setting.replace(', ', ' and ')}{url_hint})"


DIFY_API: Final = Peer(
    name="the Dify API",
    url_setting="DIFY_AGENT_INNER_API_URL",
    # It answers so to a path that it has not got, too (integrations 0).
    wrong_key=(404, "not_found"),
    wrong_key_setting="DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL",
    url_hint=", the root without /inner/api",
)
PLUGIN_DAEMON: Final = Peer(
    name="the plugin daemon",
    url_setting="DIFY_AGENT_PLUGIN_DAEMON_URL",
    wrong_key=(401, "PluginDaemonUnauthorizedError"),
    wrong_key_setting="DIFY_AGENT_PLUGIN_DAEMON_API_KEY",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundOptions:
    """Values of ``DIFY_AGENT_OUTBOUND_HTTP_*``; times are seconds."""

    connect_timeout: float = 10.0
    read_timeout: float = 600.0
    write_timeout: float = 30.0
    pool_timeout: float = 10.0
    max_connections: int = 100
    max_keepalive_connections: int = 20
    keepalive_expiry: float = 30.0

    def timeout(self) -> httpx2.Timeout:
        """The four bounds of a request."""
        return httpx2.Timeout(
            connect=self.connect_timeout, read=self.read_timeout, write=self.write_timeout, pool=self.pool_timeout
        )

    def limits(self) -> httpx2.Limits:
        """The bounds of the pool."""
        return httpx2.Limits(
            max_connections=self.max_connections,
            max_keepalive_connections=self.max_keepalive_connections,
            keepalive_expiry=self.keepalive_expiry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundHttp:
    """The clients of the process, open for as long as `open_outbound` is. Borrowed by layers and models, closed by
    nobody else.

    ``daemon`` and ``dify_api`` send their key with every request, so they are asked for paths below their base URL
    only, never for an address that a caller or another service names. ``models`` sends none.
    """

    daemon: httpx2.AsyncClient
    daemon_url: str
    """Base URL of the plugin daemon, without a trailing slash."""
    dify_api: httpx2.AsyncClient
    dify_api_url: str
    """Root of the Dify API, without a trailing slash; ``/inner/api/...`` is under it."""
    models: httpx2.AsyncClient
    """For SDKs of model providers and for signed URLs."""
    redactor: Redactor
    """Takes both keys out of what the services say."""


@asynccontextmanager
async def open_outbound(
    *, daemon_url: str, daemon_api_key: str, dify_api_url: str, dify_api_key: str | None, options: OutboundOptions
) -> AsyncIterator[OutboundHttp]:
    """The process's outbound clients. HTTP/1.1, no redirects, no compression, no proxy from the environment, no
    retries.

    A key that is not set goes out as an empty header, which the services refuse (integrations 0). Closing waits at
    most `CLOSE_SECONDS`.

    Raises:
        ValueError: a key cannot stand in a header; the text does not show it.
    """
    daemon_headers = {DAEMON_KEY_HEADER: _header(daemon_api_key, "PLUGIN_DAEMON_API_KEY")}
    api_headers = {DIFY_API_KEY_HEADER: _header(dify_api_key or "", "INNER_API_KEY")}
    pool = GuardedTransport(options.limits())
    daemon, dify_api, models = (_client(pool, options, headers) for headers in (daemon_headers, api_headers, {}))
    try:
        yield OutboundHttp(
            daemon=daemon,
            daemon_url=daemon_url.rstrip("/"),
            dify_api=dify_api,
            dify_api_url=dify_api_url.rstrip("/"),
            models=models,
            redactor=Redactor([daemon_api_key, dify_api_key or ""]),
        )
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            for client in (daemon, dify_api, models):
                await client.aclose()
            await pool.aclose()


class _SharedPool(httpx2.AsyncBaseTransport):
    """The pool as one of its clients holds it: a client that is closed leaves it open."""

    def __init__(self, pool: GuardedTransport) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._pool.handle_async_request(request)


def _client(pool: GuardedTransport, options: OutboundOptions, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=_SharedPool(pool),
        headers={**NOT_ENCODED, **headers},
        timeout=options.timeout(),
        follow_redirects=False,
        trust_env=False,
    )


def _header(value: str, setting: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"DIFY_AGENT_{setting} must consist of printable ASCII characters: it is sent in a header")
    return value


class TransportReason(StrEnum):
    """What failed below HTTP. Values of ``run_failed.data.reason`` when a model request fails that way."""

    CONNECT_FAILED = "upstream_connect_failed"
    """Refused, unreachable, no such host, or no TLS: nothing was sent."""
    CONNECT_TIMEOUT = "upstream_connect_timeout"
    READ_TIMEOUT = "upstream_read_timeout"
    WRITE_TIMEOUT = "upstream_write_timeout"
    POOL_EXHAUSTED = "outbound_pool_exhausted"
    """All of this server's outbound connections were in use for too long: the service was not asked."""
    CONNECTION_LOST = "upstream_connection_lost"
    """Reset, or closed in the middle of an answer."""
    ENCODED = "upstream_malformed_answer"
    """Compressed, which was not asked for, so not read."""


_TIME_OUTS: Final = frozenset(
    {
        TransportReason.CONNECT_TIMEOUT,
        TransportReason.READ_TIMEOUT,
        TransportReason.WRITE_TIMEOUT,
        TransportReason.POOL_EXHAUSTED,
    }
)


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """A transport error in words. ``message`` holds no key, path or query string."""

    reason: TransportReason
    message: str
    setting: str | None = None
    """Variables that an operator has to look at, separated by ", "; None for a connection that was lost."""

    @property
    def timed_out(self) -> bool:
        """Whether it was one of our own time-outs (connect, read, write, pool)."""
        return self.reason in _TIME_OUTS


_TIMEOUTS: Final[tuple[tuple[type[httpx2.TimeoutException], TransportReason, str, str, str], ...]] = (
    (
        httpx2.ConnectTimeout,
        TransportReason.CONNECT_TIMEOUT,
        "connect",
        "no connection to {peer} within {seconds}. Check that it is reachable, or raise {setting}",
        "DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT",
    ),
    (
        httpx2.ReadTimeout,
        TransportReason.READ_TIMEOUT,
        "read",
        "{peer} was silent for {seconds}. Check that it is well, or raise {setting}",
        "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT",
    ),
    (
        httpx2.WriteTimeout,
        TransportReason.WRITE_TIMEOUT,
        "write",
        "{peer} took nothing for {seconds}. Check that it is well, or raise {setting}",
        "DIFY_AGENT_OUTBOUND_HTTP_WRITE_TIMEOUT",
    ),
    (
        httpx2.PoolTimeout,
        TransportReason.POOL_EXHAUSTED,
        "pool",
        "all outbound connections of this server were in use for {seconds}; {peer} was not asked. Try again later, "
        "or raise {setting}",
        "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS, DIFY_AGENT_OUTBOUND_HTTP_POOL_TIMEOUT",
    ),
)


def transport_failure(error: httpx2.RequestError, peer: Peer) -> TransportFailure:
    """What a failed request to ``peer`` came to.

    Its address is added. The library's own text is used for failed connections only (``Connection refused``): others
    may quote a header.
    """
    address = _address(error)
    named = f"{peer.name} ({address})" if address else peer.name
    for kind, reason, bound, text, setting in _TIMEOUTS:
        if isinstance(error, kind):
            raised = setting.replace(", ", " or ")
            message = text.format(peer=named, seconds=_seconds(error, bound), setting=raised)
            is_unreached = reason is TransportReason.CONNECT_TIMEOUT
            return TransportFailure(reason, message, f"{peer.url_setting}, {setting}" if is_unreached else setting)
    if isinstance(error, httpx2.ConnectError):
        text = f"no connection to {named}: {error}"
        return TransportFailure(TransportReason.CONNECT_FAILED, text, peer.url_setting)
    if isinstance(error, EncodedAnswerError):
        text = (
            f"{named} answered HTTP {error.status} with a Content-Encoding, although none was asked for, so the answer "
            f"was not read. Check that the address ({peer.url_setting}) leads to it, and that no proxy on the way "
            "compresses answers"
        )
        return TransportFailure(TransportReason.ENCODED, text, peer.url_setting)
    is_foreign = _is_foreign(error)
    what = "sent an answer that is not HTTP" if is_foreign else "broke the connection off"
    text = f"{named} {what} ({type(error).__name__})"
    return TransportFailure(TransportReason.CONNECTION_LOST, text, peer.url_setting if is_foreign else None)


def _is_foreign(error: httpx2.RequestError) -> bool:
    """Whether the peer's bytes were no HTTP. A body that ends early is a protocol error too, and is not that."""
    early = ("disconnected", "peer closed connection", "incomplete")
    return isinstance(error, httpx2.DecodingError) or (
        isinstance(error, httpx2.RemoteProtocolError) and not any(word in str(error) for word in early)
    )


def tenant_segment(tenant_id: str) -> str:
    """``tenant_id`` as one segment of the plugin daemon's paths.

    Raises:
        ValueError: it would be no segment of its own: a dot segment is resolved away, and the request would reach
            another path.
    """
    if tenant_id in ("", ".", ".."):
        raise ValueError(f"tenant_id {tenant_id!r} cannot stand in the plugin daemon's path")
    return quote(tenant_id, safe="")


def plugin_header(plugin_id: str) -> dict[str, str]:
    """The header that tells the plugin daemon which plugin is meant.

    Raises:
        ValueError: the id cannot stand in a header.
    """
    if not plugin_id.isascii() or not plugin_id.isprintable() or plugin_id != plugin_id.strip():
        raise ValueError("plugin_id must consist of printable ASCII characters, without a space at either end")
    return {"X-Plugin-ID": plugin_id}


def _address(error: httpx2.RequestError) -> str | None:
    try:
        url = error.request.url
    except RuntimeError:
        return None  # raised outside a request
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _seconds(error: httpx2.RequestError, bound: str) -> str:
    try:
        seconds = error.request.extensions.get("timeout", {}).get(bound)
    except RuntimeError:
        seconds = None
    return "too long" if seconds is None else f"{seconds:g} seconds"
