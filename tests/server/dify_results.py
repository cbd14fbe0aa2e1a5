"""What the events of a run say about its end and its tools."""

from typing import Any


def ended(events: list[dict[str, Any]], kind: str = "run_succeeded") -> dict[str, Any]:
    assert events[-1]["type"] == kind, events[-1]
    return dict(events[-1]["data"])


def failure(events: list[dict[str, Any]]) -> tuple[str | None, str]:
    """Reason and text; none of Dify's failures has an error type."""
    data = ended(events, "run_failed")
    assert data["error_type"] is None
    return data["reason"], data["error"]


def observations(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What each tool call was answered with, by its id."""
    parts = [each["data"]["part"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
    return {part["tool_call_id"]: part["content"] for part in parts}
