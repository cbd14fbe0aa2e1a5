"""One Pydantic AI event of each kind and shape that can appear in a run's log, with fixed times and ids.

``golden/stream_events.json`` holds their wire form. After a deliberate change, write it anew with
``python -m tests.unit.protocol.stream_samples`` and read the diff as a caller would.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import (
    AgentStreamEvent,
    BinaryContent,
    FilePart,
    FinalResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    OutputToolCallEvent,
    OutputToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    RetryInfo,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)

from dify_agent.protocol import RUN_EVENT_ADAPTER, PydanticAIStreamRunEvent

GOLDEN = Path(__file__).parent / "golden" / "stream_events.json"
WHEN = datetime(2026, 11, 30, 9, 0, 0, 120_000, tzinfo=UTC)
ERRORS = [{"type": "missing", "loc": ["x", 0], "msg": "Field required", "input": {"y": 1}}]


def _result(**members: Any) -> ToolReturnPart:
    return ToolReturnPart(**{"tool_name": "look", "tool_call_id": "c-1", "timestamp": WHEN, **members})


_CALL = ToolCallPart(tool_name="look", args='{"x":1}', tool_call_id="c-1")
_FINAL_CALL = ToolCallPart(tool_name="final_output", args={"n": 1}, tool_call_id="c-2")

SAMPLES: dict[str, AgentStreamEvent] = {
    "part_start text": PartStartEvent(index=0, part=TextPart(content="")),
    "part_start thinking": PartStartEvent(
        index=1, part=ThinkingPart(content="hm", signature="s", provider_name="p"), previous_part_kind="text"
    ),
    "part_start tool call": PartStartEvent(index=2, part=_CALL, previous_part_kind="thinking"),
    "part_start file": PartStartEvent(
        index=3, part=FilePart(content=BinaryContent(data=b"\x00\xff?>", media_type="text/csv", identifier="f"))
    ),
    "part_delta text": PartDeltaEvent(
        index=0,
        delta=TextPartDelta(content_delta="héllo \u2028", provider_name="p", provider_details={"logprob": [0.5]}),
    ),
    "part_delta thinking": PartDeltaEvent(
        index=1, delta=ThinkingPartDelta(content_delta="mm", signature_delta="t", provider_name="p")
    ),
    "part_delta tool call": PartDeltaEvent(
        index=2, delta=ToolCallPartDelta(tool_name_delta="lo", args_delta='{"x"', tool_call_id="c-1")
    ),
    "part_end": PartEndEvent(index=0, part=TextPart(content="héllo "), next_part_kind="thinking"),
    "final_result text": FinalResultEvent(tool_name=None, tool_call_id=None),
    "final_result tool": FinalResultEvent(tool_name="final_output", tool_call_id="c-2"),
    "function_tool_call": FunctionToolCallEvent(part=_CALL, args_valid=True),
    "function_tool_result": FunctionToolResultEvent(part=_result(content={"seen": [1, None]})),
    "function_tool_result retried by text": FunctionToolResultEvent(
        part=_result(content="Try x = 2.", outcome="retried", retry=RetryInfo(cause="model_retry", attempt=1))
    ),
    "function_tool_result retried by errors": FunctionToolResultEvent(
        part=_result(content=ERRORS, outcome="retried", retry=RetryInfo(cause="validation_error"))
    ),
    "output_tool_call": OutputToolCallEvent(part=_FINAL_CALL, args_valid=False),
    "output_tool_result": OutputToolResultEvent(
        part=_result(tool_name="final_output", content="Final result processed.")
    ),
    "output_tool_result retried": OutputToolResultEvent(
        part=_result(tool_name="final_output", content=ERRORS, outcome="retried")
    ),
}


def wire(event: AgentStreamEvent) -> bytes:
    """The JSON that a producer stores for this event."""
    envelope = PydanticAIStreamRunEvent(run_id="R", created_at=WHEN, data=event)
    return RUN_EVENT_ADAPTER.dump_json(envelope, exclude={"id"})


def write_golden() -> None:
    """Write the golden file from the installed framework."""
    rows = [f"{json.dumps(name)}: {wire(event).decode()}" for name, event in SAMPLES.items()]
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
