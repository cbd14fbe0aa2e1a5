"""`dify.execution_context`: on whose behalf and where in Dify a run happens (specification: layers 2.8)."""

from dify_agent.protocol.execution_context import (
    DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID,
    DifyExecutionContextAgentConfigVersionKind,
    DifyExecutionContextAgentMode,
    DifyExecutionContextInvokeFrom,
    DifyExecutionContextLayerConfig,
    DifyExecutionContextUserFrom,
)

__all__ = [
    "DIFY_EXECUTION_CONTEXT_LAYER_TYPE_ID",
    "DifyExecutionContextAgentConfigVersionKind",
    "DifyExecutionContextAgentMode",
    "DifyExecutionContextInvokeFrom",
    "DifyExecutionContextLayerConfig",
    "DifyExecutionContextUserFrom",
]
