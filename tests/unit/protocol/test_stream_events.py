"""Pydantic AI events on the wire: golden JSON per kind, retried results, both names of a result's part."""

import json
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_ai.messages import ToolReturnPart
from tests.unit.protocol.stream_samples import ERRORS, GOLDEN, SAMPLES, WHEN, wire

from dify_agent.protocol import RUN_EVENT_ADAPTER, PydanticAIStreamRunEvent

KINDS = {
    "part_start", "part_delta", "part_end", "final_result", "function_tool_call", "function_tool_result",
    "output_tool_call", "output_tool_result",
}  # fmt: skip
RETRIED = [name for name in SAMPLES if "retried" in name]
MIN_RETRY_MEMBERS = {"tool_name", "content", "tool_call_id", "timestamp", "part_kind"}


def golden() -> dict[str, str]:
    """Name → JSON text, byte for byte as stored."""
    lines = GOLDEN.read_text(encoding="utf-8").split("\n")[1:-2]
    rows = (line.removesuffix(",").split(": ", 1) for line in lines)
    return {json.loads(name): text for name, text in rows}


def envelope(data: dict[str, Any]) -> dict[str, Any]:
    return {"id": "1-1", "run_id": "R", "created_at": "2026-11-30T09:00:00Z", "type": "pydantic_ai_event", "data": data}


def result_event(kind: str, part: dict[str, Any], key: str = "part") -> dict[str, Any]:
    return envelope({key: part, "event_kind": kind})


RETRY_PROMPT = {
    "tool_name": "look", "content": "Try x = 2.", "tool_call_id": "c-1", "timestamp": "2026-11-30T09:00:00.120000Z",
    "part_kind": "retry-prompt",
}  # fmt: skip


def test_golden_covers_every_kind() -> None:
    assert golden().keys() == SAMPLES.keys()
    assert {json.loads(text)["data"]["event_kind"] for text in golden().values()} == KINDS


@pytest.mark.parametrize("name", SAMPLES)
def test_wire_form_is_the_golden_one(name: str) -> None:
    assert wire(SAMPLES[name]).decode() == golden()[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_reads_and_writes_back_unchanged(name: str) -> None:
    text = golden()[name]
    event = RUN_EVENT_ADAPTER.validate_json(text)
    assert RUN_EVENT_ADAPTER.dump_json(event, exclude={"id"}).decode() == text
    if name not in RETRIED:
        assert event.data == SAMPLES[name]


@pytest.mark.parametrize("name", RETRIED)
def test_a_retried_result_goes_out_as_a_retry_prompt(name: str) -> None:
    part = json.loads(golden()[name])["data"]["part"]
    assert part.keys() == MIN_RETRY_MEMBERS
    assert part["part_kind"] == "retry-prompt"


@pytest.mark.parametrize("kind", ["function_tool_result", "output_tool_result"])
@pytest.mark.parametrize("key", ["part", "result"])
@pytest.mark.parametrize(("content", "cause"), [("Try x = 2.", None), (ERRORS, "validation_error")])
def test_a_retry_prompt_is_read_as_a_retried_result(kind: str, key: str, content: object, cause: str | None) -> None:
    event = RUN_EVENT_ADAPTER.validate_python(result_event(kind, {**RETRY_PROMPT, "content": content}, key))
    assert isinstance(event, PydanticAIStreamRunEvent)
    part = event.data.part
    assert isinstance(part, ToolReturnPart)
    assert (part.tool_name, part.tool_call_id, part.content) == ("look", "c-1", content)
    assert (part.outcome, part.timestamp) == ("retried", WHEN)
    assert (part.retry.cause if part.retry else None) == cause


def test_the_frameworks_own_retried_form_is_read_too() -> None:
    own = {**RETRY_PROMPT, "part_kind": "tool-return", "outcome": "retried", "retry": {"cause": "model_retry"}}
    event = RUN_EVENT_ADAPTER.validate_python(result_event("function_tool_result", own))
    assert event.data.part.outcome == "retried"
    assert event.data.part.retry.cause == "model_retry"


@pytest.mark.parametrize("key", ["part", "result"])
def test_both_names_of_a_results_part_are_read(key: str) -> None:
    part = {"tool_name": "look", "content": 3, "tool_call_id": "c-1", "part_kind": "tool-return"}
    event = RUN_EVENT_ADAPTER.validate_python(result_event("function_tool_result", part, key))
    assert event.data.part.content == 3
    assert json.loads(RUN_EVENT_ADAPTER.dump_json(event))["data"]["part"]["content"] == 3


@pytest.mark.parametrize(
    ("content", "written"),
    [({"a": 1}, '{"a":1}'), ([1, "é"], '[1,"é"]'), ([{"type": "missing"}], '[{"type":"missing"}]'), ([], [])],
)
def test_retry_content_that_old_readers_reject_becomes_text(content: object, written: object) -> None:
    part = ToolReturnPart(tool_name="look", content=content, tool_call_id="c-1", outcome="retried")
    data = {"part": part, "event_kind": "function_tool_result"}
    event = RUN_EVENT_ADAPTER.validate_python(envelope(data))
    assert json.loads(RUN_EVENT_ADAPTER.dump_json(event))["data"]["part"]["content"] == written


def test_writing_does_not_change_the_event() -> None:
    event = PydanticAIStreamRunEvent(run_id="R", data=SAMPLES["function_tool_result retried by text"])
    RUN_EVENT_ADAPTER.dump_json(event)
    assert event.data is SAMPLES["function_tool_result retried by text"]
    assert event.data.part.outcome == "retried"


@pytest.mark.parametrize(
    "data",
    [
        None,
        "part_start",
        {},
        {"event_kind": "never_heard_of"},
        {"event_kind": "function_tool_result"},
        {"event_kind": "function_tool_result", "part": None},
        {"event_kind": "function_tool_result", "part": {"part_kind": "retry-prompt"}},
        {"event_kind": "part_delta", "index": 0, "delta": {"part_delta_kind": "never_heard_of"}},
    ],
)
def test_other_data_is_refused(data: Any) -> None:
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python(envelope(data))


TEXT = {
    "part_start text": "",
    "part_delta text": "héllo \u2028",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_agent_message_delta(name: str) -> None:
    written = json.loads(wire(SAMPLES[name]))
    assert "agent_message_delta" in written
    assert written["agent_message_delta"] == TEXT.get(name)


def test_a_given_agent_message_delta_is_checked_and_replaced() -> None:
    raw = envelope({"event_kind": "part_delta", "index": 0, "delta": {"part_delta_kind": "text", "content_delta": "a"}})
    assert RUN_EVENT_ADAPTER.validate_python({**raw, "agent_message_delta": "b"}).agent_message_delta == "a"
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python({**raw, "agent_message_delta": 1})
