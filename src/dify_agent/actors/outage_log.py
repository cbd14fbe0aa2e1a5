"""What a service says while it repeats what the store does not answer or cannot read: at once, then seldom, and when it
is over."""

from collections.abc import Mapping
from typing import Final

import structlog
import trio

from dify_agent.store.base import KeyUnreadableError

AGAIN_SECONDS: Final = 10.0
"""Between two lines about the same outage."""
UNREADABLE_AGAIN_SECONDS: Final = 60.0
"""Between two lines about the same key that cannot be read: it stays so until somebody mends it."""

_log = structlog.get_logger()


class OutageLog:
    """The lines about one thing that cannot be done while the store is away."""

    def __init__(self, failing: str, over: str, **facts: str) -> None:
        """
        Args:
            failing: the line while it lasts.
            over: the line when it has ended.
            facts: members of both.
        """
        self._failing = failing
        self._over = over
        self._facts: Mapping[str, str] = facts
        self._since: float | None = None
        self._said_at = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def failed(self, cause: str, **members: str) -> None:
        """A try has failed."""
        now = trio.current_time()
        if self._since is None:
            self._since = now
        elif now - self._said_at < AGAIN_SECONDS:
            return
        self._said_at = now
        _log.warning(self._failing, **self._facts, cause=cause, seconds=round(now - self._since, 1), **members)

    def succeeded(self) -> None:
        """A try has succeeded."""
        if self._since is not None:
            _log.info(self._over, **self._facts, seconds=round(trio.current_time() - self._since, 1))
            self._since = None


class UnreadableLog:
    """The lines about keys of this replica that another program has written."""

    def __init__(self, **facts: str) -> None:
        """
        Args:
            facts: members of every line.
        """
        self._facts: Mapping[str, str] = facts
        self._said_at: dict[str, float] = {}

    def tell(self, error: KeyUnreadableError, *, meaning: str) -> None:
        """The key was met, once more perhaps. ``meaning`` is what does not work until it is deleted."""
        now = trio.current_time()
        if now - self._said_at.get(error.key, -UNREADABLE_AGAIN_SECONDS) >= UNREADABLE_AGAIN_SECONDS:
            self._said_at[error.key] = now
            event = "a key of this replica cannot be read, it is left alone"
            _log.error(event, **self._facts, key=error.key, why=str(error), meaning=meaning)
