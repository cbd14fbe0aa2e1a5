"""Create requests, by what the model says and the tools do."""

from typing import Any

HANG = {"hang": True}
STREAM_THEN_HANG = {"hang": True, "after_chunks": 3, "chunk": "half "}


def layer(name: str, type_id: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "type": type_id, "config": config or None}


def run_of(
    *turns: dict[str, Any],
    tools: tuple[dict[str, Any], ...] = (),
    prompt: str = "Hello.",
    model: dict[str, Any] | None = None,
    **members: Any,
) -> dict[str, Any]:
    """A run with prompt, history, scripted tools if any, and the scripted model or another one."""
    layers = [layer("prompt", "plain.prompt", user=prompt), layer("history", "pydantic_ai.history")]
    if tools:
        layers.append(layer("tools", "scripted.tools", tools=list(tools)))
    layers.append(model or layer("llm", "scripted.model", turns=list(turns)))
    return {"composition": {"layers": layers}, **members}


def text_run(text: str = "Hello back.", **members: Any) -> dict[str, Any]:
    return run_of({"text": text}, **members)


def calling(name: str, **args: Any) -> dict[str, Any]:
    """A turn that calls one tool."""
    return {"tool_calls": [{"name": name, "args": args}]}


def tool_run(**tool: Any) -> dict[str, Any]:
    """The model calls the tool ``probe`` once, then says ``done``."""
    return run_of(calling("probe"), {"text": "done"}, tools=({"name": "probe", **tool},))


def upstream_model(base_url: str) -> dict[str, Any]:
    return layer("llm", "pydantic_ai.model", model="openai-chat:gpt-fake", base_url=base_url)
