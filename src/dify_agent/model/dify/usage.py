"""What Dify says a call has cost, and the sum over a run's calls (integrations 3.6).

The numbers are a plugin's, and a run's ending must be one that can be stored. So each has bounds, far beyond what a
call can cost and far below what breaks a sum or a reader of JSON: a call that reports another number has an answer that
cannot be read. The sum stays inside the same bounds.
"""

from decimal import Decimal
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.usage import RequestUsage

from dify_agent.model.dify.chunks import MalformedLineError
from dify_agent.protocol.usage import AgentRunUsage, bounded_tokens, is_token_count

MAX_PRICE: Final = Decimal(10**15)
MAX_PRICE_PLACES: Final = 60
"""Digits behind the point, and digits at all: twice what Python calculates with."""
MAX_SECONDS: Final = 1e9
MAX_CURRENCY: Final = 64
"""Characters."""

_MEMBERS: Final = frozenset(AgentRunUsage.model_fields)
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_PRICES: Final = ("prompt_price", "completion_price", "total_price")
_UNIT_PRICES: Final = (
    "prompt_unit_price",
    "prompt_price_unit",
    "completion_unit_price",
    "completion_price_unit",
)
_TIMES: Final = ("latency", "time_to_first_token", "time_to_generate")


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
        MalformedLineError: a member has the wrong type, or is out of its bounds.
    """
    known = {name: value for name, value in usage.items() if name in _MEMBERS and value is not None}
    try:
        checked = AgentRunUsage.model_validate(known)
    except ValidationError as error:
        raise _unusable({str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}) from None
    wrong = {name for name in _TOKENS if not is_token_count(getattr(checked, name))}
    wrong |= {name for name in (*_PRICES, *_UNIT_PRICES) if not _is_price(getattr(checked, name))}
    wrong |= {name for name in _TIMES if not 0 <= (getattr(checked, name) or 0.0) <= MAX_SECONDS}
    if len(checked.currency) > MAX_CURRENCY:
        wrong.add("currency")
    if wrong:
        raise _unusable(wrong)
    return checked


def add_usage(total: AgentRunUsage | None, call: AgentRunUsage) -> AgentRunUsage:
    """The total with one more call: tokens, prices and latency are summed, the rest is the newest.

    A total without tokens is replaced.
    """
    if total is None or total.total_tokens == 0:
        return call
    sums: dict[str, Any] = {name: bounded_tokens(getattr(total, name) + getattr(call, name)) for name in _TOKENS}
    sums |= {name: min(getattr(total, name) + getattr(call, name), MAX_PRICE) for name in _PRICES}
    sums["latency"] = min(total.latency + call.latency, MAX_SECONDS)
    return call.model_copy(update=sums)


def _count(value: Any) -> int:
    """A count of an answer that may not be over: what cannot be one is found at its end."""
    return value if is_token_count(value) else 0


def _is_price(price: Decimal) -> bool:
    _, digits, exponent = price.as_tuple()
    # The digits first: comparing reads them all.
    return (
        isinstance(exponent, int)
        and abs(exponent) <= MAX_PRICE_PLACES
        and len(digits) <= MAX_PRICE_PLACES
        and 0 <= price <= MAX_PRICE
    )


def _unusable(names: set[str]) -> MalformedLineError:
    return MalformedLineError(f"data.delta.usage has unusable members: {', '.join(sorted(names))}")
