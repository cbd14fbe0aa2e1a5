"""Plain layers without lifecycle: prompts from config, an object, callables as tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from pydantic import Field

from agenton.layers import LayerConfig, NoLayerDeps, PlainLayer, PlainPrompt, PlainTool, PlainUserPrompt

PLAIN_PROMPT_LAYER_TYPE_ID: Final = "plain.prompt"

ObjectT = TypeVar("ObjectT")

MAX_FRAGMENTS: Final = 10_000
"""Of each kind: a million of them hold up every other run of the process for seconds."""

_Fragments = Annotated[list[str], Field(max_length=MAX_FRAGMENTS)]


class PromptLayerConfig(LayerConfig):
    """Config of ``PromptLayer``. A string is one item, also the empty string; nothing is trimmed."""

    prefix: str | _Fragments = Field(default_factory=list)
    user: str | _Fragments = Field(default_factory=list)
    suffix: str | _Fragments = Field(default_factory=list)


@dataclass
class PromptLayer(PlainLayer[NoLayerDeps, PromptLayerConfig]):
    """Contributes fixed system prompts (prefix and suffix) and user prompts."""

    type_id: ClassVar[str | None] = PLAIN_PROMPT_LAYER_TYPE_ID

    prefix: str | Sequence[str] = field(default_factory=list)
    user: str | Sequence[str] = field(default_factory=list)
    suffix: str | Sequence[str] = field(default_factory=list)

    @classmethod
    def from_config(cls, config: PromptLayerConfig) -> Self:
        """Build the layer from its config."""
        return cls(prefix=config.prefix, user=config.user, suffix=config.suffix)

    @property
    def prefix_prompts(self) -> list[PlainPrompt]:
        """The configured prefix."""
        return _items(self.prefix)

    @property
    def suffix_prompts(self) -> list[PlainPrompt]:
        """The configured suffix."""
        return _items(self.suffix)

    @property
    def user_prompts(self) -> list[PlainUserPrompt]:
        """The configured user prompts."""
        return _items(self.user)


@dataclass
class ObjectLayer(PlainLayer[NoLayerDeps], Generic[ObjectT]):
    """Holds one object for the layers that depend on it. Built by code only: a node needs a factory provider."""

    value: ObjectT


@dataclass
class ToolsLayer(PlainLayer[NoLayerDeps]):
    """Contributes plain callables as tools."""

    tool_entries: Sequence[Callable[..., Any]] = ()

    @property
    def tools(self) -> list[PlainTool]:
        """The entries."""
        return list(self.tool_entries)


def _items(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
