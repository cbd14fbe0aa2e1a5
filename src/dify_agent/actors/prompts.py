"""Prompts: whether there is one, and the form in which the loop gets it (layers 4, 3.2)."""

import inspect
import json
from collections.abc import Sequence
from typing import Any, Final

from pydantic_ai.messages import UserContent

from agenton.layers import LayerConfig
from dify_agent.protocol.schemas import DIFY_AGENT_MODEL_LAYER_ID, CreateRunRequest

_PLAIN_PROMPT_TYPE: Final = "plain.prompt"
_WITHOUT_PROMPTS: Final = frozenset(
    {"pydantic_ai.history", "pydantic_ai.model", "scripted.model", "scripted.tools", "dify.execution_context"}
)
"""Layer types that never contribute a user prompt, so their presence leaves the question decidable."""


def is_blank(prompts: Sequence[UserContent]) -> bool:
    """Whether nothing in ``prompts`` would tell a model anything: no non-string item, no string with a visible
    character."""
    return all(isinstance(item, str) and not item.strip() for item in prompts)


def has_blank_prompt(request: CreateRunRequest) -> bool:
    """Whether the request can be seen, without entering a layer, to have no prompt (decision D1).

    False when it cannot be decided: unknown types and unreadable configs are found later, by the run itself.
    """
    if request.deferred_tool_results is not None:
        return False
    names = {layer.name for layer in request.composition.layers}
    if DIFY_AGENT_MODEL_LAYER_ID not in names:
        return False
    items: list[UserContent] = []
    for layer in request.composition.layers:
        if layer.type in _WITHOUT_PROMPTS:
            continue
        if layer.type != _PLAIN_PROMPT_TYPE:
            return False
        user = _user_items(layer.config)
        if user is None:
            return False
        items.extend(user)
    return is_blank(items)


def _user_items(config: Any) -> list[str] | None:
    """The ``user`` of a plain prompt, or None when the config is not readable as one."""
    if isinstance(config, LayerConfig):
        config = config.model_dump(mode="json")
    if isinstance(config, str | bytes):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return None
    if config is None:
        return []
    if not isinstance(config, dict):
        return None
    user = config.get("user", [])
    if isinstance(user, str):
        return [user]
    if isinstance(user, list) and all(isinstance(item, str) for item in user):
        return user
    return None


def user_input(prompts: Sequence[UserContent]) -> str | list[UserContent]:
    """One single string is sent as a string, everything else as the list."""
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0]
    return list(prompts)


async def render_instructions(functions: Sequence[Any]) -> list[str]:
    """The system prompts' texts: one per fragment, trailing white space stripped, blank and ``None`` ones dropped."""
    texts: list[str] = []
    for function in functions:
        text = function()
        if inspect.isawaitable(text):
            text = await text
        if text is not None and text.strip():
            texts.append(text.rstrip())
    return texts
