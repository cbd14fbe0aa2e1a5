"""Transformers: what turns the tagged items of all layers into what the caller of a run works with."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias

from typing_extensions import TypedDict, TypeVar

from agenton.layers.types import AllPromptTypes, AllToolTypes, AllUserPromptTypes

InT = TypeVar("InT")
OutT = TypeVar("OutT")

PromptT = TypeVar("PromptT", default=AllPromptTypes)
ToolT = TypeVar("ToolT", default=AllToolTypes)
LayerPromptT = TypeVar("LayerPromptT", default=AllPromptTypes)
LayerToolT = TypeVar("LayerToolT", default=AllToolTypes)
UserPromptT = TypeVar("UserPromptT", default=AllUserPromptTypes)
LayerUserPromptT = TypeVar("LayerUserPromptT", default=AllUserPromptTypes)

CompositorTransformer: TypeAlias = Callable[[Sequence[InT]], Sequence[OutT]]
"""Takes all wrapped items of one kind, in aggregation order, and returns what the run hands out."""


class CompositorTransformerKwargs(
    TypedDict, Generic[PromptT, ToolT, LayerPromptT, LayerToolT, UserPromptT, LayerUserPromptT]
):
    """The transformer arguments of ``Compositor`` and ``Compositor.from_config``, for passing on with ``**``."""

    prompt_transformer: CompositorTransformer[LayerPromptT, PromptT]
    user_prompt_transformer: CompositorTransformer[LayerUserPromptT, UserPromptT]
    tool_transformer: CompositorTransformer[LayerToolT, ToolT]
