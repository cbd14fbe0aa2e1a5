"""The envelope's bytes: golden JSON of each kind, and equality with what the protocol's own models write."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
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
from pydantic_ai.tools import DeferredToolRequests

from agenton.compositor import CompositorSessionSnapshot, LayerSessionSnapshot
from agenton.layers import LifecycleState
from dify_agent.events import envelope
from dify_agent.protocol.schemas import (
    RUN_EVENT_ADAPTER,
    AgentRunUsage,
    DeferredToolCallPayload,
    PydanticAIStreamRunEvent,
    RunCancelledEvent,
    RunCancelledEventData,
    RunFailedEvent,
    RunFailedEventData,
    RunStartedEvent,
    RunSucceededEvent,
    RunSucceededEventData,
)

RUN = "0f7c7f62-6b0a-4a3e-9d8c-3f4f0f7c7f62"
NOW = datetime(2026, 11, 30, 12, 20, 34, 880587, UTC)
HEAD = f'{{"run_id":"{RUN}","created_at":"2026-11-30T12:20:34.880587Z","type":"pydantic_ai_event","data":'
CALL = ToolCallPart("add", {"x": [1, None]}, "call-1")
ERRORS = [{"type": "missing", "loc": ("x", 0), "msg": "Field required", "input": {"y": "é"}}]
CALL_JSON = (
    '{"tool_name":"add","args":{"x":[1,null]},"tool_call_id":"call-1","tool_kind":null,"id":null,"provider_name":null,'
    '"provider_details":null,"part_kind":"tool-call"}'
)


def text_delta(text, index=0, **members):
    return PartDeltaEvent(index=index, delta=TextPartDelta(text, **members))


def returned(content, **members):
    return ToolReturnPart("add", content, "call-1", timestamp=NOW, **members)


def retried(content, cause="validation_error"):
    return returned(content, outcome="retried", retry=RetryInfo(cause, attempt=1, max_retries=1))


def golden_result(content, outcome="success", digests=""):
    return (
        f'{{"tool_name":"add","content":{content},"tool_call_id":"call-1","tool_kind":null,"metadata":null,'
        f'"timestamp":"2026-11-30T12:20:34.880587Z","outcome":"{outcome}","retry":null,"part_kind":"tool-return"{digests}}}'
    )


def golden_retry(content):
    return (
        f'{{"tool_name":"add","content":{content},"tool_call_id":"call-1",'
        f'"timestamp":"2026-11-30T12:20:34.880587Z","part_kind":"retry-prompt"}}'
    )


TEXT_PART = '"id":null,"provider_name":null,"provider_details":null,"citations":null,"part_kind":"text"'
GOLDEN = {
    "part_start text": (
        PartStartEvent(index=0, part=TextPart("")),
        f'{{"index":0,"part":{{"content":"",{TEXT_PART}}},"previous_part_kind":null,"canonical_system":null,'
        '"event_kind":"part_start"}',
        '""',
    ),
    "part_start thinking": (
        PartStartEvent(index=1, part=ThinkingPart("hm"), previous_part_kind="text"),
        '{"index":1,"part":{"content":"hm","id":null,"signature":null,"provider_name":null,"provider_details":null,'
        '"part_kind":"thinking"},"previous_part_kind":"text","canonical_system":null,"event_kind":"part_start"}',
        "null",
    ),
    "part_delta text": (
        text_delta("hëllo "),
        '{"index":0,"delta":{"content_delta":"hëllo ","provider_name":null,"provider_details":null,'
        '"citations_delta":null,"part_delta_kind":"text"},"event_kind":"part_delta"}',
        '"hëllo "',
    ),
    "part_delta thinking": (
        PartDeltaEvent(index=3, delta=ThinkingPartDelta(signature_delta="s")),
        '{"index":3,"delta":{"content_delta":null,"signature_delta":"s","provider_name":null,"provider_details":null,'
        '"part_delta_kind":"thinking"},"event_kind":"part_delta"}',
        "null",
    ),
    "part_delta tool call": (
        PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta='{"', tool_call_id="call-1")),
        '{"index":0,"delta":{"tool_name_delta":null,"args_delta":"{\\"","tool_call_id":"call-1","provider_name":null,'
        '"provider_details":null,"part_delta_kind":"tool_call"},"event_kind":"part_delta"}',
        "null",
    ),
    "part_end": (
        PartEndEvent(index=0, part=TextPart("done"), next_part_kind="tool-call"),
        f'{{"index":0,"part":{{"content":"done",{TEXT_PART}}},"next_part_kind":"tool-call","canonical_system":null,'
        '"event_kind":"part_end"}',
        "null",
    ),
    "final_result": (
        FinalResultEvent(tool_name=None, tool_call_id=None),
        '{"tool_name":null,"tool_call_id":null,"event_kind":"final_result"}',
        "null",
    ),
    "function_tool_call": (
        FunctionToolCallEvent(CALL, args_valid=True),
        f'{{"part":{CALL_JSON},"args_valid":true,"event_kind":"function_tool_call"}}',
        "null",
    ),
    "function_tool_result": (
        FunctionToolResultEvent(returned("3")),
        f'{{"part":{golden_result(chr(34) + "3" + chr(34))},"content":null,"event_kind":"function_tool_result"}}',
        "null",
    ),
    "function_tool_result retried": (
        FunctionToolResultEvent(retried(ERRORS)),
        f'{{"part":{golden_retry(json.dumps(ERRORS, ensure_ascii=False, separators=(",", ":")))},"content":null,'
        '"event_kind":"function_tool_result"}',
        "null",
    ),
    "output_tool_call": (
        OutputToolCallEvent(CALL, args_valid=None),
        f'{{"part":{CALL_JSON},"args_valid":null,"event_kind":"output_tool_call"}}',
        "null",
    ),
    "output_tool_result": (
        OutputToolResultEvent(returned("Final result processed.")),
        f'{{"part":{golden_result(json.dumps("Final result processed."))},"event_kind":"output_tool_result"}}',
        "null",
    ),
    "output_tool_result retried": (
        OutputToolResultEvent(retried("Try n again", "model_retry")),
        f'{{"part":{golden_retry(json.dumps("Try n again"))},"event_kind":"output_tool_result"}}',
        "null",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_json(name):
    event, data, delta = GOLDEN[name]
    payload = envelope.agent_event(RUN, NOW, event)
    assert payload is not None
    assert payload.decode() == f'{HEAD}{data},"agent_message_delta":{delta}}}'


@pytest.mark.parametrize("name", GOLDEN)
def test_equals_the_protocol_models(name):
    event = GOLDEN[name][0]
    expected = RUN_EVENT_ADAPTER.dump_json(
        PydanticAIStreamRunEvent(run_id=RUN, created_at=NOW, data=event), exclude={"id"}
    )
    payload = envelope.agent_event(RUN, NOW, event)
    assert payload == expected
    assert RUN_EVENT_ADAPTER.validate_json(payload).run_id == RUN


@pytest.mark.parametrize(
    "event",
    [
        text_delta(""),
        text_delta('q"\\/\b\f\n\r\t\x00\x1f\x7f\x85\u2028\u2029\U0001f600'),
        text_delta("0", index=70),
        text_delta("x", provider_name="p"),
        text_delta("x", provider_details={"a": [1.5, None]}),
    ],
)
def test_hand_written_delta_equals_the_serializer(event):
    expected = RUN_EVENT_ADAPTER.dump_json(
        PydanticAIStreamRunEvent(run_id=RUN, created_at=NOW, data=event), exclude={"id"}
    )
    assert envelope.agent_event(RUN, NOW, event) == expected


def test_kinds_outside_appendix_b_are_not_published():
    from pydantic_ai.messages import DeferredToolRequestsEvent

    assert envelope.agent_event(RUN, NOW, DeferredToolRequestsEvent(DeferredToolRequests(calls=[CALL]))) is None


def test_parts_that_older_callers_reject_are_not_published():
    part = CompactionPart(content="summary", provider_name="p")
    for event in (PartStartEvent(index=0, part=part), PartEndEvent(index=0, part=part)):
        assert envelope.agent_event(RUN, NOW, event) is None


def test_file_part_is_published():
    event = PartStartEvent(index=0, part=FilePart(BinaryContent(b"\x00\xff", media_type="image/png")))
    payload = envelope.agent_event(RUN, NOW, event)
    assert json.loads(payload)["data"]["part"]["content"]["data"] == "AP8="


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"x": float("nan"), "y": [float("inf"), -float("inf")]}, {"x": None, "y": [None, None]}),
        ("a\ud800b", "a�b"),
        ({"k\udc00": ["\ud83d\ude00"]}, None),
        (object(), "<object>"),
        ([b"\xff\xfe"], ["__4="]),
    ],
)
def test_what_json_cannot_hold_is_replaced(content, expected):
    payload = envelope.agent_event(RUN, NOW, FunctionToolResultEvent(returned(content)))
    written = json.loads(payload, parse_constant=pytest.fail)["data"]["part"]["content"]
    if expected is None:
        ((key, value),) = written.items()
        assert key.startswith("k�")
        assert value == ["\U0001f600"]
    else:
        assert written == expected


def test_lone_surrogate_in_a_delta():
    payload = envelope.agent_event(RUN, NOW, text_delta("\ud800"))
    assert json.loads(payload)["agent_message_delta"] == "�"
    assert json.loads(payload)["data"]["delta"]["content_delta"] == "�"


def test_nesting_beyond_the_serializer_is_refused():
    content = []
    for _ in range(400):
        content = [content]
    with pytest.raises(ValueError, match="nested more than 200 levels deep"):
        envelope.agent_event(RUN, NOW, FunctionToolResultEvent(returned(content)))


def test_retry_content_no_older_caller_could_parse_becomes_text():
    payload = envelope.agent_event(RUN, NOW, FunctionToolResultEvent(retried({"a": [1]})))
    assert json.loads(payload)["data"]["part"]["content"] == '{"a":[1]}'


def test_user_content_beside_a_retried_result_stays():
    payload = envelope.agent_event(RUN, NOW, FunctionToolResultEvent(retried("again"), content="look"))
    assert json.loads(payload)["data"]["content"] == "look"


SNAPSHOT = CompositorSessionSnapshot(
    layers=[
        LayerSessionSnapshot(name="prompt", lifecycle_state=LifecycleState.SUSPENDED, runtime_state={"a": [], "b": {}})
    ]
)
USAGE = AgentRunUsage(prompt_tokens=52, completion_tokens=3, total_price=Decimal("0.0000305"), latency=0.41)
DEFERRED = DeferredToolCallPayload(tool_call_id="c", tool_name="ask_human", args={"q": "é"})
WITHOUT_FRACTION = datetime(2026, 11, 30, 12, 22, tzinfo=UTC)

TERMINALS = [
    (
        RunSucceededEvent,
        envelope.run_succeeded,
        RunSucceededEventData(session_snapshot=SNAPSHOT, output={"n": 1}, usage=USAGE),
    ),
    (RunSucceededEvent, envelope.run_succeeded, RunSucceededEventData(session_snapshot=SNAPSHOT, output=None)),
    (
        RunSucceededEvent,
        envelope.run_succeeded,
        RunSucceededEventData(session_snapshot=SNAPSHOT, deferred_tool_call=DEFERRED),
    ),
    (RunFailedEvent, envelope.run_failed, RunFailedEventData(error="quota", reason="InvokeRateLimitError")),
    (
        RunFailedEvent,
        envelope.run_failed,
        RunFailedEventData(error="x", error_type="agent_run_limit_exceeded", session_snapshot=SNAPSHOT, usage=USAGE),
    ),
    (RunCancelledEvent, envelope.run_cancelled, RunCancelledEventData()),
    (
        RunCancelledEvent,
        envelope.run_cancelled,
        RunCancelledEventData(reason="r", message="m", session_snapshot=SNAPSHOT, usage=USAGE),
    ),
]


@pytest.mark.parametrize(("model", "build", "data"), TERMINALS)
@pytest.mark.parametrize("moment", [NOW, WITHOUT_FRACTION])
def test_terminal_events_equal_the_protocol_models(model, build, data, moment):
    payload = build(RUN, moment, data)
    assert payload == RUN_EVENT_ADAPTER.dump_json(model(run_id=RUN, created_at=moment, data=data), exclude={"id"})
    assert RUN_EVENT_ADAPTER.validate_json(payload).data == data


def test_golden_terminals():
    data = RunSucceededEventData(session_snapshot=CompositorSessionSnapshot(layers=[]), output=None)
    assert envelope.run_succeeded("R", WITHOUT_FRACTION, data) == (
        b'{"run_id":"R","created_at":"2026-11-30T12:22:00Z","type":"run_succeeded",'
        b'"data":{"session_snapshot":{"schema_version":1,"layers":[]},"output":null}}'
    )
    assert envelope.run_cancelled("R", WITHOUT_FRACTION, RunCancelledEventData(reason="a")) == (
        b'{"run_id":"R","created_at":"2026-11-30T12:22:00Z","type":"run_cancelled",'
        b'"data":{"reason":"a","message":null,"session_snapshot":null}}'
    )


def test_nan_and_surrogates_in_a_terminal_event():
    data = RunSucceededEventData.model_construct(
        _fields_set={"output", "session_snapshot"}, output={"a": float("nan"), "b": "\ud800"}, session_snapshot=SNAPSHOT
    )
    data.deferred_tool_call = data.usage = None
    assert json.loads(envelope.run_succeeded(RUN, NOW, data))["data"]["output"] == {"a": None, "b": "�"}


def test_run_started():
    payload = envelope.run_started("R", NOW)
    assert payload == b'{"run_id":"R","created_at":"2026-11-30T12:20:34.880587Z","type":"run_started","data":{}}'
    assert payload == RUN_EVENT_ADAPTER.dump_json(RunStartedEvent(run_id="R", created_at=NOW), exclude={"id"})


def test_another_zone_is_written_as_utc():
    moment = NOW.astimezone(timezone(timedelta(hours=2)))
    assert b'"created_at":"2026-11-30T12:20:34.880587Z"' in envelope.run_started("R", moment)


def test_sse_frame():
    frame = envelope.sse_frame("1796041234881-1", "run_started", envelope.run_started("R", NOW))
    assert frame == (
        b"id: 1796041234881-1\nevent: run_started\n"
        b'data: {"id":"1796041234881-1","run_id":"R","created_at":"2026-11-30T12:20:34.880587Z",'
        b'"type":"run_started","data":{}}\n\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        "data: injected\n\nevent: run_failed\ndata: {}\n\n",
        "\r\n\r\n: comment",
        "[DONE]",
        "a\u2028b\u2029c\x85d",
        "\xc2\x85 \xe2\x80\xa8 é 漢 \U0001f600",
        '{"id":"9-9","run_id":"R","type":"run_succeeded","data":{}}',
    ],
)
def test_payload_text_reaches_the_reader_verbatim(text):
    payload = envelope.agent_event("R", NOW, text_delta(text))
    frame = envelope.sse_frame("5-1", "pydantic_ai_event", payload)
    lines = frame.decode().splitlines()
    assert [line.split(": ", 1)[0] for line in lines] == ["id", "event", "data", ""]
    event = json.loads(lines[2].removeprefix("data: "))
    assert event["agent_message_delta"] == event["data"]["delta"]["content_delta"] == text
    assert event["id"] == "5-1"
    assert event["type"] == "pydantic_ai_event"


def test_other_non_ascii_stays_raw_on_sse():
    payload = envelope.agent_event("R", NOW, text_delta("é漢\u2028"))
    frame = envelope.sse_frame("5-1", "pydantic_ai_event", payload)
    assert "é漢\\u2028".encode() in frame


def test_the_store_finds_the_type_behind_any_run_id():
    from dify_agent.protocol.event_id import EventId
    from dify_agent.store.base import StoredEvent

    payload = envelope.run_started('","type":"run_failed', NOW)
    assert StoredEvent(EventId(1, 1), payload).type == "run_started"
