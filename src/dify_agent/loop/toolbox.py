"""The tools a run offers, and the validation of their arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import isawaitable
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_core import SchemaValidator

from dify_agent.loop.json_schema import JsonSchemaCheck
from dify_agent.loop.port import OUTPUT_TOOL_NAME, OutputContract
from dify_agent.loop.retries import DEFAULT_TOOL_RETRIES
from dify_agent.loop.texts import DEFAULT_OUTPUT_DESCRIPTION

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that every provider takes."""

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass(frozen=True)
class ToolEntry:
    """One tool as this run offers it."""

    tool: Tool[Any]
    definition: ToolDefinition

    @property
    def max_retries(self) -> int:
        """How often a failed call may be repeated."""
        return DEFAULT_TOOL_RETRIES if self.tool.max_retries is None else self.tool.max_retries

    @cached_property
    def _validates_nothing(self) -> bool:
        # `Tool.from_schema` has a validator that takes anything, so its arguments are checked here instead.
        probe = object()
        try:
            return self.tool.function_schema.validator.validate_python(probe) is probe
        except ValidationError:
            return False

    @cached_property
    def _schema(self) -> JsonSchemaCheck:
        return JsonSchemaCheck(self.definition.parameters_json_schema)

    def validate(self, args: str | dict[str, Any] | None) -> dict[str, Any]:
        """The arguments a call is executed with. Empty text, null and an empty object all mean no arguments.

        Raises:
            ValidationError: they are not JSON, not an object, or do not fit the tool's parameters.
        """
        if not self._validates_nothing:
            validated: dict[str, Any] = _validate(self.tool.function_schema.validator, args)
            return validated
        values: dict[str, Any] = _validate(_OBJECT, args)
        self._schema.check(values, title=self.definition.name)
        return values

    async def check(self, context: RunContext[Any], args: Mapping[str, Any]) -> None:
        """Run the tool's own check of its validated arguments, if it has one."""
        if self.tool.args_validator is not None:
            result = self.tool.args_validator(context, **args)
            if isawaitable(result):
                await result


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Function and external tools by name, and the output tool's definition."""

    entries: dict[str, ToolEntry]
    output: ToolDefinition | None

    def kind(self, name: str) -> str:
        """``function``, ``external``, ``unapproved``, ``output``, or ``unknown`` for a name that is not offered."""
        if self.output is not None and name == self.output.name:
            return "output"
        entry = self.entries.get(name)
        return entry.definition.kind if entry is not None else "unknown"

    def names(self) -> list[str]:
        """Every name the model may call."""
        return [*self.entries, *([self.output.name] if self.output is not None else [])]


async def build_toolbox(tools: Sequence[Tool[Any]], output: OutputContract | None, context: RunContext[Any]) -> Toolbox:
    """Prepare the tools once for the whole run; a tool whose ``prepare`` gives None is not offered.

    Raises:
        UserError: two tools have the same name, or one has a name that providers refuse.
    """
    definition = output_definition(output) if output is not None else None
    taken = {definition.name} if definition is not None else set()
    entries: dict[str, ToolEntry] = {}
    for tool in tools:
        prepared = await tool.prepare_tool_def(context)
        if prepared is None:
            continue
        if TOOL_NAME.fullmatch(prepared.name) is None:
            raise UserError(
                f"The tool name {prepared.name[:80]!r} cannot be offered to a model: a name has 1 to 64 of the "
                "characters a-z, A-Z, 0-9, _ and -. Rename the tool in the layer that contributes it."
            )
        if prepared.name in taken:
            raise UserError(f"Two tools of this run are called {prepared.name!r}; rename one of them.")
        taken.add(prepared.name)
        entries[prepared.name] = ToolEntry(tool=tool, definition=prepared)
    return Toolbox(entries=entries, output=definition)


def output_definition(output: OutputContract) -> ToolDefinition:
    """The tool whose accepted call ends the run."""
    return ToolDefinition(
        name=OUTPUT_TOOL_NAME,
        parameters_json_schema=dict(output.json_schema),
        description=output.description or DEFAULT_OUTPUT_DESCRIPTION,
        strict=output.strict,
        kind="output",
    )


def validate_output(output: OutputContract, call: ToolCallPart) -> Any:
    """The run's output from a call of the output tool.

    Raises:
        ValidationError: the arguments do not fit the schema.
    """
    return _validate(output.validator, call.args)


def _validate(validator: SchemaValidator | TypeAdapter[Any] | Any, args: str | dict[str, Any] | None) -> Any:
    if isinstance(args, str):
        return validator.validate_json(args or "{}")
    return validator.validate_python(args or {})
