"""The store's edge: which faults of Redis mean 'unavailable now', by table. Nothing above the edge knows coredis."""

import trio
from coredis import exceptions as coredis_errors

from dify_agent.concurrency.groups import holds_cancelled, leaves
from dify_agent.errors import StoreUnavailableError
from dify_agent.store.advice import advice_on, missing_database
from dify_agent.store.urls import StoreUrl

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
    root = _root(found[0])
    return StoreUnavailableError(_described(found[0], root), sent=sent, advice=advice_on(root))


def translate_setup(error: Exception, url: StoreUrl | None) -> Exception:
    """As `translate`, for what a connection to ``url`` met before it could be used. Nothing was sent.

    A server's reply that refuses it (to HELLO, AUTH or SELECT, say) is the operator's to mend like a server that is
    down, never a programming error: all that we say here comes from the URL.
    """
    if holds_cancelled(error) or isinstance(error, StoreUnavailableError):
        return error
    found = list(leaves(error))
    if not all(_passing(leaf) or isinstance(leaf, coredis_errors.RedisError) for leaf in found):
        return error
    root = _root(found[0])
    cause = missing_database(root, url) or _described(found[0], root)
    return StoreUnavailableError(cause, sent=False, advice=advice_on(root, url, setup=True))


def _root(error: BaseException) -> BaseException:
    """What is at the root: that a connection failed says nothing of the certificate that was refused."""
    for _ in range(_MAX_CHAIN):
        if error.__cause__ is None:
            break
        error = next(iter(leaves(error.__cause__)))
    return error


def _described(error: BaseException, root: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if root is not error:
        text += f" ({type(root).__name__}: {root})"
    return text[:_MAX_CAUSE]


def is_wrong_type(error: object) -> bool:
    """Whether this says that a key holds another type than the command, or a command of the script, is for."""
    return isinstance(error, coredis_errors.WrongTypeError) or (
        isinstance(error, coredis_errors.ResponseError) and "WRONGTYPE" in str(error)
    )


def _passing(error: BaseException) -> bool:
    if isinstance(error, _PASSING_TYPES):
        return True
    return isinstance(error, coredis_errors.ResponseError) and str(error).split(" ", 1)[0] in _PASSING_CODES
