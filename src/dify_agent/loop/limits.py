"""How much one response may ask for, and what it may say that it has cost."""

from dataclasses import replace
from typing import Any, Final

from pydantic_ai.usage import RequestUsage, RunUsage

from dify_agent.errors import Reason, RunFailedError
from dify_agent.loop.texts import too_many_calls
from dify_agent.protocol.usage import bounded_tokens, is_token_count

MAX_CALLS: Final = 1000
"""Tool calls of one response. Ten times what models make at once on purpose; each costs two events, a place in the
history that every later request repeats, and a text of up to some thousand characters for a name that does not exist.
A model that repeats itself reaches it, and then no call of the response is worth executing."""


def refuse_too_many(calls: int) -> None:
    """Check the number of tool calls of one response.

    Raises:
        RunFailedError: there are more than `MAX_CALLS`.
    """
    if calls > MAX_CALLS:
        raise RunFailedError(too_many_calls(MAX_CALLS), reason=Reason.TOO_MANY_TOOL_CALLS)


def storable_usage(usage: RequestUsage) -> RequestUsage:
    """The usage of a response with counts that every reader of its run's history takes.

    Adapters hand on what a provider says, whatever its size; the sum of two numbers that JSON can just hold is one that
    it cannot.
    """
    counts: dict[str, Any] = _mended(vars(usage))
    details = _mended(usage.details)
    if not counts and not details:
        return usage
    return replace(usage, **counts, details={**usage.details, **details})


def _mended(counts: dict[str, Any]) -> dict[str, int]:
    return {
        name: bounded_tokens(count)
        for name, count in counts.items()
        if isinstance(count, int | float) and not is_token_count(count)
    }


def add_usage(total: RunUsage, usage: RequestUsage) -> None:
    """Add the usage of a response to the run's."""
    try:
        total.incr(usage)
    except ArithmeticError:  # of the costs, which come last
        total.cost = None
