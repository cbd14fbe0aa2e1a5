"""`scripted.tools`: tools that do what the request tells them to. For demos, load and tests."""

from collections import Counter
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, JsonValue, model_validator

from agenton.layers import LayerConfig
from dify_agent.model.script import DelayMs, ToolName

__all__ = ["SCRIPTED_TOOLS_LAYER_TYPE_ID", "ScriptedToolConfig", "ScriptedToolsLayerConfig"]

MAX_TOOLS: Final = 1000
"""Each has a schema of its own to compile: thirty thousand took seven seconds."""
SCRIPTED_TOOLS_LAYER_TYPE_ID: Final = "scripted.tools"


def _no_parameters() -> dict[str, JsonValue]:
    return {"type": "object", "properties": {}}


class ScriptedToolConfig(BaseModel):
    """One tool: after ``delay_ms`` it returns ``result`` (null without one), raises ``error``, or hangs.

    Raises:
        ValidationError: more than one outcome, or an option that cannot go with ``thread``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ToolName
    description: str | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=_no_parameters)
    """JSON Schema of the arguments, an object schema."""
    result: JsonValue = None
    error: str | None = None
    """The tool fails with this text, and with it the run."""
    hang: bool = False
    """The tool waits until it is cancelled."""
    delay_ms: DelayMs = 0
    thread: bool = False
    """A sync function in a worker thread, which no cancellation reaches."""
    swallow_cancel_ms: DelayMs = 0
    """A cancelled tool goes on for so long and then returns its result as if nothing had happened."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        outcomes = {"result": self.result is not None, "error": self.error is not None, "hang": self.hang}
        given = [name for name, is_given in outcomes.items() if is_given]
        if len(given) > 1:
            raise ValueError(f"a tool has at most one of {', '.join(outcomes)}; got {', '.join(given)}")
        if self.thread and self.hang:
            raise ValueError("'hang' cannot go with 'thread': the thread would never end; use 'delay_ms'")
        if self.thread and self.swallow_cancel_ms:
            raise ValueError("'swallow_cancel_ms' cannot go with 'thread': a thread is not cancelled")
        return self


class ScriptedToolsLayerConfig(LayerConfig):
    """The tools, in the order the model sees them."""

    tools: Annotated[list[ScriptedToolConfig], Field(max_length=MAX_TOOLS), FailFast()]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        repeated = sorted(name for name, count in Counter(tool.name for tool in self.tools).items() if count > 1)
        if repeated:
            raise ValueError(f"tool names must be unique, got duplicates: {', '.join(repeated)}")
        return self
