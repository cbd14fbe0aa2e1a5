"""Prompts: whether there is one, and the form in which the loop gets it (layers 4, 3.2)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic_ai.messages import UserContent

from dify_agent.actors.static_configs import config_members
from dify_agent.protocol.schemas import DIFY_AGENT_MODEL_LAYER_ID, CreateRunRequest

_WITHOUT_PROMPTS: Final = frozenset(
    {
        "pydantic_ai.history",
        "pydantic_ai.model",
        "scripted.model",
        "scripted.tools",
        "dify.execution_context",
        "dify.config",
        "dify.output",
        "dify.ask_human",
        "dify.plugin.llm",
        "dify.plugin.tools",
        "dify.core.tools",
    }
)
"""Layer types that never contribute a user prompt, so their presence leaves the question decidable."""


def is_blank(prompts: Sequence[UserContent]) -> bool:
    """Whether nothing in ``prompts`` would tell a model anything: no non-string item, no string with a visible
    character."""
    return all(isinstance(item, str) and not item.strip() for item in prompts)


def has_blank_prompt(request: CreateRunRequest) -> bool:
    """Whether the request can be seen, without entering a layer, to have no prompt (decision D1).

    False when it cannot be decided: unknown types and configs that do not validate are found later, by the run itself.
    """
    if request.deferred_tool_results is not None:
        return False
    layers = request.composition.layers
    if DIFY_AGENT_MODEL_LAYER_ID not in {layer.name for layer in layers}:
        return False
    contributors = [layer for layer in layers if layer.type not in _WITHOUT_PROMPTS]
    if any(layer.type not in _READERS for layer in contributors):
        return False
    return all(_is_seen_blank(layer.type, layer.config) for layer in contributors)


def _is_seen_blank(layer_type: str, config: Any) -> bool:
    members = config_members(config)
    items = None if members is None else _READERS[layer_type](members)
    return items is not None and is_blank(items)


def _plain_prompt_items(members: dict[str, Any]) -> list[str] | None:
    """The ``user`` of a plain prompt, or None when the config would not validate."""
    if not members.keys() <= {"prefix", "user", "suffix"}:
        return None
    if not all(_is_text(value) for value in members.values()):
        return None
    user = members.get("user", [])
    return [user] if isinstance(user, str) else user


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _user_prompt_items(members: dict[str, Any]) -> list[str] | None:
    """The ``text`` of a user prompt without files, or None.

    Files need no look: a valid one is an image or, to download, a visible line of the text, so the prompt is not blank;
    with one that is not valid the config does not validate.
    """
    text = members.get("text")
    if not members.keys() <= {"text", "files"} or members.get("files", []) != []:
        return None
    return [text] if isinstance(text, str) and text else None


_READERS: Final[Mapping[str, Callable[[dict[str, Any]], list[str] | None]]] = {
    "plain.prompt": _plain_prompt_items,
    "dify.user_prompt": _user_prompt_items,
}
"""Layer types whose user prompts can be read off their config: the items, or None when that is undecidable."""


def user_input(prompts: Sequence[UserContent]) -> str | list[UserContent]:
    """One single string is sent as a string, everything else as the list."""
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0]
    return list(prompts)


async def render_instructions(functions: Sequence[Any]) -> list[str]:
    """The system prompts' texts: one per fragment, as it is; blank and ``None`` ones are dropped (agent-loop 2.2)."""
    texts: list[str] = []
    for function in functions:
        text = function()
        if inspect.isawaitable(text):
            text = await text
        if text is not None and text.strip():
            texts.append(text)
    return texts
