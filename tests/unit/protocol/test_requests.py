"""Requests, answers and the record: shapes, defaults, coercions."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_ai.tools import DeferredToolResults

from agenton.compositor import CompositorConfig, CompositorSessionSnapshot
from agenton.layers import ExitIntent, LayerConfig
from dify_agent.protocol import (
    AgentRunUsage,
    BindingFileReadRequest,
    CancelRunRequest,
    CancelRunResponse,
    CreateExecutionBindingRequest,
    CreateRunRequest,
    CreateRunResponse,
    DeferredToolResultsPayload,
    DestroyExecutionBindingRequest,
    LayerExitSignals,
    RunComposition,
    RunLayerSpec,
    RunStatusResponse,
    normalize_composition,
    utc_now,
)


class StyleConfig(LayerConfig):
    tone: str
    words: int = 20


FULL_REQUEST: dict[str, Any] = {
    "composition": {
        "schema_version": 1,
        "layers": [
            {"name": "prompt", "type": "plain.prompt", "deps": {}, "metadata": {"from": "test"},
             "config": {"prefix": "Be brief.", "user": ["Who?", "Where?"], "suffix": []}},
            {"name": "history", "type": "pydantic_ai.history", "deps": {}, "metadata": {}, "config": None},
            {"name": "llm", "type": "dify.plugin.llm", "deps": {"execution_context": "ctx"}, "metadata": {},
             "config": {"plugin_id": "a/b", "model_settings": {"temperature": 0.5}}},
            {"name": "output", "type": "dify.output", "deps": {}, "metadata": {}, "config": '{"json_schema": {}}'},
        ],
    },
    "idempotency_key": "k-1",
    "metadata": {"source": ["test", None, 1.5]},
    "session_snapshot": {
        "schema_version": 1,
        "layers": [
            {"name": "prompt", "lifecycle_state": "closed", "runtime_state": {}},
            {"name": "history", "lifecycle_state": "suspended", "runtime_state": {"messages": [{"kind": "request"}]}},
        ],
    },
    "deferred_tool_results": {"calls": {"c-1": {"status": "submitted", "values": {"note": "ok"}}}, "metadata": {}},
    "on_exit": {"default": "suspend", "layers": {"prompt": "delete"}},
}  # fmt: skip

ROUND_TRIPS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (CreateRunRequest, FULL_REQUEST),
    (CreateRunResponse, {"run_id": "R", "status": "running"}),
    (CancelRunRequest, {"reason": "workflow_aborted", "message": "No longer needed"}),
    (CancelRunResponse, {"run_id": "R", "status": "cancelled"}),
    (
        RunStatusResponse,
        {"run_id": "R", "status": "failed", "created_at": "2026-11-30T09:00:00.120001Z",
         "updated_at": "2026-11-30T10:00:00Z",
         "error": "Agent run exceeded the configured limit of 3600 seconds", "error_type": "agent_run_limit_exceeded"},
    ),
    (LayerExitSignals, {"default": "delete", "layers": {"a": "suspend"}}),
    (DeferredToolResultsPayload, {"calls": {"c": None}, "metadata": {"c": {"k": 1}}}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "value"), ROUND_TRIPS)
def test_full_form_round_trips_with_member_order(model: type[BaseModel], value: dict[str, Any]) -> None:
    written = model.model_validate_json(json.dumps(value)).model_dump_json()
    assert written == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_create_defaults_are_written() -> None:
    request = CreateRunRequest.model_validate_json('{"composition":{"layers":[{"name":"p","type":"t"}]}}')
    assert json.loads(request.model_dump_json()) == {
        "composition": {
            "schema_version": 1,
            "layers": [{"name": "p", "type": "t", "deps": {}, "metadata": {}, "config": None}],
        },
        "idempotency_key": None,
        "metadata": {},
        "session_snapshot": None,
        "deferred_tool_results": None,
        "on_exit": {"default": "suspend", "layers": {}},
    }


@pytest.mark.parametrize(
    "member", ["user_prompt", "agent_profile", "compositor", "execution_context", "purpose", "model"]
)
def test_members_of_other_generations_are_refused(member: str) -> None:
    with pytest.raises(ValidationError) as failure:
        CreateRunRequest.model_validate({**FULL_REQUEST, member: "x"})
    assert [(item["type"], item["loc"]) for item in failure.value.errors()] == [("extra_forbidden", (member,))]


def test_all_violations_are_listed() -> None:
    with pytest.raises(ValidationError) as failure:
        CreateRunRequest.model_validate({"composition": {"layers": [{}]}, "a": 1, "metadata": []})
    assert len(failure.value.errors()) == 4


def test_exit_intents() -> None:
    signals = LayerExitSignals(default=ExitIntent.SUSPEND, layers={"temporary_context": ExitIntent.DELETE})
    assert signals.model_dump_json() == '{"default":"suspend","layers":{"temporary_context":"delete"}}'
    with pytest.raises(ValidationError, match="Input should be 'delete' or 'suspend'"):
        LayerExitSignals.model_validate({"default": "keep"})


@pytest.mark.parametrize("state", ["new", "suspended", "closed"])
def test_snapshot_states_are_accepted(state: str) -> None:
    layer = {"name": "a", "lifecycle_state": state, "runtime_state": {}}
    value = {**FULL_REQUEST, "session_snapshot": {"layers": [layer]}}
    snapshot = CreateRunRequest.model_validate(value).session_snapshot
    assert isinstance(snapshot, CompositorSessionSnapshot)
    assert snapshot.layers[0].lifecycle_state == state


def test_active_snapshot_state_is_refused() -> None:
    layer = {"name": "a", "lifecycle_state": "active", "runtime_state": {}}
    message = "LifecycleState.ACTIVE is internal-only and cannot appear in session snapshots."
    with pytest.raises(ValidationError, match=message):
        CreateRunRequest.model_validate({**FULL_REQUEST, "session_snapshot": {"layers": [layer]}})


def test_integer_members_accept_numeric_strings() -> None:
    assert RunComposition.model_validate_json('{"schema_version":"2","layers":[]}').schema_version == 2


@pytest.mark.parametrize("config", [None, {}, {"a": [1]}, [], "{", '{"a":1}', 0, 1.5, True])
def test_any_json_config_is_kept_as_given(config: object) -> None:
    layer = {"name": "a", "type": "t", "config": config}
    spec = RunLayerSpec.model_validate_json(json.dumps(layer))
    assert spec.config == config
    assert type(spec.config) is type(config)
    assert json.loads(spec.model_dump_json())["config"] == config


def test_a_config_that_is_no_json_value_is_refused() -> None:
    with pytest.raises(ValidationError):
        RunLayerSpec(name="a", type="t", config=object())


def test_config_dto_stays_itself_and_is_written_with_all_its_fields() -> None:
    config = StyleConfig(tone="dry")
    spec = RunLayerSpec(name="style", type="t", config=config)
    assert spec.config is config
    assert json.loads(spec.model_dump_json())["config"] == {"tone": "dry", "words": 20}
    request = CreateRunRequest(composition=RunComposition(layers=[spec]))
    assert json.loads(request.model_dump_json())["composition"]["layers"][0]["config"] == {"tone": "dry", "words": 20}


def test_normalize_composition() -> None:
    config = StyleConfig(tone="dry")
    layers = [
        RunLayerSpec(name="a", type="t1", metadata={"k": 1}, config=config),
        RunLayerSpec(name="b", type="t2", deps={"x": "a"}, config='{"j": 1}'),
        RunLayerSpec(name="c", type="t3"),
    ]
    graph, configs = normalize_composition(RunComposition(schema_version=3, layers=layers))
    assert isinstance(graph, CompositorConfig)
    assert graph.schema_version == 3
    assert [(n.name, n.type, dict(n.deps), dict(n.metadata)) for n in graph.layers] == [
        ("a", "t1", {}, {"k": 1}),
        ("b", "t2", {"x": "a"}, {}),
        ("c", "t3", {}, {}),
    ]
    assert configs == {"a": config, "b": '{"j": 1}', "c": None}
    assert configs["a"] is config


def test_deferred_results_to_pydantic_ai() -> None:
    payload = DeferredToolResultsPayload(calls={"c": {"status": "submitted"}, "d": None}, metadata={"c": {"k": 1}})
    results = payload.to_pydantic_ai()
    assert isinstance(results, DeferredToolResults)
    assert results.calls == {"c": {"status": "submitted"}, "d": None}
    assert results.metadata == {"c": {"k": 1}}
    assert results.approvals == {}


def test_record_of_an_older_writer_is_read() -> None:
    text = (
        '{"status":"cancelled","error":"m","run_id":"R","updated_at":"2026-11-30T12:25:14.626848+00:00",'
        '"created_at":"2026-11-30T12:25:13.5+00:00"}'
    )
    record = RunStatusResponse.model_validate_json(text)
    assert record.error_type is None
    written = json.loads(record.model_dump_json())
    assert written["updated_at"] == "2026-11-30T12:25:14.626848Z"
    assert written["created_at"] == "2026-11-30T12:25:13.500000Z"
    assert written["error_type"] is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-11-30T09:00:00Z", "2026-11-30T09:00:00Z"),
        ("2026-11-30T09:00:00.000000+00:00", "2026-11-30T09:00:00Z"),
        ("2026-11-30T09:00:00.000001Z", "2026-11-30T09:00:00.000001Z"),
        ("2026-11-30T10:30:00.5+01:30", "2026-11-30T09:00:00.500000Z"),
    ],
)
def test_timestamps_are_written_in_utc(text: str, written: str) -> None:
    record = RunStatusResponse(run_id="R", status="running", created_at=text, updated_at=text)
    assert json.loads(record.model_dump_json())["created_at"] == written
    assert json.loads(record.model_dump_json())["updated_at"] == written


def test_updated_at_must_carry_a_zone() -> None:
    now = utc_now()
    record = RunStatusResponse(run_id="R", status="running", created_at=datetime(2026, 1, 1), updated_at=now)  # noqa: DTZ001
    assert record.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValidationError):
        RunStatusResponse(run_id="R", status="running", created_at=now, updated_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_utc_now_is_aware() -> None:
    assert utc_now().utcoffset() == timedelta(0)
    assert abs(utc_now() - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize("text", ["queued", "paused", "", "RUNNING"])
def test_other_statuses_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        CreateRunResponse.model_validate({"run_id": "R", "status": text})


def test_cancel_request_may_be_empty_but_its_members_are_text() -> None:
    assert CancelRunRequest.model_validate_json("{}").model_dump_json() == '{"reason":null,"message":null}'
    with pytest.raises(ValidationError, match="Input should be a valid string"):
        CancelRunRequest.model_validate({"reason": 1})


class TestUsage:
    def test_member_order_and_types(self) -> None:
        usage = AgentRunUsage(
            prompt_tokens=40, prompt_price="0.00002", completion_tokens=2, latency=0.5, time_to_generate=0.25
        )
        assert usage.model_dump_json() == (
            '{"prompt_tokens":40,"prompt_unit_price":"0","prompt_price_unit":"0","prompt_price":"0.00002",'
            '"completion_tokens":2,"completion_unit_price":"0","completion_price_unit":"0","completion_price":"0",'
            '"total_tokens":42,"total_price":"0","currency":"USD","latency":0.5,"time_to_first_token":null,'
            '"time_to_generate":0.25}'
        )

    @pytest.mark.parametrize(
        ("prompt", "completion", "total", "expected"),
        [(0, 0, 0, 0), (3, 0, 0, 3), (0, 4, 0, 4), (3, 4, 0, 7), (3, 4, 9, 9), (0, 0, 5, 5)],
    )
    def test_total_tokens(self, prompt: int, completion: int, total: int, expected: int) -> None:
        usage = AgentRunUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)
        assert usage.total_tokens == expected

    @pytest.mark.parametrize(
        ("given", "written"),
        [("0.5", "0.5"), (0.5, "0.5"), (2, "2"), ("0.0000001", "1E-7"), ("1E-7", "1E-7"), ("0.10", "0.10")],
    )
    def test_decimals_are_strings(self, given: object, written: str) -> None:
        usage = AgentRunUsage.model_validate_json(json.dumps({"total_price": given}))
        assert json.loads(usage.model_dump_json())["total_price"] == written


def test_resource_requests() -> None:
    ids = {"tenant_id": "t", "agent_id": "a", "binding_id": "b", "workspace_id": "w"}
    assert CreateExecutionBindingRequest(**ids, existing_workspace_ref="").home_snapshot_ref is None
    for bad in ({"home_snapshot_ref": ""}, {"tenant_id": ""}):
        with pytest.raises(ValidationError):
            CreateExecutionBindingRequest(**{**ids, **bad})
    with pytest.raises(ValidationError):
        DestroyExecutionBindingRequest.model_validate({"binding_ref": "b"})
    for ref in (None, ""):
        with pytest.raises(ValidationError, match="workspace_ref is required when destroy_workspace is true"):
            DestroyExecutionBindingRequest(binding_ref="b", destroy_workspace=True, workspace_ref=ref)
    assert (
        DestroyExecutionBindingRequest(binding_ref="b", destroy_workspace=True, workspace_ref="w").workspace_ref == "w"
    )
    assert BindingFileReadRequest(backend_binding_ref="b", path="p").max_bytes == 262144
    for size in (0, 262145):
        with pytest.raises(ValidationError):
            BindingFileReadRequest(backend_binding_ref="b", path="p", max_bytes=size)
