"""The tool the model calls: its arguments are checked in the run, its result comes from outside."""

from dataclasses import replace
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, TypeAdapter
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_core import SchemaValidator

from dify_agent.layers.ask_human.arguments import AskHumanToolArgs
from dify_agent.layers.ask_human.config import DifyAskHumanLayerConfig
from dify_agent.layers.ask_human.policy import AskHumanPolicyError, apply_policy


def _dump(args: AskHumanToolArgs) -> dict[str, Any]:
    return args.model_dump(mode="json")


# A tool's arguments are a mapping by parameter name; the errors stay those of the model.
_ARGUMENTS: Final = TypeAdapter(Annotated[AskHumanToolArgs, AfterValidator(_dump)])


def ask_human_tool(config: DifyAskHumanLayerConfig) -> Tool[None]:
    """An external, sequential, non-strict tool. Arguments that break the config's limits ask the model to try again."""

    def check(_context: RunContext[None], **arguments: Any) -> None:
        try:
            apply_policy(AskHumanToolArgs.model_validate(arguments), config)
        except AskHumanPolicyError as violation:
            raise ModelRetry(str(violation)) from violation

    tool: Tool[None] = Tool.from_schema(
        _refuse,
        config.tool_name,
        config.effective_tool_description,
        AskHumanToolArgs.model_json_schema(),
        sequential=True,
        args_validator=check,
    )
    # `from_schema` makes a validator that takes anything.
    tool.function_schema = replace(tool.function_schema, validator=cast(SchemaValidator, _ARGUMENTS.validator))
    tool.strict = False
    tool.prepare = _leave_to_the_outside
    return tool


def read_arguments(call: ToolCallPart) -> AskHumanToolArgs:
    """The arguments of a call, as the tool itself reads them: empty text and null are an empty object (decision R20).

    Raises:
        ValidationError: they are not JSON, or not a question.
    """
    if isinstance(call.args, str):
        return AskHumanToolArgs.model_validate_json(call.args or "{}")
    return AskHumanToolArgs.model_validate(call.args or {})


async def _refuse(**_arguments: Any) -> None:  # noqa: ASYNC124 - a sync one would be run in a thread
    raise RuntimeError("A question to a human is answered outside the run; its tool cannot be executed.")


def _leave_to_the_outside(_context: RunContext[None], definition: ToolDefinition) -> ToolDefinition:
    return replace(definition, kind="external")
