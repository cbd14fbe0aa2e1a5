"""What a run actor needs of the agent loop, and what layers must supply to it.

The vocabulary is Pydantic AI's: models, messages, tools, usage and stream events. The loop adds one call,
`run_agent_loop` (in ``loop.run``), that has this module's types in its signature.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import trio
from pydantic import JsonValue, TypeAdapter
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.usage import RunUsage

from dify_agent.protocol.schemas import AgentRunUsage, DeferredToolCallPayload

EventSink = Callable[[AgentStreamEvent], Awaitable[None]]
"""Takes each event in order, from the loop's own task. May wait (backpressure) and may raise (the run then ends with
it).

The event may share its part object with the stream: a sink that keeps an event past its return copies or serialises
it."""

OUTPUT_TOOL_NAME = "final_output"
DEFAULT_REQUEST_LIMIT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputContract:
    """Structured output: the run ends with an accepted call of the tool ``final_output``."""

    json_schema: Mapping[str, Any]
    """The schema the model sees: an object schema, ``title`` is ``final_output``, without ``description``."""
    validator: TypeAdapter[Any]
    """Validates the arguments, by ``validate_json`` or ``validate_python``."""
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRequest:
    """Everything one run of the loop is given. Times are seconds."""

    model: Model
    history: Sequence[ModelMessage] = ()
    prompt: str | Sequence[UserContent] | None = None
    deferred_results: DeferredToolResults | None = None
    instructions: Sequence[str] = ()
    """System prompts, one per fragment, blank ones already dropped."""
    tools: Sequence[Tool[Any]] = ()
    """Function tools, and external ones (whose ``prepare`` yields ``kind='external'``)."""
    output: OutputContract | None = None
    """None: the run's output is text."""
    allow_deferred: bool = False
    model_settings: ModelSettings | None = None
    context_budget: int | None = None
    """Tokens that the history may be estimated at before it is compacted; None: it never is."""
    request_limit: int = DEFAULT_REQUEST_LIMIT
    tool_concurrency: int = 16
    tool_threads: trio.CapacityLimiter | None = None
    """Process-wide limit of worker threads for sync tools; None: Trio's default limiter."""
    cancel_timeout: float = 10.0
    """How long a cancelled sync tool's thread is waited for before it is abandoned (``CANCEL_TIMEOUT_SECONDS``)."""


@dataclass(slots=True)
class Capture:
    """What the loop has produced so far. Filled in place, so that it is whole at every ending, cancelled or not."""

    messages: list[ModelMessage] = field(default_factory=list)
    """History given plus everything added. Empty: the loop never bound any messages."""
    usage: RunUsage = field(default_factory=RunUsage)
    report: "UsageReport | None" = None
    """The run's model, if it knows what its requests cost."""


LoopResult = str | JsonValue | DeferredToolRequests
"""Text, the accepted structured output (a JSON object), or the calls left for the outside."""


PortT = TypeVar("PortT")

_kinds: "WeakKeyDictionary[type, dict[type, bool]]" = WeakKeyDictionary()


def provides(layer: object, port: type[PortT]) -> TypeGuard[PortT]:
    """``isinstance`` for layers and the protocols below, each type of layers looked at once: that check costs 10 µs and
    more on Python 3.11, and a run asks it of every layer. Not for models: a wrapper has what the model inside it has,
    so there one answer does not hold for the type."""
    known = _kinds.setdefault(type(layer), {})
    if port not in known:
        known[port] = isinstance(layer, port)
    return known[port]


@runtime_checkable
class ModelLayer(Protocol):
    """A layer that can be the run's ``llm``."""

    def get_model(self, run_id: str) -> Model:
        """The model to drive, owned by whoever built it. Called once per run; ``run_id`` is the server's.

        Raises:
            ValueError, RuntimeError, TypeError, KeyError: the configuration cannot be served; the run fails with the
                text.
        """

    def get_model_settings(self) -> ModelSettings | None:
        """Settings to send with each request."""


@runtime_checkable
class ContextBudgetLayer(Protocol):
    """A model layer that knows how much its model can read."""

    def get_context_budget(self) -> int | None:
        """Tokens for the history, the answer's already taken off; None when it is not known.

        Raises:
            ValueError: nothing is left for the history; the run fails with the text.
        """


@runtime_checkable
class UsageReport(Protocol):
    """A model that knows what its requests cost better than token counts say."""

    def total_usage(self) -> AgentRunUsage | None:
        """Of all requests that this model object has completed; None before the first."""


@runtime_checkable
class OutputLayer(Protocol):
    """A layer that fixes the run's structured output."""

    def output_contract(self) -> OutputContract: ...


@runtime_checkable
class HumanLayer(Protocol):
    """A layer whose tool asks a human: its call ends the run, and the next run brings the answer."""

    @property
    def enabled(self) -> bool:
        """Whether the layer offers its tool in this run."""

    def deferred_call(self, requests: DeferredToolRequests) -> DeferredToolCallPayload:
        """The one call that the run ends with, its arguments complete.

        Raises:
            ValueError: the calls are not exactly one call of the layer's tool; the run fails with the text.
        """
