"""Tools whose arguments are checked where they go, not here."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic_ai.tools import Tool
from pydantic_core import SchemaValidator

_ANY_OBJECT: Final = cast(SchemaValidator, TypeAdapter(dict[str, Any]).validator)


def lenient_tool(
    function: Callable[..., Coroutine[Any, Any, Any]], name: str, description: str, json_schema: Mapping[str, Any]
) -> Tool[None]:
    """A non-strict tool that may run beside others. ``json_schema`` is for the model's eyes: any object is a valid
    call, and ``function`` answers what it cannot use with a text, which costs no retry.

    The agent loop checks the arguments of a tool against its schema only if the tool has no validator of its own.
    """
    tool: Tool[None] = Tool.from_schema(function, name, description, dict(json_schema), sequential=False)
    tool.function_schema = replace(tool.function_schema, validator=_ANY_OBJECT)
    tool.strict = False
    return tool
