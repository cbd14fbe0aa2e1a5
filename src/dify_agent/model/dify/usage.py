"""What Dify says a call has cost, and the sum over a run's calls (integrations 3.6)."""

import math
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.usage import RequestUsage

from dify_agent.model.dify.chunks import MalformedLineError
from dify_agent.protocol.usage import AgentRunUsage

_MEMBERS: Final = frozenset(AgentRunUsage.model_fields)
_SUMMED: Final = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_price",
    "completion_price",
    "total_price",
    "latency",
)


def request_usage(usage: dict[str, Any] | None) -> RequestUsage:
    """The token counts of one call in Pydantic AI's form; zero where the provider has said nothing."""
    if usage is None:
        return RequestUsage()
    return RequestUsage(
        input_tokens=_count(usage.get("prompt_tokens")), output_tokens=_count(usage.get("completion_tokens"))
    )


def call_usage(usage: dict[str, Any]) -> AgentRunUsage:
    """The usage of one call. Unknown members are ignored, null ones take their default.

    Raises:
        MalformedLineError: a member has the wrong type.
    """
    known = {name: value for name, value in usage.items() if name in _MEMBERS and value is not None}
    try:
        checked = AgentRunUsage.model_validate(known)
    except ValidationError as error:
        names = ", ".join(sorted({str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}))
        raise MalformedLineError(f"data.delta.usage has unusable members: {names}") from None
    if not all(math.isfinite(seconds or 0.0) for seconds in _times(checked)):
        raise MalformedLineError("data.delta.usage has a time that is not finite")
    return checked


def add_usage(total: AgentRunUsage | None, call: AgentRunUsage) -> AgentRunUsage:
    """The total with one more call: tokens, prices and latency are summed, the rest is the newest.

    A total without tokens is replaced.
    """
    if total is None or total.total_tokens == 0:
        return call
    return call.model_copy(update={name: getattr(total, name) + getattr(call, name) for name in _SUMMED})


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _times(usage: AgentRunUsage) -> tuple[float | None, ...]:
    return usage.latency, usage.time_to_first_token, usage.time_to_generate
