"""The layer behind `dify.ask_human`."""

from collections.abc import Sequence
from typing import ClassVar, Final, Self

from pydantic_ai.tools import DeferredToolRequests, SystemPromptFunc, Tool

from agenton.layers import NoLayerDeps, PydanticAILayer
from dify_agent.layers.ask_human import DIFY_ASK_HUMAN_LAYER_TYPE_ID, DifyAskHumanLayerConfig
from dify_agent.layers.ask_human.policy import apply_policy
from dify_agent.layers.ask_human.prompt import guidance
from dify_agent.layers.ask_human.tool import ask_human_tool, read_arguments
from dify_agent.protocol.schemas import DeferredToolCallPayload

_SCHEMA_VERSION: Final = 1
"""Version of the form of ``args`` in a deferred call."""


class DifyAskHumanLayer(PydanticAILayer[NoLayerDeps, None, DifyAskHumanLayerConfig]):
    """Lets the model end the run with a question to a human. Nothing of it is kept in snapshots."""

    type_id: ClassVar[str | None] = DIFY_ASK_HUMAN_LAYER_TYPE_ID

    @classmethod
    def from_config(cls, config: DifyAskHumanLayerConfig) -> Self:
        """Build the layer; it reads its config when it is asked for something."""
        return cls()

    @property
    def enabled(self) -> bool:
        """Whether the run may end with a question."""
        return self.config.enabled

    @property
    def prefix_prompts(self) -> Sequence[SystemPromptFunc[None]]:
        """One system prompt: when to ask, and the limits of a question. None when disabled."""
        return [self._guidance] if self.enabled else []

    @property
    def tools(self) -> Sequence[Tool[None]]:
        """The tool to ask with. None when disabled."""
        return [ask_human_tool(self.config)] if self.enabled else []

    def deferred_call(self, requests: DeferredToolRequests) -> DeferredToolCallPayload:
        """The question that the run ends with, fully expanded: every member is there, defaults included.

        Raises:
            ValueError: there is not exactly one call of this layer's tool, or it breaks a limit; the run fails.
        """
        if requests.approvals:
            raise ValueError("ask_human does not support approval requests; use external deferred calls only")
        if len(requests.calls) != 1:
            raise ValueError(
                f"ask_human supports exactly one deferred call per run in this version; got {len(requests.calls)}."
            )
        [call] = requests.calls
        name = self.config.tool_name
        if call.tool_name != name:
            raise ValueError(f"ask_human deferred tool name must be '{name}', got '{call.tool_name}'.")
        return DeferredToolCallPayload(
            tool_call_id=call.tool_call_id,
            tool_name=name,
            args=apply_policy(read_arguments(call), self.config).model_dump(mode="json"),
            metadata={
                "layer_type": DIFY_ASK_HUMAN_LAYER_TYPE_ID,
                "tool_name": name,
                "schema_version": _SCHEMA_VERSION,
            },
        )

    def _guidance(self) -> str:
        return guidance(self.config)
