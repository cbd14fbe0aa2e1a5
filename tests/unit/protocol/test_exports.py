"""The names callers import (protocol 7.1, 7.5, 7.6), and that importing them stays light."""

import importlib
import json
import subprocess
import sys

import pytest

from dify_agent import protocol


def words(text: str) -> list[str]:
    return text.split()


RUN_NAMES = words(
    """
    AgentRunUsage BaseRunEvent CancelRunRequest CancelRunResponse CreateRunRequest CreateRunResponse
    DeferredToolCallPayload DeferredToolResultsPayload DIFY_AGENT_HISTORY_LAYER_ID DIFY_AGENT_MODEL_LAYER_ID
    DIFY_AGENT_OUTPUT_LAYER_ID EmptyRunEventData LayerExitSignals PydanticAIStreamRunEvent RUN_EVENT_ADAPTER
    RunCancelledEvent RunCancelledEventData RunComposition RunEvent RunEventType RunEventsResponse RunFailedEvent
    RunFailedEventData RunFailureType RunLayerSpec RunStartedEvent RunStatus RunStatusResponse RunSucceededEvent
    RunSucceededEventData normalize_composition utc_now
    """
)
RESOURCE_NAMES = words(
    """
    BindingFileDownloadRequest BindingFileDownloadResponse BindingFileEntry BindingFileListRequest
    BindingFileListResponse BindingFileReadRequest BindingFileReadResponse CreateExecutionBindingRequest
    CreateExecutionBindingResponse DestroyExecutionBindingRequest CreateHomeSnapshotFromBindingRequest
    DeleteHomeSnapshotRequest HomeSnapshotResponse
    """
)
LAYER_NAMES = words(
    """
    AllPromptTypes AllToolTypes AllUserPromptTypes EmptyLayerConfig EmptyRuntimeState ExitIntent Layer LayerConfig
    LayerConfigValue LayerDeps LifecycleState NoLayerDeps PlainLayer PlainPrompt PlainPromptType PlainTool
    PlainToolType PlainUserPrompt PlainUserPromptType PydanticAILayer PydanticAIPrompt PydanticAIPromptType
    PydanticAITool PydanticAIToolType PydanticAIUserPrompt PydanticAIUserPromptType
    """
)
COMPOSITOR_NAMES = words(
    """
    Compositor CompositorConfig CompositorConfigValue CompositorRun CompositorSessionSnapshot
    CompositorSessionSnapshotValue CompositorTransformer CompositorTransformerKwargs LayerFactory LayerNode
    LayerNodeConfig LayerProvider LayerRunSlot LayerSessionSnapshot LayerConfigInput LayerProviderInput
    """
)
PLAIN_NAMES = words(
    """
    PLAIN_PROMPT_LAYER_TYPE_ID PromptLayerConfig PromptLayer ToolsLayer ObjectLayer DynamicToolsLayer
    DynamicToolsLayerDeps with_object
    """
)
PYDANTIC_AI_NAMES = words(
    """
    PYDANTIC_AI_HISTORY_LAYER_TYPE_ID PydanticAIHistoryLayer PydanticAIHistoryRuntimeState PydanticAIBridgeLayer
    PydanticAIBridgeLayerDeps
    """
)

NAMES = {
    "dify_agent.protocol": [*RUN_NAMES, *RESOURCE_NAMES],
    "dify_agent.protocol.schemas": [*RUN_NAMES, *RESOURCE_NAMES],
    "agenton.layers": LAYER_NAMES,
    "agenton.compositor": COMPOSITOR_NAMES,
    "agenton_collections.layers.plain": PLAIN_NAMES,
    "agenton_collections.layers.pydantic_ai": PYDANTIC_AI_NAMES,
}
SERVER_PARTS = [
    "quart", "quart_trio", "hypercorn", "coredis", "redis", "pydantic_settings", "structlog", "typer", "rich",
    "jsonschema", "trio_websocket", "dify_agent.settings", "dify_agent.http", "dify_agent.main",
    "dify_agent.supervisor", "dify_agent.store",
]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_name_is_importable(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_protocol_exports_exactly_these() -> None:
    assert sorted(protocol.__all__) == sorted([*RUN_NAMES, *RESOURCE_NAMES])
    assert not hasattr(protocol, "ExecutionContext")
    assert not hasattr(protocol, "RunPurpose")


def test_reserved_layer_names() -> None:
    names = (
        protocol.DIFY_AGENT_MODEL_LAYER_ID,
        protocol.DIFY_AGENT_HISTORY_LAYER_ID,
        protocol.DIFY_AGENT_OUTPUT_LAYER_ID,
    )
    assert names == ("llm", "history", "output")


def test_failure_type_is_a_string_enum_with_one_member() -> None:
    assert [(kind.name, kind.value) for kind in protocol.RunFailureType] == [
        ("AGENT_RUN_LIMIT_EXCEEDED", "agent_run_limit_exceeded")
    ]
    assert protocol.RunFailureType.AGENT_RUN_LIMIT_EXCEEDED == "agent_run_limit_exceeded"


def loaded(statement: str) -> set[str]:
    """Modules a statement loads in a fresh interpreter that lacks what a caller without the server does not install.

    Libraries below Pydantic AI import Trio and Rich when they are there, so their absence has to be made.
    """
    absent = "sys.modules['trio'] = sys.modules['rich'] = None"
    names = "[name for name, module in sys.modules.items() if module is not None]"
    script = f"import json, sys; {absent}; {statement}; print(json.dumps({names}))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["dify_agent.protocol", "dify_agent.protocol.schemas"])
def test_importing_the_protocol_is_light(module: str) -> None:
    modules = loaded(f"import {module}")
    assert module in modules
    assert not modules & set(SERVER_PARTS)


def test_importing_the_package_root_loads_nothing() -> None:
    modules = loaded("import dify_agent")
    assert not modules & {"pydantic", "pydantic_ai", "dify_agent.protocol", "dify_agent.client", *SERVER_PARTS}
