"""Plays a scenario on one side and records what came of it. The side itself is one function."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import TypeAdapter
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.usage import RunUsage

from tests.oracle.layers import human_layer
from tests.oracle.scenario import OutputSpec, Run, Scenario
from tests.oracle.scripted import TICK, ScriptedModel, build_tool

LIMIT_TICKS = 64 * 600
"""A scenario still running then is reported as stuck."""

_EVENTS: TypeAdapter[Any] = TypeAdapter(AgentStreamEvent)
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class SinkError(Exception):
    """Raised by the sink on purpose."""


@dataclass
class Setup:
    """What one run of a side is given, and what it fills in."""

    run: Run
    model: ScriptedModel
    tools: list[Tool[Any]]
    output: OutputSpec | None
    history: list[ModelMessage]
    results: DeferredToolResults | None
    allow_deferred: bool
    sink: Callable[[AgentStreamEvent], Awaitable[None]]
    messages: list[ModelMessage] = field(default_factory=list)
    usage: RunUsage = field(default_factory=RunUsage)


Perform = Callable[[Setup], Awaitable[Any]]
"""Runs the agent once: returns its output, leaves `Setup.messages` and `Setup.usage` filled at every ending."""


class Sink:
    """Records events as JSON at once, and interrupts where the run says so."""

    def __init__(self, run: Run, scope: anyio.CancelScope) -> None:
        self.events: list[Any] = []
        self._run = run
        self._scope = scope

    async def __call__(self, event: AgentStreamEvent) -> None:
        self.events.append(_EVENTS.dump_python(event, mode="json"))
        if len(self.events) == self._run.raise_event:
            raise SinkError(f"sink refused event {len(self.events)}")
        if len(self.events) == self._run.cancel_event:
            self._scope.cancel()
            await anyio.lowlevel.checkpoint()


def _public_cause(error: BaseException) -> str | None:
    """The class of ``__cause__``; ``*`` for one that is internal to its side."""
    if error.__cause__ is None:
        return None
    cause = type(error.__cause__)
    internal = cause.__qualname__.startswith("_") or cause.__module__.startswith("dify_agent")
    return "*" if internal or cause.__qualname__ in {"ToolRetryError", "ToolFailedError"} else cause.__qualname__


def _error(error: BaseException) -> dict[str, Any]:
    return {"error": type(error).__qualname__, "text": str(error), "cause": _public_cause(error)}


def _output(value: Any, human: Any) -> dict[str, Any]:
    if isinstance(value, DeferredToolRequests):
        return {"deferred": _ANY.dump_python(value, mode="json"), "question": _question(value, human)}
    return {"output": _ANY.dump_python(value, mode="json")}


def _stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history as it comes back from storage: through JSON, without instructions."""
    dumped = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    for message in dumped:
        if "instructions" in message:
            message["instructions"] = None
    return ModelMessagesTypeAdapter.validate_json(json.dumps(dumped))


def _question(requests: DeferredToolRequests, human: Any) -> Any:
    """What the run's caller gets to see of deferred calls, or why the run fails; None without an ask-human layer."""
    if human is None:
        return None
    try:
        return human.deferred_call(requests).model_dump(mode="json")
    except ValueError as error:
        return {"refused": str(error)}


async def _ending(setup: Setup, perform: Perform, scope: anyio.CancelScope, human: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {"cancelled": True}
    with scope:
        try:
            outcome = _output(await perform(setup), human)
        except Exception as error:
            outcome = _error(error)
        except BaseExceptionGroup as error:
            outcome = {"error": "BaseExceptionGroup", "text": str(error), "cause": None}
    return {"cancelled": True} if scope.cancelled_caught else outcome


class Player:
    """One scenario on one side."""

    def __init__(self, scenario: Scenario, perform: Perform) -> None:
        self._scenario = scenario
        self._perform = perform
        self._log: list[list[Any]] = []
        self._tools = {spec.name: build_tool(spec, self._log) for spec in scenario.tools}
        self._human = None if scenario.human is None else human_layer(scenario.human)
        self._kinds = {spec.name: spec.kind for spec in scenario.tools}

    async def play(self) -> list[dict[str, Any]]:
        """The record of each run, in order."""
        records: list[dict[str, Any]] = []
        history: list[ModelMessage] = []
        for run in self._scenario.runs:
            if run.history is not None:
                history = ModelMessagesTypeAdapter.validate_json(json.dumps(run.history))
            record, messages = await self._one(run, history)
            records.append(record)
            history = _stored(messages) if messages else history
        return records

    async def _one(self, run: Run, history: list[ModelMessage]) -> tuple[dict[str, Any], list[ModelMessage]]:
        first_log = len(self._log)
        started = anyio.current_time()
        scope = anyio.CancelScope(deadline=started + TICK * (run.deadline or LIMIT_TICKS))
        sink = Sink(run, scope)
        names = [name for name in self._tools if name not in run.without]
        deferred = any(self._kinds[name] in ("external", "human") for name in names)
        setup = Setup(
            run=run,
            model=ScriptedModel(run.turns, run.model_settings),
            tools=[self._tools[name] for name in names],
            output=self._scenario.output,
            history=history,
            results=None if run.results is None else DeferredToolResults(calls=dict(run.results)),
            allow_deferred=deferred if run.allow_deferred is None else run.allow_deferred,
            sink=sink,
        )
        outcome = await _ending(setup, self._perform, scope, self._human)
        if anyio.current_time() - started >= LIMIT_TICKS * TICK:
            outcome = {"stuck": True}
        record = {
            "outcome": outcome,
            "events": sink.events,
            "messages": ModelMessagesTypeAdapter.dump_python(setup.messages, mode="json"),
            "usage": _ANY.dump_python(setup.usage, mode="json"),
            "requests": setup.model.asked,
            "tools": self._log[first_log:],
            "given": ModelMessagesTypeAdapter.dump_python(history, mode="json"),  # neither side may change it
        }
        return record, setup.messages
