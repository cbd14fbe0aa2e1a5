"""Transformers that hand out every layer's items in Pydantic AI's form."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic_ai.tools import Tool

from agenton.compositor import CompositorTransformerKwargs
from agenton.layers import (
    AllPromptTypes,
    AllToolTypes,
    AllUserPromptTypes,
    PydanticAIPrompt,
    PydanticAITool,
    PydanticAIUserPrompt,
)


class PydanticAICompositorTransformerKwargs(
    CompositorTransformerKwargs[
        PydanticAIPrompt[Any],
        PydanticAITool[Any],
        AllPromptTypes,
        AllToolTypes,
        PydanticAIUserPrompt,
        AllUserPromptTypes,
    ]
):
    """Type of ``PYDANTIC_AI_TRANSFORMERS``."""


def _prompts(items: Sequence[AllPromptTypes]) -> list[PydanticAIPrompt[Any]]:
    return [_prompt(item) for item in items]


def _user_prompts(items: Sequence[AllUserPromptTypes]) -> list[PydanticAIUserPrompt]:
    return [_user_prompt(item) for item in items]


def _tools(items: Sequence[AllToolTypes]) -> list[PydanticAITool[Any]]:
    return [_tool(item) for item in items]


def _prompt(item: AllPromptTypes) -> PydanticAIPrompt[Any]:
    if item.kind == "plain":
        return _constant(item.value)
    if item.kind == "pydantic_ai":
        return item.value
    raise _unsupported(item)


def _user_prompt(item: AllUserPromptTypes) -> PydanticAIUserPrompt:
    if item.kind in ("plain", "pydantic_ai"):
        return item.value
    raise _unsupported(item)


def _tool(item: AllToolTypes) -> PydanticAITool[Any]:
    if item.kind == "plain":
        return Tool(item.value)
    if item.kind == "pydantic_ai":
        return item.value
    raise _unsupported(item)


def _constant(text: str) -> Callable[[], str]:
    def prompt() -> str:
        return text

    return prompt


def _unsupported(item: Any) -> NotImplementedError:
    return NotImplementedError(f"No Pydantic AI form for an item of kind '{item.kind}'.")


PYDANTIC_AI_TRANSFORMERS: Final[PydanticAICompositorTransformerKwargs] = {
    "prompt_transformer": _prompts,
    "user_prompt_transformer": _user_prompts,
    "tool_transformer": _tools,
}
"""Keyword arguments for ``Compositor`` and ``Compositor.from_config``."""
