"""What a snapshot says: read here by its JSON alone, independent of the server's code."""

import json
from collections.abc import Iterable
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter
from tests.server.clients import kind_of

Snapshot = dict[str, Any]
Fact = tuple[str, ...]
"""One thing that was said: its kind, and what identifies it."""

INTERRUPTED = "The tool call was interrupted before a result was produced."


def states(snapshot: Snapshot) -> set[str]:
    return {each["lifecycle_state"] for each in snapshot["layers"]}


def entries(snapshot: Snapshot | None) -> list[str]:
    """The diary, if there is one."""
    return list(_state(snapshot, "diary").get("entries", []))


def messages(snapshot: Snapshot | None) -> list[dict[str, Any]]:
    """The history, which must be one that Pydantic AI reads; without the layer it is empty."""
    found = _state(snapshot, "history").get("messages", [])
    ModelMessagesTypeAdapter.validate_python(found)
    assert all(message.get("instructions") is None for message in found)
    return list(found)


def said(snapshot: Snapshot | None) -> list[Fact]:
    return [_fact(part) for message in messages(snapshot) for part in message["parts"]]


def told(events: Iterable[dict[str, Any]]) -> list[Fact]:
    """What the log of a run has said as finished: the answers of its calls."""
    data = [event["data"] for event in events if kind_of(event) in ("function_tool_result", "output_tool_result")]
    return [_fact(each["part"]) for each in data]


def streamed(events: Iterable[dict[str, Any]], kind: str) -> str:
    """The text or thinking that the log has of the last part of this kind."""
    text = ""
    for event in events:
        data = event["data"]
        if kind_of(event) == "part_start" and data["part"]["part_kind"] == kind:
            text = data["part"]["content"]
        elif kind_of(event) == "part_delta" and data["delta"]["part_delta_kind"] == kind:
            text += data["delta"]["content_delta"]
    return text


def is_within(wanted: Iterable[Fact], facts: Iterable[Fact]) -> bool:
    """Whether all wanted facts are there, in this order."""
    rest = iter(facts)
    return all(fact in rest for fact in wanted)


def pending_calls(snapshot: Snapshot) -> list[str]:
    """Ids of calls without an answer. Ids are unique, and an answer follows its call, once."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages(snapshot):
        for part in message["parts"]:
            call_id = part.get("tool_call_id")
            if part["part_kind"] == "tool-call":
                assert call_id not in seen, f"{call_id} is used twice"
                seen.add(call_id)
                waiting.append(call_id)
            elif part["part_kind"] == "tool-return" or part.get("tool_name"):
                assert call_id in waiting, f"{call_id} is answered without a question"
                waiting.remove(call_id)
    return waiting


def _state(snapshot: Snapshot | None, name: str) -> dict[str, Any]:
    layers = snapshot["layers"] if snapshot is not None else []
    return next((each["runtime_state"] for each in layers if each["name"] == name), {})


def _fact(part: dict[str, Any]) -> Fact:
    content = json.dumps(part.get("content"), sort_keys=True)
    match part["part_kind"]:
        case "tool-call":
            return ("call", part["tool_call_id"], part["tool_name"])
        case "tool-return" | "retry-prompt":
            return ("answer", str(part.get("tool_call_id")), content)
        case kind:
            return (kind, content)
