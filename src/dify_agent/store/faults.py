"""The store's edge: which faults of Redis mean 'unavailable now', by table. Nothing above the edge knows coredis."""

import trio
from coredis import exceptions as coredis_errors

from dify_agent.concurrency.groups import holds_cancelled, leaves
from dify_agent.errors import StoreUnavailableError

_PASSING_TYPES = (
    coredis_errors.ConnectionError,  # includes LOADING and "max number of clients reached"
    coredis_errors.ReadOnlyError,
    coredis_errors.ClusterDownError,
    coredis_errors.TryAgainError,
    coredis_errors.AskError,  # and MOVED: a cluster that was reached by the URL of one server
    coredis_errors.UnblockedError,
    coredis_errors.ExecAbortError,
    coredis_errors.AuthenticationError,  # a rotated password: the operator's to mend, not the run's fault
    coredis_errors.AuthorizationError,
    coredis_errors.InvalidResponse,  # what answers is no Redis, or a proxy's error page
    OSError,  # includes TimeoutError
    trio.TooSlowError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)
_PASSING_CODES = ("OOM", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "LOADING", "READONLY", "UNKILLABLE", "BUSYKEY")
_MAX_CAUSE = 300
_MAX_CHAIN = 10


def translate(error: Exception, *, sent: bool = True) -> Exception:
    """The domain error for a fault that may pass, else ``error`` itself: a programming error stays one.

    ``sent`` is what the domain error says of the operation: False when the fault came before any of it was sent.

    The cause's text comes from the server or the operating system and never holds a credential; commands, whose
    arguments could, are not part of it.
    """
    if holds_cancelled(error) or isinstance(error, StoreUnavailableError):
        return error
    found = list(leaves(error))
    if not all(_passing(leaf) for leaf in found):
        return error
    return StoreUnavailableError(_described(found[0])[:_MAX_CAUSE], sent=sent)


def _described(error: BaseException) -> str:
    """With what is at the root of it: that a connection failed says nothing of the certificate that was refused."""
    root = error
    for _ in range(_MAX_CHAIN):
        if root.__cause__ is None:
            break
        root = next(iter(leaves(root.__cause__)))
    text = f"{type(error).__name__}: {error}"
    return text if root is error else f"{text} ({type(root).__name__}: {root})"


def _passing(error: BaseException) -> bool:
    if isinstance(error, _PASSING_TYPES):
        return True
    return isinstance(error, coredis_errors.ResponseError) and str(error).split(" ", 1)[0] in _PASSING_CODES
