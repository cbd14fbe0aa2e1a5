"""The tenant of a request, read before any layer exists."""

import json
from typing import Any

import pytest
from tests.unit.actors.world import model, prompt, request, text

from dify_agent.actors.static_configs import NO_TENANT, tenant_of
from dify_agent.layers.execution_context import DifyExecutionContextLayerConfig
from dify_agent.protocol.schemas import CreateRunRequest, RunComposition, RunLayerSpec

CONFIG = {"tenant_id": "t1", "agent_mode": "agent_app", "invoke_from": "service-api"}


def context(config: Any, name: str = "context") -> dict[str, Any]:
    return {"name": name, "type": "dify.execution_context", "config": config}


@pytest.mark.parametrize("config", [CONFIG, json.dumps(CONFIG), {"tenant_id": "t1"}, {**CONFIG, "surplus": 1}])
def test_the_tenant_of_a_mapping_or_json_text(config: Any) -> None:
    assert tenant_of(request(prompt(), context(config), model(text()))) == "t1"


def test_the_tenant_of_a_dto() -> None:
    config = DifyExecutionContextLayerConfig(tenant_id="t1", agent_mode="agent_app", invoke_from="service-api")
    layer = RunLayerSpec(name="context", type="dify.execution_context", config=config)
    assert tenant_of(CreateRunRequest(composition=RunComposition(layers=[layer]))) == "t1"


@pytest.mark.parametrize(
    "config",
    [None, "", "not json", "[" * 100_000, "7", [], {}, {"tenant_id": 7}, {"tenant_id": None}, '{"tenant_id":[]}'],
)
def test_what_cannot_be_read_is_no_tenant(config: Any) -> None:
    assert tenant_of(request(context(config))) == NO_TENANT


def test_no_execution_context_is_no_tenant() -> None:
    named = {"name": "dify.execution_context", "type": "plain.prompt", "config": {"tenant_id": "t1"}}
    assert tenant_of(request(named)) == NO_TENANT


def test_the_first_of_two_counts() -> None:
    assert tenant_of(request(context({"tenant_id": "a"}), context({"tenant_id": "b"}, "other"))) == "a"
