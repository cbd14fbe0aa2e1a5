"""What a run does while its layers are active: prompts, model, tools, agent loop, history (layers 3.2, steps 8 to
19)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import trio
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import DeferredToolRequests, Tool
from pydantic_core import to_jsonable_python

from agenton.compositor import CompositorRun
from dify_agent.actors.agent_events import AgentEvents
from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.failures import RunDeadlineExceededError
from dify_agent.actors.history import stored_form
from dify_agent.actors.messages import Succeeded
from dify_agent.actors.prompts import is_blank, render_instructions, user_input
from dify_agent.errors import EMPTY_PROMPT, AgentRunValidationError
from dify_agent.layers.registry import PydanticAIHistoryLayer
from dify_agent.loop.port import (
    Capture,
    ContextBudgetLayer,
    HumanLayer,
    LoopRequest,
    LoopResult,
    ModelLayer,
    OutputContract,
    OutputLayer,
    UsageReport,
    provides,
)
from dify_agent.loop.run import run_agent_loop
from dify_agent.protocol.schemas import (
    DIFY_AGENT_HISTORY_LAYER_ID,
    DIFY_AGENT_MODEL_LAYER_ID,
    DIFY_AGENT_OUTPUT_LAYER_ID,
    CreateRunRequest,
)

Run = CompositorRun[Any, Any, Any, Any, Any, Any]

_PREPARATION_ERRORS: Final = (KeyError, TypeError, RuntimeError, ValueError, UserError)
"""What layers raise when they cannot serve their configuration; anything else keeps its own class (layers 3.7)."""


async def converse(
    run: Run, request: CreateRunRequest, env: RunEnvironment, *, run_id: str, events: AgentEvents, capture: Capture
) -> Succeeded:
    """Drive the agent loop under the run's deadline.

    The captured messages replace the stored history at every ending, cancellation included.

    Raises:
        AgentRunValidationError: the composition asks for something that cannot be served.
        RunDeadlineExceededError: the loop outlived ``RUN_TIMEOUT_SECONDS``.
        Exception: whatever ended the loop.
    """
    try:
        loop_request = await _loop_request(run_id, run, request, env)
        history = _history_layer(run)
    except AgentRunValidationError:
        raise
    except _PREPARATION_ERRORS as error:
        raise AgentRunValidationError(str(error)) from error
    if isinstance(loop_request.model, UsageReport):
        capture.report = loop_request.model
    finished = False
    try:
        result = await _under_deadline(loop_request, env, events, capture)
        ending = _ending(result, _human_layer(run), history)
        finished = True
    finally:
        if history is not None and capture.messages:
            history.replace_messages(stored_form(capture.messages, finished=finished))
    return ending


async def _under_deadline(
    loop_request: LoopRequest, env: RunEnvironment, events: AgentEvents, capture: Capture
) -> LoopResult:
    result: LoopResult = None
    seconds = env.bounds.run_timeout_seconds
    try:
        with trio.move_on_after(seconds) as deadline:
            result = await run_agent_loop(loop_request, sink=events.emit, capture=capture)
    except BaseException:
        events.give_up()
        raise
    events.finish()
    if deadline.cancelled_caught:
        raise RunDeadlineExceededError(seconds)
    return result


async def _loop_request(run_id: str, run: Run, request: CreateRunRequest, env: RunEnvironment) -> LoopRequest:
    """What the loop is asked for. The checks have an order: the first that fails is the one reported (protocol 3.2)."""
    prompts = list(run.user_prompts)
    results = request.deferred_tool_results
    if results is None and is_blank(prompts):
        raise AgentRunValidationError(EMPTY_PROMPT)
    output = _output_contract(run)
    history = _history_layer(run)
    instructions = await render_instructions(run.prompts)
    model_layer: ModelLayer = _layer(run, DIFY_AGENT_MODEL_LAYER_ID, ModelLayer, "a model layer")
    model = model_layer.get_model(run_id)
    budget = model_layer.get_context_budget() if provides(model_layer, ContextBudgetLayer) else None
    tools = _tools(run)
    if results is not None and history is None:
        raise AgentRunValidationError("Deferred tool results require a 'history' layer with prior message history.")
    return LoopRequest(
        model=model,
        history=_messages(history),
        prompt=None if results is not None else user_input(prompts),
        deferred_results=None if results is None else results.to_pydantic_ai(),
        instructions=instructions,
        tools=tools,
        output=output,
        allow_deferred=True,  # whether a deferred call is a valid end is for `_ending` to say, which names the reason
        model_settings=model_layer.get_model_settings(),
        context_budget=budget,
        tool_concurrency=env.tool_concurrency,
        tool_threads=env.tool_threads,
        cancel_timeout=env.bounds.thread_grace_seconds,
    )


def _messages(history: PydanticAIHistoryLayer | None) -> Sequence[ModelMessage]:
    return () if history is None else history.message_history


def _history_layer(run: Run) -> PydanticAIHistoryLayer | None:
    if DIFY_AGENT_HISTORY_LAYER_ID not in run.slots:
        return None
    return run.get_layer(DIFY_AGENT_HISTORY_LAYER_ID, PydanticAIHistoryLayer)


def _output_contract(run: Run) -> OutputContract | None:
    if DIFY_AGENT_OUTPUT_LAYER_ID not in run.slots:
        return None
    layer: OutputLayer = _layer(run, DIFY_AGENT_OUTPUT_LAYER_ID, OutputLayer, "DifyOutputLayer")
    return layer.output_contract()


def _layer(run: Run, name: str, port: type[Any], wanted: str) -> Any:
    """The layer in a reserved slot, checked by what it can do: several types may fill it."""
    layer = run.get_layer(name)
    if not provides(layer, port):
        raise AgentRunValidationError(f"Layer '{name}' must be {wanted}, got {type(layer).__name__}.")
    return layer


def _tools(run: Run) -> list[Tool[Any]]:
    tools = list(run.tools)
    duplicates = sorted(name for name, count in Counter(tool.name for tool in tools).items() if count > 1)
    if duplicates:
        raise AgentRunValidationError(
            f"Agent run requires unique tool names across all layers, got duplicates: {', '.join(duplicates)}."
        )
    return tools


def _human_layer(run: Run) -> HumanLayer | None:
    """The layer whose questions end a run; a disabled one asks none."""
    for slot in run.slots.values():
        if provides(slot.layer, HumanLayer) and slot.layer.enabled:
            return slot.layer
    return None


def _ending(result: LoopResult, human: HumanLayer | None, history: PydanticAIHistoryLayer | None) -> Succeeded:
    """What the run succeeds with.

    Raises:
        AgentRunValidationError: the loop ended with calls that no later run could answer (protocol 3.2, P7).
    """
    if not isinstance(result, DeferredToolRequests):
        return Succeeded(output=to_jsonable_python(result))
    if human is None:
        raise AgentRunValidationError(
            "Deferred tool requests were returned, but no active ask_human layer is available for validation."
        )
    if history is None:
        raise AgentRunValidationError(
            "ask_human deferred tool requests require a 'history' layer so the pending tool call can be resumed."
        )
    try:
        return Succeeded(deferred=human.deferred_call(result))
    except ValueError as error:
        raise AgentRunValidationError(str(error)) from error
