"""Layer families: which prompt, user prompt and tool items a layer contributes, and how they are tagged.

Pydantic AI is a vocabulary here, not a dependency: its names are resolved by type checkers only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, final

from typing_extensions import TypeAliasType, TypeVar

from agenton.layers.base import ConfigT, DepsT, Layer, RuntimeStateT

AgentDepsT = TypeVar("AgentDepsT")

PlainPrompt: TypeAlias = str
PlainUserPrompt: TypeAlias = str
PlainTool: TypeAlias = Callable[..., Any]

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent
    from pydantic_ai.tools import SystemPromptFunc, Tool

    PydanticAIPrompt: TypeAlias = SystemPromptFunc[AgentDepsT]
    PydanticAIUserPrompt: TypeAlias = UserContent
    PydanticAITool: TypeAlias = Tool[AgentDepsT]
else:
    # Named, subscriptable stand-ins: importing this module must not import pydantic_ai.
    PydanticAIPrompt = TypeAliasType("PydanticAIPrompt", "SystemPromptFunc[AgentDepsT]", type_params=(AgentDepsT,))
    PydanticAIUserPrompt = TypeAliasType("PydanticAIUserPrompt", "UserContent")
    PydanticAITool = TypeAliasType("PydanticAITool", "Tool[AgentDepsT]", type_params=(AgentDepsT,))


@dataclass(frozen=True, slots=True)
class PlainPromptType:
    """A system prompt that is a string."""

    value: PlainPrompt
    kind: Literal["plain"] = field(default="plain", init=False)


@dataclass(frozen=True, slots=True)
class PlainUserPromptType:
    """A user prompt that is a string."""

    value: PlainUserPrompt
    kind: Literal["plain"] = field(default="plain", init=False)


@dataclass(frozen=True, slots=True)
class PlainToolType:
    """A tool that is a plain callable."""

    value: PlainTool
    kind: Literal["plain"] = field(default="plain", init=False)


@dataclass(frozen=True, slots=True)
class PydanticAIPromptType(Generic[AgentDepsT]):
    """A system prompt that is a Pydantic AI system prompt function."""

    value: PydanticAIPrompt[AgentDepsT]
    kind: Literal["pydantic_ai"] = field(default="pydantic_ai", init=False)


@dataclass(frozen=True, slots=True)
class PydanticAIUserPromptType:
    """A user prompt that is Pydantic AI user content."""

    value: PydanticAIUserPrompt
    kind: Literal["pydantic_ai"] = field(default="pydantic_ai", init=False)


@dataclass(frozen=True, slots=True)
class PydanticAIToolType(Generic[AgentDepsT]):
    """A tool that is a Pydantic AI ``Tool``."""

    value: PydanticAITool[AgentDepsT]
    kind: Literal["pydantic_ai"] = field(default="pydantic_ai", init=False)


AllPromptTypes: TypeAlias = PlainPromptType | PydanticAIPromptType[Any]
AllUserPromptTypes: TypeAlias = PlainUserPromptType | PydanticAIUserPromptType
AllToolTypes: TypeAlias = PlainToolType | PydanticAIToolType[Any]


class PlainLayer(
    Layer[DepsT, PlainPrompt, PlainUserPrompt, PlainTool, ConfigT, RuntimeStateT],
    Generic[DepsT, ConfigT, RuntimeStateT],
):
    """Family of layers that speak in strings and plain callables."""

    @final
    def wrap_prompt(self, prompt: PlainPrompt) -> PlainPromptType:
        """Tag ``prompt`` as plain."""
        return PlainPromptType(prompt)

    @final
    def wrap_user_prompt(self, prompt: PlainUserPrompt) -> PlainUserPromptType:
        """Tag ``prompt`` as plain."""
        return PlainUserPromptType(prompt)

    @final
    def wrap_tool(self, tool: PlainTool) -> PlainToolType:
        """Tag ``tool`` as plain."""
        return PlainToolType(tool)


class PydanticAILayer(
    Layer[
        DepsT,
        PydanticAIPrompt[AgentDepsT],
        PydanticAIUserPrompt,
        PydanticAITool[AgentDepsT],
        ConfigT,
        RuntimeStateT,
    ],
    Generic[DepsT, AgentDepsT, ConfigT, RuntimeStateT],
):
    """Family of layers that speak in Pydantic AI's types; ``AgentDepsT`` is the type of its run dependencies."""

    @final
    def wrap_prompt(self, prompt: PydanticAIPrompt[AgentDepsT]) -> PydanticAIPromptType[AgentDepsT]:
        """Tag ``prompt`` as Pydantic AI's."""
        return PydanticAIPromptType(prompt)

    @final
    def wrap_user_prompt(self, prompt: PydanticAIUserPrompt) -> PydanticAIUserPromptType:
        """Tag ``prompt`` as Pydantic AI's."""
        return PydanticAIUserPromptType(prompt)

    @final
    def wrap_tool(self, tool: PydanticAITool[AgentDepsT]) -> PydanticAIToolType[AgentDepsT]:
        """Tag ``tool`` as Pydantic AI's."""
        return PydanticAIToolType(tool)
