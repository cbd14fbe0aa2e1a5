"""A store whose operations are timed."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import trio

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import RunStore

Observe = Callable[[str, str, float], None]
"""Takes an operation's name, its outcome (``ok``, ``unavailable``, ``refused``, ``cancelled``) and its seconds."""

_WAITING: Final = frozenset({"read_inbox", "read_tails"})
"""They wait for others on purpose: their time says nothing of the store."""


def metered(store: RunStore, observe: Observe) -> RunStore:
    """``store`` with every operation timed, except those that wait for events."""
    return cast("RunStore", _MeteredStore(store, observe))


class _MeteredStore:
    def __init__(self, store: RunStore, observe: Observe) -> None:
        self._store = store
        self._observe = observe

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        operation = cast("Callable[..., Awaitable[Any]]", getattr(self._store, name))
        return operation if name in _WAITING else partial(self._timed, name, operation)

    async def _timed(self, name: str, operation: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        began, outcome = trio.current_time(), "cancelled"
        try:
            result = await operation(*args, **kwargs)
            outcome = "ok"
        except StoreUnavailableError:
            outcome = "unavailable"
            raise
        except Exception:
            outcome = "refused"
            raise
        finally:
            self._observe(name, outcome, trio.current_time() - began)
        return result
