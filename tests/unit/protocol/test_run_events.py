"""The event envelope: retyped vectors, presence rules, unknown members, round trips."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_ai.messages import PartDeltaEvent, TextPartDelta

from agenton.compositor import CompositorSessionSnapshot
from dify_agent import protocol
from dify_agent.protocol import (
    RUN_EVENT_ADAPTER,
    AgentRunUsage,
    DeferredToolCallPayload,
    PydanticAIStreamRunEvent,
    RunCancelledEvent,
    RunEventsResponse,
    RunFailedEvent,
    RunFailedEventData,
    RunStartedEvent,
    RunSucceededEvent,
    RunSucceededEventData,
)

SNAPSHOT = {"schema_version": 1, "layers": [{"name": "a", "lifecycle_state": "suspended", "runtime_state": {"k": [1]}}]}
USAGE = {
    "prompt_tokens": 40, "prompt_unit_price": "0.5", "prompt_price_unit": "0.000001", "prompt_price": "0.00002",
    "completion_tokens": 2, "completion_unit_price": "1.5", "completion_price_unit": "0.000001",
    "completion_price": "0.000003", "total_tokens": 42, "total_price": "0.000023", "currency": "EUR",
    "latency": 0.5, "time_to_first_token": 0.25, "time_to_generate": None,
}  # fmt: skip
CALL = {"tool_call_id": "c-1", "tool_name": "ask_human", "args": {"question": "Now?"}, "metadata": {"v": 1}}
BOTH_OR_NEITHER = "Exactly one of output or deferred_tool_call must be set"


def event(kind: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"id": "1796041234881-3", "run_id": "R", "created_at": "2026-11-30T12:20:34.880587Z"}
    return {**head, "type": kind, "data": data, **more}


DELTA = {
    "index": 0, "delta": {"content_delta": "hi ", "provider_name": None, "provider_details": None,
                          "citations_delta": None, "part_delta_kind": "text"},
    "event_kind": "part_delta",
}  # fmt: skip
VECTORS = [
    event("run_started", {}),
    event("pydantic_ai_event", DELTA, agent_message_delta="hi "),
    event("run_succeeded", {"session_snapshot": SNAPSHOT, "output": {"state": "green"}, "usage": USAGE}),
    event("run_succeeded", {"session_snapshot": SNAPSHOT, "output": None}),
    event("run_succeeded", {"session_snapshot": {"schema_version": 1, "layers": []}, "deferred_tool_call": CALL}),
    event("run_succeeded", {"session_snapshot": SNAPSHOT, "deferred_tool_call": {**CALL, "args": None},
                            "usage": USAGE}),
    event("run_failed", {"error": "quota", "error_type": None, "reason": "InvokeRateLimitError",
                         "session_snapshot": SNAPSHOT}),
    event("run_failed", {"error": "limit", "error_type": "agent_run_limit_exceeded", "reason": None,
                         "session_snapshot": None, "usage": USAGE}),
    event("run_cancelled", {"reason": "workflow_aborted", "message": "Outer stop", "session_snapshot": None}),
    event("run_cancelled", {"reason": None, "message": None, "session_snapshot": SNAPSHOT, "usage": USAGE}),
]  # fmt: skip


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("vector", VECTORS)
def test_vector_round_trips_byte_for_byte(vector: dict[str, Any]) -> None:
    parsed = RUN_EVENT_ADAPTER.validate_json(compact(vector))
    assert RUN_EVENT_ADAPTER.dump_json(parsed).decode() == compact(vector)
    assert RUN_EVENT_ADAPTER.validate_python(vector) == parsed
    stored = {name: value for name, value in vector.items() if name != "id"}
    assert RUN_EVENT_ADAPTER.dump_json(parsed, exclude={"id"}).decode() == compact(stored)


def test_page_round_trips() -> None:
    page = {"run_id": "R", "events": VECTORS, "next_cursor": "1796041234881-3"}
    assert RunEventsResponse.model_validate_json(compact(page)).model_dump_json() == compact(page)
    assert RunEventsResponse(run_id="R", events=[]).model_dump_json() == '{"run_id":"R","events":[],"next_cursor":null}'


@pytest.mark.parametrize("kind", ["run_started", "run_cancelled"])
def test_members_that_may_be_missing(kind: str) -> None:
    parsed = RUN_EVENT_ADAPTER.validate_python({"run_id": "R", "type": kind})
    assert parsed.id is None
    assert parsed.created_at.utcoffset() is not None
    written = json.loads(RUN_EVENT_ADAPTER.dump_json(parsed))
    assert list(written) == ["id", "run_id", "created_at", "type", "data"]
    assert written["id"] is None


@pytest.mark.parametrize("kind", ["pydantic_ai_event", "run_succeeded", "run_failed"])
def test_data_is_required(kind: str) -> None:
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python({"run_id": "R", "type": kind})


def test_type_has_a_default_in_constructors() -> None:
    assert RunStartedEvent(run_id="R").type == "run_started"
    assert RunCancelledEvent(run_id="R").data.reason is None
    assert RunFailedEvent(run_id="R", data=RunFailedEventData(error="e")).type == "run_failed"


@pytest.mark.parametrize("kind", [None, "", "run_paused", "RUN_STARTED"])
def test_other_types_are_refused(kind: object) -> None:
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python({"run_id": "R", "type": kind, "data": {}})
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python({"run_id": "R", "data": {}})


def test_delta_member_is_on_stream_events_only() -> None:
    for vector in VECTORS:
        if vector["type"] != "pydantic_ai_event":
            with pytest.raises(ValidationError):
                RUN_EVENT_ADAPTER.validate_python({**vector, "agent_message_delta": None})


class TestSuccess:
    @pytest.mark.parametrize(
        "data",
        [{}, {"output": 1, "deferred_tool_call": CALL}, {"output": None, "deferred_tool_call": CALL},
         {"deferred_tool_call": None}],
    )  # fmt: skip
    def test_both_or_neither_is_refused(self, data: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as failure:
            RUN_EVENT_ADAPTER.validate_python(event("run_succeeded", {"session_snapshot": SNAPSHOT, **data}))
        assert BOTH_OR_NEITHER in str(failure.value)

    def test_inactive_branch_and_unknown_usage_are_left_out(self) -> None:
        snapshot = CompositorSessionSnapshot.model_validate(SNAPSHOT)
        output = RunSucceededEventData(output=None, session_snapshot=snapshot)
        call = RunSucceededEventData(
            deferred_tool_call=DeferredToolCallPayload(tool_call_id="c", tool_name="t", args=[]),
            session_snapshot=snapshot,
            usage=AgentRunUsage(),
        )
        assert list(json.loads(output.model_dump_json())) == ["session_snapshot", "output"]
        assert list(json.loads(call.model_dump_json())) == ["session_snapshot", "deferred_tool_call", "usage"]
        assert call.model_dump()["deferred_tool_call"]["metadata"] == {}

    def test_snapshot_is_required(self) -> None:
        with pytest.raises(ValidationError):
            RUN_EVENT_ADAPTER.validate_python(event("run_succeeded", {"output": 1}))

    def test_output_null_survives_a_round_trip(self) -> None:
        data = RunSucceededEventData(output=None, session_snapshot=CompositorSessionSnapshot(layers=[]))
        sent = RunSucceededEvent(run_id="R", data=data)
        read = RUN_EVENT_ADAPTER.validate_json(RUN_EVENT_ADAPTER.dump_json(sent))
        assert read.data.output is None
        assert "output" in read.data.model_fields_set


@pytest.mark.parametrize("kind", ["run_failed", "run_cancelled"])
def test_usage_null_is_read_and_left_out_again(kind: str) -> None:
    data = {"session_snapshot": None, "usage": None, **({"error": "e"} if kind == "run_failed" else {})}
    parsed = RUN_EVENT_ADAPTER.validate_python(event(kind, data))
    written = json.loads(RUN_EVENT_ADAPTER.dump_json(parsed))["data"]
    assert "usage" not in written
    assert written["session_snapshot"] is None


def test_failure_type_is_strict() -> None:
    with pytest.raises(ValidationError):
        RUN_EVENT_ADAPTER.validate_python(event("run_failed", {"error": "e", "error_type": "phase_timeout"}))


def test_printed_form() -> None:
    shown = str(RUN_EVENT_ADAPTER.validate_python(VECTORS[1]))
    assert shown.startswith(
        "id='1796041234881-3' run_id='R' created_at=datetime.datetime(2026, 11, 30, 12, 20, 34, 880587"
    )
    assert " type='pydantic_ai_event' data=PartDeltaEvent(" in shown
    assert shown.endswith(" agent_message_delta='hi '")
    data = repr(RUN_EVENT_ADAPTER.validate_python(VECTORS[2]).data)
    assert data.startswith(
        "RunSucceededEventData(output={'state': 'green'}, deferred_tool_call=None, session_snapshot="
    )


def test_json_schema_can_be_made() -> None:
    for mode in ("validation", "serialization"):
        schema = RUN_EVENT_ADAPTER.json_schema(mode=mode)
        assert schema["discriminator"]["propertyName"] == "type"


MODELS = [
    value
    for name in protocol.__all__
    if isinstance(value := getattr(protocol, name), type) and issubclass(value, BaseModel)
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_dto_refuses_unknown_members(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as failure:
        model.model_validate({"never_heard_of": 1})
    found = [item["loc"] for item in failure.value.errors() if item["type"] == "extra_forbidden"]
    assert found == [("never_heard_of",)]


@pytest.mark.parametrize(
    "path",
    [(), ("data",), ("data", "usage"), ("data", "session_snapshot"), ("data", "session_snapshot", "layers", 0)],
)
def test_unknown_members_inside_an_event_are_refused(path: tuple[Any, ...]) -> None:
    vector = json.loads(compact(VECTORS[2]))
    target = vector
    for step in path:
        target = target[step]
    target["never_heard_of"] = 1
    with pytest.raises(ValidationError) as failure:
        RUN_EVENT_ADAPTER.validate_json(compact(vector))
    assert [item["type"] for item in failure.value.errors()] == ["extra_forbidden"]


# Round trips. Texts may hold anything UTF-8 can carry, line separators and NUL included.
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
USAGES = st.none() | st.builds(
    AgentRunUsage,
    prompt_tokens=st.integers(0, 10**9),
    completion_tokens=st.integers(0, 10**9),
    total_price=st.decimals(0, 10, places=9),
    latency=st.floats(0, 1e6),
)
SNAPSHOTS = st.dictionaries(TEXT, JSON, max_size=2).map(
    lambda state: CompositorSessionSnapshot.model_validate(
        {"layers": [{"name": "a", "lifecycle_state": "closed", "runtime_state": state}]}
    )
)
CALLS = st.builds(DeferredToolCallPayload, tool_call_id=TEXT, tool_name=TEXT, args=JSON)
SUCCESS = st.builds(RunSucceededEventData, output=JSON, session_snapshot=SNAPSHOTS, usage=USAGES) | st.builds(
    RunSucceededEventData, deferred_tool_call=CALLS, session_snapshot=SNAPSHOTS, usage=USAGES
)
FAILURE = st.builds(
    RunFailedEventData,
    error=TEXT,
    error_type=st.none() | st.sampled_from(protocol.RunFailureType),
    reason=st.none() | TEXT,
    session_snapshot=st.none() | SNAPSHOTS,
    usage=USAGES,
)
CANCELLATION = st.builds(
    protocol.RunCancelledEventData,
    reason=st.none() | TEXT,
    message=st.none() | TEXT,
    session_snapshot=st.none() | SNAPSHOTS,
    usage=USAGES,
)
DELTAS = TEXT.map(lambda text: PartDeltaEvent(index=0, delta=TextPartDelta(content_delta=text)))
HEAD = {
    "id": st.none() | st.just("5-1"),
    "run_id": TEXT,
    "created_at": st.datetimes(timezones=st.timezones()),
}
EVENTS = st.one_of(
    st.builds(RunStartedEvent, **HEAD),
    st.builds(PydanticAIStreamRunEvent, **HEAD, data=DELTAS),
    st.builds(RunSucceededEvent, **HEAD, data=SUCCESS),
    st.builds(RunFailedEvent, **HEAD, data=FAILURE),
    st.builds(RunCancelledEvent, **HEAD, data=CANCELLATION),
)


@given(EVENTS)
def test_any_event_round_trips(sent: Any) -> None:
    text = RUN_EVENT_ADAPTER.dump_json(sent)
    read = RUN_EVENT_ADAPTER.validate_json(text)
    assert read == sent
    assert RUN_EVENT_ADAPTER.dump_json(read) == text
    assert RUN_EVENT_ADAPTER.validate_python(RUN_EVENT_ADAPTER.dump_python(sent, mode="json")) == sent
