"""What the HTTP front needs to know. Filled from `DIFY_AGENT_*` by the composition root."""

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the app and of the server under it. All times are seconds."""

    api_token: str | None = None
    """Bearer token of the control plane. Unset or blank: every request is let through (decision D9)."""
    max_request_body_bytes: int = 64 * MEBIBYTE
    body_timeout_seconds: float = 60.0
    """How long a request body may take to arrive; then 408."""
    heartbeat_seconds: float = 15.0
    """Silence on an event stream after which a comment is sent (protocol 4.6), and the interval of WebSocket pings."""
    stream_stall_seconds: float = 30.0
    """A reader that takes nothing for so long is closed."""
    keep_alive_seconds: float = 75.0
    """Life of an idle connection. Above the 60 s after which common proxies drop theirs, so that the proxy, which knows
    whether it is about to send, is the one that closes."""
    allowed_origins: tuple[str, ...] = ()
    """Origins besides the server's own whose pages may open a WebSocket when there is a token."""
    graceful_seconds: float = 3.0
    """How long responses may go on after the server was told to stop; then their connections are closed."""

    @property
    def token(self) -> str | None:
        """The token to compare with, or None when the control plane is open."""
        return (self.api_token or "").strip() or None
