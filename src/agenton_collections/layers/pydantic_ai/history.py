"""The layer whose runtime state is the message history of an agent."""

from collections.abc import Sequence
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai.messages import ModelMessage

from agenton.layers import EmptyLayerConfig, NoLayerDeps, PydanticAILayer

PYDANTIC_AI_HISTORY_LAYER_TYPE_ID: Final = "pydantic_ai.history"


class PydanticAIHistoryRuntimeState(BaseModel):
    """The stored messages, oldest first. Assigning a list validates it."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    messages: list[ModelMessage] = Field(default_factory=list)


class PydanticAIHistoryLayer(
    PydanticAILayer[NoLayerDeps, object, EmptyLayerConfig, PydanticAIHistoryRuntimeState],
):
    """Keeps messages between runs, through the session snapshot. Contributes nothing to a run by itself."""

    type_id: ClassVar[str | None] = PYDANTIC_AI_HISTORY_LAYER_TYPE_ID

    @property
    def message_history(self) -> list[ModelMessage]:
        """The stored messages in a list of their own."""
        return list(self.runtime_state.messages)

    def replace_messages(self, messages: Sequence[ModelMessage]) -> None:
        """Store ``messages`` in place of the present ones.

        Raises:
            pydantic.ValidationError: an item is no model message; the stored ones stay.
        """
        self.runtime_state.messages = list(messages)

    def append_messages(self, messages: Sequence[ModelMessage]) -> None:
        """Store ``messages`` after the present ones; raises as ``replace_messages``."""
        self.runtime_state.messages = [*self.runtime_state.messages, *messages]

    def clear(self) -> None:
        """Store nothing."""
        self.runtime_state.messages = []
