"""The layer behind `scripted.tools`."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Self

import trio
from pydantic import JsonValue
from pydantic_ai.tools import Tool

from agenton.layers import NoLayerDeps, PydanticAILayer
from dify_agent.errors import DifyAgentError
from dify_agent.layers.scripted_tools import SCRIPTED_TOOLS_LAYER_TYPE_ID, ScriptedToolConfig, ScriptedToolsLayerConfig
from dify_agent.protocol.json_schema import compile_schema


class ScriptedToolError(DifyAgentError):
    """The script says that the tool fails, with this text."""


class ScriptedToolsLayer(PydanticAILayer[NoLayerDeps, None, ScriptedToolsLayerConfig]):
    """Contributes tools without an effect. The loop validates their arguments against ``parameters``."""

    type_id: ClassVar[str | None] = SCRIPTED_TOOLS_LAYER_TYPE_ID

    def __init__(self, tools: Sequence[Tool[None]]) -> None:
        """Take the finished tools."""
        self._tools: Final = tuple(tools)

    @classmethod
    def from_config(cls, config: ScriptedToolsLayerConfig) -> Self:
        """Build the tools.

        Raises:
            ValueError: a tool's ``parameters`` are not a JSON Schema for an object.
        """
        return cls([_make_tool(tool) for tool in config.tools])

    @property
    def tools(self) -> Sequence[Tool[None]]:
        """The scripted tools in the order of the config."""
        return self._tools


def _make_tool(config: ScriptedToolConfig) -> Tool[None]:
    schema = config.parameters
    try:
        compile_schema(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'parameters' of tool '{config.name}' are no JSON Schema: {error}") from error
    if schema.get("type", "object") != "object":
        raise ValueError(f"'parameters' of tool '{config.name}' must describe an object")

    def run_in_thread(**_: Any) -> JsonValue:
        time.sleep(config.delay_ms / 1000)
        return _outcome(config)

    async def run(**_: Any) -> JsonValue:
        await _wait(config)
        return _outcome(config)

    function = run_in_thread if config.thread else run
    return Tool.from_schema(function, config.name, config.description, {"type": "object", **schema})


def _outcome(config: ScriptedToolConfig) -> JsonValue:
    if config.error is not None:
        raise ScriptedToolError(config.error)
    return config.result


async def _wait(config: ScriptedToolConfig) -> None:
    if not config.swallow_cancel_ms:
        await _pause(config)
        return
    # Misbehaving is what such a tool is asked for: the loop must cope. The bound of the shield is the wait.
    with suppress(trio.Cancelled):
        await _pause(config)
        return
    with trio.move_on_after(config.swallow_cancel_ms / 1000, shield=True):
        await trio.sleep_forever()


async def _pause(config: ScriptedToolConfig) -> None:
    await trio.sleep(math.inf if config.hang else config.delay_ms / 1000)
