"""What the fakes of Dify are to do: scripts, and single steps of them."""

from typing import Any

from tests.server.dify_fakes import CORE_TOOL_PATH, KNOWLEDGE_PATH, MODEL_PATH, PLUGIN_TOOL_PATH

DONE = {"text": "Done."}
PRICES = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_unit_price": "0.001",
    "prompt_price_unit": "0.001",
    "prompt_price": "0.0001",
    "completion_price": "0.00004",
    "total_price": "0.00014",
    "currency": "EUR",
    "latency": 0.5,
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


THREE_CALLS = [call("web_search", query="a"), call("news", query="b"), call("current_time", query="c")]
THREE_TOOLS: dict[str, Any] = {
    "llm": [{"steps": [{"tool_calls": THREE_CALLS, "usage": PRICES}, {**DONE, "usage": PRICES}]}],
    "tools": [
        {"tool": "news", "steps": [{"text": "news", "json_object": {"n": 1}, "first_delay_ms": 300}]},
        {"steps": [{"text": "found", "first_delay_ms": 300}]},
    ],
    "core_tools": [{"steps": [{"observation": "12:00", "first_delay_ms": 300}]}],
}

FRAMINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "byte by byte": {"newline": "crlf", "one_byte_packets": True},
    "bare lines": {"prefix": False},
    "other lines": {"comments": True, "event_lines": True},
}

FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nested": (
        {"chunks": 2, "error": {"type": "InvokeRateLimitError", "message": "slow down", "nested": 2}},
        "InvokeRateLimitError",
        "slow down",
    ),
    "named": ({"error": {"type": "InvokeError", "message": "no idea"}}, "InvokeError", "InvokeError: no idea"),
    "raw": ({"error": {"raw": "not JSON"}}, "upstream_error", "not JSON"),
}
"""Errors that Dify reports. What the model's answer is, the reason of the failed run, and a part of its text."""

CANCELS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "before the answer": ({"llm": [{"steps": [{"end": "silent"}]}]}, MODEL_PATH, None),
    "in the text": ({"llm": [{"steps": [{"chunks": 3, "end": "hang"}]}]}, MODEL_PATH, "part_start"),
    "in a plugin tool": (
        {
            "llm": [{"steps": [{"tool_calls": [call("web_search", query="a")]}]}],
            "tools": [{"steps": [{"text": "half", "end": "hang"}]}],
        },
        PLUGIN_TOOL_PATH,
        "function_tool_call",
    ),
    "in a core tool": (
        {
            "llm": [{"steps": [{"tool_calls": [call("current_time", query="a")]}]}],
            "core_tools": [{"steps": [{"end": "silent"}]}],
        },
        CORE_TOOL_PATH,
        "function_tool_call",
    ),
    "in a search before the first prompt": ({"knowledge": [{"steps": [{"end": "silent"}]}]}, KNOWLEDGE_PATH, None),
}
"""A script that hangs, where, and the event that must have come before the cancel."""
