"""The mark that tells readers of a stream which part may be the run's result."""

from pydantic_ai.messages import FinalResultEvent, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters


def final_result(part: ModelResponsePart, parameters: ModelRequestParameters) -> FinalResultEvent | None:
    """The mark that follows the start of ``part``, if it can be the run's result (agent-loop 3.1)."""
    if isinstance(part, TextPart) and parameters.allow_text_output:
        return FinalResultEvent(tool_name=None, tool_call_id=None)
    if isinstance(part, ToolCallPart) and (definition := parameters.tool_defs.get(part.tool_name)):
        if definition.kind == "output":
            return FinalResultEvent(tool_name=part.tool_name, tool_call_id=part.tool_call_id)
        if definition.defer:
            return FinalResultEvent(tool_name=None, tool_call_id=None)
    return None
