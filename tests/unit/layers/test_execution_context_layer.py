"""`dify.execution_context`: data for other layers, nothing for the model."""

from typing import ClassVar

import pytest
from pydantic import ValidationError

from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton.layers import LayerDeps, PlainLayer
from agenton_collections.transformers.pydantic_ai import PYDANTIC_AI_TRANSFORMERS
from dify_agent.layers import execution_context
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.protocol import execution_context as protocol_module

CONFIG = {"tenant_id": "t1", "agent_mode": "workflow_run", "invoke_from": "service-api", "user_id": "u1"}


class Deps(LayerDeps):
    execution_context: DifyExecutionContextLayer


class Dependant(PlainLayer[Deps]):
    type_id: ClassVar[str | None] = "test.dependant"


def test_the_package_exports_exactly_the_callers_names():
    assert execution_context.__all__ == [
        "DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID",
        "DifyExecutionContextAgentConfigVersionKind",
        "DifyExecutionContextAgentMode",
        "DifyExecutionContextInvokeFrom",
        "DifyExecutionContextLayerConfig",
        "DifyExecutionContextUserFrom",
    ]
    assert execution_context.DifyExecutionContextLayerConfig is protocol_module.DifyExecutionContextLayerConfig
    assert DifyExecutionContextLayer.type_id == "dify.execution_context"


async def test_dependants_read_its_config_and_the_model_gets_nothing():
    nodes = [
        LayerNode("context", DifyExecutionContextLayer),
        LayerNode("dependant", Dependant, deps={"execution_context": "context"}),
    ]
    async with Compositor(nodes, **PYDANTIC_AI_TRANSFORMERS).enter(configs={"context": CONFIG}) as run:
        context = run.get_layer("dependant", Dependant).deps.execution_context
        assert context is run.get_layer("context")
        assert (context.config.tenant_id, context.config.user_id, context.config.app_id) == ("t1", "u1", None)
        assert [list(run.prompts), list(run.user_prompts), list(run.tools)] == [[], [], []]
    assert run.session_snapshot is not None
    assert run.session_snapshot.layers[0].runtime_state == {}


@pytest.mark.parametrize(
    "change",
    [
        {"tenant_id": None},
        {"agent_mode": None},
        {"agent_mode": "unheard-of"},
        {"invoke_from": "workflow_run"},
        {"user_from": "user"},
        {"agent_config_version_kind": "published"},
        {"token": "t"},
    ],
)
def test_invalid_configs(change):
    with pytest.raises(ValidationError):
        LayerProvider.from_layer_type(DifyExecutionContextLayer).create_layer({**CONFIG, **change})


@pytest.mark.parametrize("missing", ["tenant_id", "agent_mode", "invoke_from"])
def test_required_members(missing):
    config = {key: value for key, value in CONFIG.items() if key != missing}
    with pytest.raises(ValidationError, match=missing):
        LayerProvider.from_layer_type(DifyExecutionContextLayer).create_layer(config)
