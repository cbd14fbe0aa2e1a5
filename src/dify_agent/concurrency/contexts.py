"""Context variables of tasks that outlive whoever starts them."""

from contextvars import Context

import trio


def forget_starter() -> None:
    """Give the current task an empty context, from its next checkpoint on. Call it first of all.

    A task inherits the context variables of the one that starts it, and keeps them for as long as it lives: one that is
    started on behalf of a request and stays would keep that request with its body and its token, and one that is
    started by a run would speak of that run in its log lines for ever. ``nursery.start`` has no parameter for this;
    Trio runs each step of a task in its documented ``Task.context``.
    """
    trio.lowlevel.current_task().context = Context()
