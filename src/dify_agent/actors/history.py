"""What of the loop's messages is kept for the next run (layers 2.5)."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse


def stored_form(messages: Sequence[ModelMessage], *, finished: bool) -> list[ModelMessage]:
    """The messages as the history layer stores them.

    System prompts belong to the run that sent them: ``instructions`` is cleared. When the loop did not finish, calls
    that a complete last response leaves pending are marked interrupted, or the next ordinary prompt would be refused.
    """
    stored: list[ModelMessage] = [
        replace(message, instructions=None) if isinstance(message, ModelRequest) and message.instructions else message
        for message in messages
    ]
    last = stored[-1]
    if not finished and isinstance(last, ModelResponse) and last.state == "complete" and last.tool_calls:
        stored[-1] = replace(last, state="interrupted")
    return stored
