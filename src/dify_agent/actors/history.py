"""What of the loop's messages is kept for the next run (layers 2.5)."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, RetryPromptPart, ToolReturnPart

from agenton.compositor import CompositorSessionSnapshot, LayerSessionSnapshot
from dify_agent.protocol.schemas import DIFY_AGENT_HISTORY_LAYER_ID


def stored_form(messages: Sequence[ModelMessage], *, finished: bool) -> list[ModelMessage]:
    """The messages as the history layer stores them.

    System prompts belong to the run that sent them: ``instructions`` is cleared. When the run did not finish, nobody
    will answer the calls it leaves pending: the tail that holds them is marked interrupted, or the next ordinary prompt
    would be refused (decision R19).
    """
    stored: list[ModelMessage] = [
        replace(message, instructions=None) if isinstance(message, ModelRequest) and message.instructions else message
        for message in messages
    ]
    if not finished and _leaves_calls_pending(stored):
        _mark_interrupted(stored)
    return stored


def without_question(snapshot: CompositorSessionSnapshot) -> CompositorSessionSnapshot:
    """The snapshot of a run that asked a human, for an ending that puts the question to nobody.

    The question's tail is marked as `stored_form` marks that of a loop that did not finish: a response, or the results
    of its other calls. All else stays as it was written.
    """
    layers = [_unasked(layer) if layer.name == DIFY_AGENT_HISTORY_LAYER_ID else layer for layer in snapshot.layers]
    return snapshot.model_copy(update={"layers": layers})


def _unasked(history: LayerSessionSnapshot) -> LayerSessionSnapshot:
    messages = history.runtime_state.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return history  # another layer has cleared it while it left
    asked = [*messages[:-1], {**messages[-1], "state": "interrupted"}]
    return history.model_copy(update={"runtime_state": {**history.runtime_state, "messages": asked}})


def _mark_interrupted(stored: list[ModelMessage]) -> None:
    """Mark the tail so that the next run closes its calls.

    That run joins neighbouring requests and keeps the state of the first, so they are joined here.
    """
    last = stored[-1]
    if last.state == "complete":
        stored[-1] = replace(last, state="interrupted")
    before = stored[-2] if len(stored) > 1 else None
    if isinstance(last, ModelRequest) and isinstance(before, ModelRequest):
        stored[-2:] = [replace(before, parts=[*before.parts, *last.parts], state="interrupted")]


def _leaves_calls_pending(messages: Sequence[ModelMessage]) -> bool:
    """Whether the last response has calls that nothing behind it answers."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return any(call.tool_call_id not in answered for call in message.tool_calls)
        answered |= {part.tool_call_id for part in message.parts if isinstance(part, (ToolReturnPart, RetryPromptPart))}
    return False
