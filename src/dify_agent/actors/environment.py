"""What every run actor of a process is given: collaborators and bounds, built once by the composition root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from agenton.compositor import LayerProvider
from dify_agent.actors.publisher import Publisher
from dify_agent.events.flusher import FlushTimer
from dify_agent.metrics import Metrics
from dify_agent.store.base import Owner, RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """How long each phase of a run may take, in seconds; each is the setting of the same name."""

    enter_timeout_seconds: float
    run_timeout_seconds: float
    exit_timeout_seconds: float
    finalize_timeout_seconds: float
    cancel_timeout_seconds: float

    @property
    def thread_grace_seconds(self) -> float:
        """How long a cancelled sync tool's thread is waited for: less than the actor waits for the work as a whole,
        or the run would be cut before its layers have left."""
        return self.cancel_timeout_seconds * 0.8

    @property
    def last_word_seconds(self) -> float:
        """From a cancellation that ignores all of this to the terminal event: stop, leave the layers, write."""
        return self.cancel_timeout_seconds + self.exit_timeout_seconds + self.finalize_timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescingPolicy:
    """How text deltas are merged before they are published (protocol 4.2)."""

    enabled: bool
    interval_seconds: float
    max_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """The run actor's world."""

    store: RunStore
    owner: Owner
    publisher: Publisher
    flush_timer: FlushTimer
    providers: Sequence[LayerProvider[Any]]
    bounds: RunBounds
    coalescing: CoalescingPolicy
    tool_concurrency: int
    tool_threads: trio.CapacityLimiter
    on_finished: Callable[[str], None]
    """Called by the run's actor, with the run id, once nothing of the run is left to do."""
    metrics: Metrics = field(default_factory=Metrics)
