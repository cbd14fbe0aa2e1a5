"""Pydantic AI's messages and tools as Dify's prompt messages (integrations 3.4, 3.5)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    CachePoint,
    FilePart,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from dify_agent.model.dify.media import media_part
from dify_agent.model.dify.thinking import CLOSE, OPEN

PromptMessage = dict[str, Any]
Content = str | list[dict[str, Any]] | None


def prompt_messages(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[PromptMessage]:
    """The whole prompt: one system message, if there is any system text, then the conversation.

    Raises:
        UnexpectedModelBehavior: a part has no form on Dify's wire.
    """
    rest: list[PromptMessage] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            parts = (part for part in message.parts if not isinstance(part, SystemPromptPart))
            rest.extend(_request_message(part) for part in parts)
        elif (assistant := _assistant_message(message)) is not None:
            rest.append(assistant)
    system = "\n\n".join(text for text in _system_texts(messages, parameters) if text.strip())
    return [_message("system", system), *rest] if system else rest


def tool_declarations(parameters: ModelRequestParameters) -> list[dict[str, Any]] | None:
    """Function tools, then output tools; None without any."""
    tools = [*parameters.function_tools, *parameters.output_tools]
    return [_declaration(tool) for tool in tools] or None


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}


def _message(role: str, content: Content, *, name: str | None = None) -> PromptMessage:
    return {"role": role, "content": content, "name": name}


def _system_texts(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ModelRequest):
            yield from (part.content for part in message.parts if isinstance(part, SystemPromptPart))
    if parameters.instruction_parts:
        yield from (part.content for part in InstructionPart.sorted(parameters.instruction_parts))
        return
    last = next((message for message in reversed(messages) if isinstance(message, ModelRequest)), None)
    if last is not None and last.instructions:
        yield last.instructions


def _request_message(part: ModelRequestPart) -> PromptMessage:
    match part:
        case UserPromptPart():
            return _message("user", _user_content(part.content))
        case ToolReturnPart():
            message = _message("tool", _tool_content(part.content_items(mode="str")), name=part.tool_name)
            return {**message, "tool_call_id": part.tool_call_id}
        case RetryPromptPart(tool_name=None):
            return _message("user", part.model_response())
        case RetryPromptPart():
            message = _message("tool", part.model_response(), name=part.tool_name)
            return {**message, "tool_call_id": part.tool_call_id}
        case _:
            raise UnexpectedModelBehavior(f"Dify models take no {type(part).__name__}; the model was not asked")


def _user_content(content: str | Sequence[UserContent]) -> Content:
    if isinstance(content, str):
        return content
    items = [item.content if isinstance(item, TextContent) else item for item in content]
    items = [item for item in items if not isinstance(item, CachePoint)]
    if items and all(isinstance(item, str) for item in items):
        return "".join(str(item) for item in items)
    return [_content_part(item) for item in items] or None


def _tool_content(items: Sequence[Any]) -> Content:
    if len(items) == 1 and isinstance(items[0], str):
        return items[0]
    return [_content_part(item) for item in items] or None


def _content_part(item: Any) -> dict[str, Any]:
    return {"type": "text", "data": item} if isinstance(item, str) else media_part(item)


def _assistant_message(response: ModelResponse) -> PromptMessage | None:
    """The message of a response; None when nothing of it can be sent."""
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for index, part in enumerate(response.parts):
        match part:
            case TextPart():
                content.extend(_text(part.content))
            case ThinkingPart():
                content.extend(_text(part.content and f"{OPEN}\n{part.content}\n{CLOSE}"))
            case FilePart():
                content.append(media_part(part.content))
            case ToolCallPart():
                calls.append(_tool_call(index, part))
            case _:
                raise UnexpectedModelBehavior(f"Dify models take no {type(part).__name__}; the model was not asked")
    if not content and not calls:
        return None
    return {**_message("assistant", _collapsed(content)), "tool_calls": calls}


def _text(text: str) -> Iterable[dict[str, Any]]:
    return [{"type": "text", "data": text}] if text else []


def _collapsed(content: list[dict[str, Any]]) -> Content:
    """One string where there is only text, also where there is nothing: daemons refuse a null content."""
    if all(part["type"] == "text" for part in content):
        return "".join(part["data"] for part in content)
    return content


def _tool_call(index: int, part: ToolCallPart) -> dict[str, Any]:
    return {
        "id": part.tool_call_id or f"tool-call-{index}-{part.tool_name}",
        "type": "function",
        "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
    }
