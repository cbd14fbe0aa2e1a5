"""The only place that flattens exception groups.

Trio's groups are strict. A few of our APIs promise a single error, because the wire has room for one; they call
``first_error``. Everything else lets nested groups through.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Every error that is not a group, depth first, in the order the groups hold them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def first_error(error: BaseException) -> BaseException:
    """The error to report for ``error``: its first leaf that is not a cancellation, else its first leaf.

    A group is left as the context, so a traceback still shows all of it.
    """
    found = list(leaves(error))
    for leaf in found:
        if not isinstance(leaf, trio.Cancelled):
            return leaf
    return found[0]


def holds_cancelled(error: BaseException) -> bool:
    """Whether a ``trio.Cancelled`` is among the leaves."""
    return any(isinstance(leaf, trio.Cancelled) for leaf in leaves(error))


@contextmanager
def plain_cancellation() -> Iterator[None]:
    """Put around a nursery that is nobody's business: cancelled, it raises one `trio.Cancelled` and no group of them.

    A caller that has something to do when it is cancelled writes ``except trio.Cancelled``, and no group is caught by
    that. A group that holds anything else is let through.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        found = list(leaves(group))
        if all(isinstance(leaf, trio.Cancelled) for leaf in found):
            raise found[0] from None
        raise


def must_leave(error: BaseException) -> bool:
    """Whether ``error`` must keep travelling up: a cancellation, a Ctrl-C or a generator's end is among its leaves.

    Other errors that are no ``Exception`` (``SystemExit``, a foreign loop's cancellation) are somebody's mistake, to be
    contained where an ``Exception`` would be.
    """
    return any(isinstance(leaf, trio.Cancelled | KeyboardInterrupt | GeneratorExit) for leaf in leaves(error))
