"""A layer that contributes Pydantic AI's own prompts and tools, with an object of the run as their dependency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic_ai.tools import Tool

from agenton.layers import LayerDeps, PydanticAILayer, PydanticAIPrompt, PydanticAITool, PydanticAIUserPrompt
from agenton_collections.layers.plain import ObjectLayer

ObjectT = TypeVar("ObjectT")


class PydanticAIBridgeLayerDeps(LayerDeps, Generic[ObjectT]):
    """Dependencies of ``PydanticAIBridgeLayer``."""

    object_layer: ObjectLayer[ObjectT]


@dataclass
class PydanticAIBridgeLayer(PydanticAILayer[PydanticAIBridgeLayerDeps[ObjectT], ObjectT], Generic[ObjectT]):
    """Contributes what it is given, in Pydantic AI's form.

    A string prompt becomes a function without arguments, a bare function a ``Tool``. Each of the prompt fields takes
    one item or a sequence of items; a string is one item.
    """

    prefix: str | PydanticAIPrompt[ObjectT] | Sequence[str | PydanticAIPrompt[ObjectT]] = ()
    user: PydanticAIUserPrompt | Sequence[PydanticAIUserPrompt] = ()
    suffix: str | PydanticAIPrompt[ObjectT] | Sequence[str | PydanticAIPrompt[ObjectT]] = ()
    tool_entries: Sequence[Callable[..., Any] | PydanticAITool[ObjectT]] = ()

    @property
    def run_deps(self) -> ObjectT:
        """The object that prompts and tools find as ``ctx.deps``."""
        return self.deps.object_layer.value

    @property
    def prefix_prompts(self) -> list[PydanticAIPrompt[ObjectT]]:
        """The prefix as system prompt functions."""
        return _prompt_functions(self.prefix)

    @property
    def suffix_prompts(self) -> list[PydanticAIPrompt[ObjectT]]:
        """The suffix as system prompt functions."""
        return _prompt_functions(self.suffix)

    @property
    def user_prompts(self) -> list[PydanticAIUserPrompt]:
        """The user items."""
        return _items(self.user)

    @property
    def tools(self) -> list[PydanticAITool[ObjectT]]:
        """The entries as tools."""
        return [entry if isinstance(entry, Tool) else Tool(entry) for entry in self.tool_entries]


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _prompt_functions(value: Any) -> list[Any]:
    return [_constant(item) if isinstance(item, str) else item for item in _items(value)]


def _constant(text: str) -> Callable[[], str]:
    def prompt() -> str:
        return text

    return prompt
