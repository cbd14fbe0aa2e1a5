"""From the model's arguments to a plugin's parameters (specification: integrations 4.2). No I/O: file values stay as
they were given, and `dify_agent.layers.dify_plugin.files` makes them files."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic_core import from_json

from dify_agent.layers.dify_plugin.tools_config import (
    DifyPluginToolConfig,
    DifyPluginToolParameter,
    DifyPluginToolParameterForm,
    DifyPluginToolParameterType,
)

_TRUE: Final = frozenset({"true", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "n", "0"})


def check_hidden_parameters(config: DifyPluginToolConfig) -> None:
    """Whether everything is there that the plugin needs and the model cannot give.

    Raises:
        ValueError: required parameters have neither a value nor a default.
    """
    missing = [
        parameter.name
        for parameter in config.parameters
        if parameter.required
        and parameter.form is not DifyPluginToolParameterForm.LLM
        and parameter.default is None
        and parameter.name not in config.runtime_parameters
    ]
    if missing:
        names = ", ".join(missing)
        raise ValueError(f"Tool '{config.tool_name}' requires non-LLM runtime_parameters for: {names}.")


def prepare_parameters(
    declared: Iterable[DifyPluginToolParameter], hidden: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Hidden values under the model's arguments, with defaults filled in and declared ones cast.

    Raises:
        ValueError: a required parameter is missing, or a value cannot be cast; the model reads the text.
    """
    values = {**hidden, **arguments}
    for parameter in declared:
        name = parameter.name
        if name in values:
            values[name] = cast_value(parameter, values[name])
        elif parameter.default is not None:
            values[name] = cast_value(parameter, parameter.default)
        elif parameter.required:
            raise ValueError(f"tool parameter {name} not found in tool config")
    return values


def cast_value(parameter: DifyPluginToolParameter, value: Any) -> Any:
    """``value`` as the plugin expects it.

    Raises:
        ValueError: it cannot be that; the text names the parameter.
    """
    try:
        return _CASTS[parameter.type](value)
    except RecursionError as error:
        raise ValueError(f"parameter {parameter.name}: is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"parameter {parameter.name}: {error}") from error


def _text(value: Any) -> str:
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    except ValueError:
        raise ValueError("holds a number that is too large") from None  # Python writes some thousand digits at most


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        folded = value.lower()
        if folded in _TRUE:
            return True
        if folded in _FALSE:
            return False
    return bool(value)


def _number(value: Any) -> Any:
    """A number in text as one. Plugins and the daemon read JSON's numbers as doubles, so that is what is too large."""
    if not isinstance(value, str):
        if isinstance(value, int | float) and not _is_double(value):
            raise ValueError("the number is too large, or none")
        return value
    if not value:
        return value
    shown = repr(value[:80])
    try:
        # First, because `int` takes some thousand digits at most.
        approximate = float(value)
        is_too_large = math.isinf(approximate) and any(character.isdigit() for character in value)
        number = approximate if is_too_large or "." in value else int(value)
    except ValueError:
        raise ValueError(f"{shown} is not a number") from None
    if is_too_large:
        raise ValueError(f"{shown} is too large")
    return number


def _is_double(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _one_file(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise ValueError(f"takes exactly one file, got {len(value)}")
    return value[0]


def _file_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _selection(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def _unchanged(value: Any) -> Any:
    return value


def _array(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    parsed = _parsed(value)
    return parsed if isinstance(parsed, list) else [value]


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    parsed = _parsed(value)
    return parsed if isinstance(parsed, dict) else {}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return None
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        return None


_CASTS: Final[Mapping[DifyPluginToolParameterType, Callable[[Any], Any]]] = {
    DifyPluginToolParameterType.STRING: _text,
    DifyPluginToolParameterType.SECRET_INPUT: _text,
    DifyPluginToolParameterType.SELECT: _text,
    DifyPluginToolParameterType.CHECKBOX: _text,
    DifyPluginToolParameterType.DYNAMIC_SELECT: _text,
    DifyPluginToolParameterType.BOOLEAN: _truth,
    DifyPluginToolParameterType.NUMBER: _number,
    DifyPluginToolParameterType.FILE: _one_file,
    DifyPluginToolParameterType.FILES: _file_list,
    DifyPluginToolParameterType.SYSTEM_FILES: _file_list,
    DifyPluginToolParameterType.MODEL_SELECTOR: _selection,
    DifyPluginToolParameterType.APP_SELECTOR: _selection,
    DifyPluginToolParameterType.ANY: _unchanged,
    DifyPluginToolParameterType.ARRAY: _array,
    DifyPluginToolParameterType.OBJECT: _object,
}
