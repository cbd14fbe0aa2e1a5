"""What a run has cost (protocol 2.9)."""

import math
from decimal import Decimal
from typing import Any, Final, Self

from pydantic import model_validator

from dify_agent.protocol.wire import WireModel

_ZERO = Decimal(0)
MAX_TOKENS: Final = 2**53 - 1
"""Of one call and of a run: what every reader of JSON takes as it is. A count beyond it is no count."""


def is_token_count(value: Any) -> bool:
    """Whether ``value`` can be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


def bounded_tokens(value: Any) -> int:
    """A number of tokens that somebody else has counted, as near as a terminal event can have it."""
    if isinstance(value, float):
        value = 0 if math.isnan(value) else int(max(0.0, min(value, float(MAX_TOKENS))))
    return max(0, min(value, MAX_TOKENS)) if isinstance(value, int) else 0


class AgentRunUsage(WireModel):
    """Tokens and prices over all model requests of a run. Decimals are JSON strings (quirk Q12), times seconds."""

    prompt_tokens: int = 0
    prompt_unit_price: Decimal = _ZERO
    prompt_price_unit: Decimal = _ZERO
    prompt_price: Decimal = _ZERO
    completion_tokens: int = 0
    completion_unit_price: Decimal = _ZERO
    completion_price_unit: Decimal = _ZERO
    completion_price: Decimal = _ZERO
    total_tokens: int = 0
    """Filled with the sum of both counts when it is zero and one of them is positive."""
    total_price: Decimal = _ZERO
    currency: str = "USD"
    latency: float = 0.0
    time_to_first_token: float | None = None
    time_to_generate: float | None = None

    @model_validator(mode="after")
    def _fill_total_tokens(self) -> Self:
        if self.total_tokens == 0 and (self.prompt_tokens > 0 or self.completion_tokens > 0):
            self.total_tokens = self.prompt_tokens + self.completion_tokens
        return self
