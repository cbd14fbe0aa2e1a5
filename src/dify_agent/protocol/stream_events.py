"""Pydantic AI's stream events on the wire: read tolerantly, written in the form every generation of callers parses.

Two forms differ between framework versions (decision R24, quirk Q29). A tool result is named ``part`` or ``result``,
and a result that asks the model to try again is a ``retry-prompt`` part on the wire, but a ``tool-return`` with outcome
``retried`` in Pydantic AI 2.68.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializerFunctionWrapHandler, WrapSerializer
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

_RESULT_KINDS = frozenset({"function_tool_result", "output_tool_result", "builtin_tool_result"})
_ERROR_MEMBERS = frozenset({"type", "loc", "msg", "input"})
_RETRY_PART_MEMBERS = ("tool_name", "content", "tool_call_id", "timestamp")


def text_of(event: AgentStreamEvent) -> str | None:
    """The agent text an event carries: a text delta, or a text part's start (possibly empty). None for all else."""
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return None


def _from_retry_prompt(part: Mapping[str, Any]) -> dict[str, Any]:
    """A wire ``retry-prompt`` as the result it answers with.

    A list of validation errors says why the model has to try again; a text does not, so its cause stays unknown.
    """
    kept = {name: part[name] for name in _RETRY_PART_MEMBERS if part.get(name) is not None}
    retry = None if isinstance(part.get("content"), str) else {"cause": "validation_error"}
    return {"tool_name": "", **kept, "outcome": "retried", "retry": retry, "part_kind": "tool-return"}


def _is_error_list(content: object) -> bool:
    """Whether every item has the members that readers of a ``retry-prompt`` require of a validation error."""
    return isinstance(content, list) and all(isinstance(i, dict) and i.keys() >= _ERROR_MEMBERS for i in content)


def _to_retry_prompt(part: Mapping[str, Any]) -> dict[str, Any]:
    """The wire form of a retried result. Content that is neither text nor an error list becomes its JSON text."""
    content = part["content"]
    if not isinstance(content, str) and not _is_error_list(content):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return {**{name: part[name] for name in _RETRY_PART_MEMBERS}, "content": content, "part_kind": "retry-prompt"}


def _read(value: Any) -> Any:
    """Bring a tool-result event of any framework version to the installed one's form; leave everything else alone."""
    if not isinstance(value, Mapping) or value.get("event_kind") not in _RESULT_KINDS:
        return value
    event = dict(value)
    if "part" not in event and "result" in event:
        event["part"] = event.pop("result")
    part = event.get("part")
    if isinstance(part, Mapping) and part.get("part_kind") == "retry-prompt":
        event["part"] = _from_retry_prompt(part)
    return event


def _write(value: AgentStreamEvent, handler: SerializerFunctionWrapHandler) -> Any:
    data = handler(value)
    if isinstance(data, dict) and data.get("event_kind") in _RESULT_KINDS:
        part = data.get("part")
        if isinstance(part, dict) and part.get("outcome") == "retried":
            data["part"] = _to_retry_prompt(part)
    return data


WireStreamEvent = Annotated[AgentStreamEvent, BeforeValidator(_read), WrapSerializer(_write)]
"""`AgentStreamEvent` as event ``data``. Instances are kept as they are; dumps carry the wire form."""
