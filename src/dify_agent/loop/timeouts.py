"""The settings ``request_timeout`` and ``first_event_timeout``, which model adapters leave to their caller."""

import math
from dataclasses import dataclass, field
from typing import Self

import trio
from pydantic_ai.exceptions import ModelRequestTimeout
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings


@dataclass(slots=True)
class RequestTimeouts:
    """Deadlines of one model request, in seconds of Trio's clock.

    They bound the waits for the provider, not the sink: the clock runs on while the sink works, but the sink is not
    cancelled.
    """

    model_name: str
    request_timeout: float | None
    first_event_timeout: float | None
    request_deadline: float = math.inf
    first_event_deadline: float = math.inf
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @classmethod
    def start(cls, model: Model, settings: ModelSettings | None) -> Self:
        """Deadlines that begin now; without the settings, ones that never pass."""
        request = settings.get("request_timeout") if settings else None
        first = settings.get("first_event_timeout") if settings else None
        timeouts = cls(model.model_name, request, first)
        if request is not None:
            timeouts.request_deadline = trio.current_time() + request
        if first is not None:
            timeouts.first_event_deadline = trio.current_time() + first
        timeouts.resume_at(min(timeouts.request_deadline, timeouts.first_event_deadline))
        return timeouts

    def pause(self) -> None:
        """An event arrived: nothing is cancelled until `resume`."""
        if self.scope.deadline != math.inf:
            self.first_event_deadline = math.inf
            self.scope.deadline = math.inf

    def resume(self) -> None:
        """The next event is waited for."""
        self.resume_at(self.request_deadline)

    def resume_at(self, deadline: float) -> None:
        """Cancel the wait at ``deadline``."""
        if deadline != math.inf:
            self.scope.deadline = deadline

    def check(self) -> None:
        """Say that a deadline passed.

        Raises:
            ModelRequestTimeout: one did; it names the setting.
        """
        if not self.scope.cancelled_caught:
            return
        if self.first_event_deadline < self.request_deadline and self.first_event_timeout is not None:
            raise ModelRequestTimeout(self.model_name, self.first_event_timeout, setting="first_event_timeout")
        raise ModelRequestTimeout(self.model_name, self.request_timeout or 0.0)
