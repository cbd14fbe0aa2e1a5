"""Config of the layer type ``dify.execution_context`` (specification: layers 2.8).

It stands here because a file download carries it in its body, and the protocol may not import layers. Callers import it
from ``dify_agent.layers.execution_context``.
"""

from typing import Literal

from pydantic import ConfigDict

from agenton.layers import LayerConfig

DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID = "dify.execution_context"

DifyExecutionContextAgentMode = Literal["workflow_run", "single_step", "agent_app", "babysit", "fasten"]
DifyExecutionContextInvokeFrom = Literal[
    "service-api", "openapi", "web-app", "trigger", "explore", "debugger", "published", "validation"
]
DifyExecutionContextUserFrom = Literal["account", "end-user"]
DifyExecutionContextAgentConfigVersionKind = Literal["snapshot", "draft", "build_draft"]


class DifyExecutionContextLayerConfig(LayerConfig):
    """On whose behalf and where in Dify a run happens. Nothing in it is proof of authorisation."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: str
    user_id: str | None = None
    user_from: DifyExecutionContextUserFrom | None = None
    app_id: str | None = None
    workflow_id: str | None = None
    workflow_run_id: str | None = None
    node_id: str | None = None
    node_execution_id: str | None = None
    conversation_id: str | None = None
    agent_id: str | None = None
    agent_config_version_id: str | None = None
    agent_config_version_kind: DifyExecutionContextAgentConfigVersionKind | None = None
    agent_mode: DifyExecutionContextAgentMode
    invoke_from: DifyExecutionContextInvokeFrom
    trace_id: str | None = None
