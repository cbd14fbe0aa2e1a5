"""Scripted tools: outcomes, threads, and tools that misbehave under cancellation."""

import threading

import pytest
import trio
from pydantic import ValidationError

from agenton.compositor import LayerProvider
from dify_agent.layers.scripted_tools.layer import ScriptedToolError, ScriptedToolsLayer

PROVIDER = LayerProvider.from_layer_type(ScriptedToolsLayer)


def make(**config):
    [tool] = PROVIDER.create_layer({"tools": [{"name": "t", **config}]}).tools
    return tool


async def test_result_after_a_delay(autojump_clock):
    tool = make(result={"n": [1, None]}, delay_ms=1500)
    start = trio.current_time()
    assert await tool.function(x=1) == {"n": [1, None]}
    assert trio.current_time() - start == pytest.approx(1.5)


async def test_no_outcome_is_null():
    assert await make().function() is None


async def test_error_ends_the_tool_with_its_text():
    with pytest.raises(ScriptedToolError, match=r"^broken$"):
        await make(error="broken").function()


@pytest.mark.parametrize("config", [{"hang": True}, {"delay_ms": 60_000}])
async def test_waiting_tools_are_cancelled_at_once(autojump_clock, config):
    start = trio.current_time()
    with trio.move_on_after(1) as scope:
        await make(**config).function()
    assert scope.cancelled_caught
    assert trio.current_time() - start == pytest.approx(1)


async def test_a_tool_can_swallow_its_cancellation(autojump_clock):
    start = trio.current_time()
    with trio.move_on_after(1) as scope:
        result = await make(result="late", delay_ms=60_000, swallow_cancel_ms=2500).function()
    assert result == "late"
    assert not scope.cancelled_caught
    assert trio.current_time() - start == pytest.approx(3.5)


async def test_thread_tool_is_a_sync_function():
    tool = make(result="x", thread=True)
    assert not tool.function_schema.is_async
    seen = []

    def run():
        seen.append(threading.current_thread())
        return tool.function(x=1)

    assert await trio.to_thread.run_sync(run) == "x"
    assert seen != [threading.main_thread()]


def test_definition():
    schema = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
    definition = make(description="Adds", parameters=schema).tool_def
    assert (definition.name, definition.description, definition.kind) == ("t", "Adds", "function")
    assert definition.parameters_json_schema == {"type": "object", **schema}
    assert make().tool_def.parameters_json_schema == {"type": "object", "properties": {}}


def test_tools_keep_their_order():
    layer = PROVIDER.create_layer({"tools": [{"name": name} for name in ("b", "a", "c")]})
    assert [tool.name for tool in layer.tools] == ["b", "a", "c"]
    assert PROVIDER.create_layer({"tools": []}).tools == ()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"name": "a b"}, "should match pattern"),
        ({"name": ""}, "should match pattern"),
        ({"name": "x" * 65}, "should match pattern"),
        ({"result": 1, "error": "e"}, "at most one of"),
        ({"result": 0, "hang": True}, "at most one of"),
        ({"hang": True, "thread": True}, "'hang' cannot go with 'thread'"),
        ({"thread": True, "swallow_cancel_ms": 5}, "cannot go with 'thread'"),
        ({"delay_ms": -1}, "greater than or equal"),
        ({"unknown": 1}, "Extra inputs"),
        ({"parameters": []}, "valid dictionary"),
    ],
)
def test_invalid_configs(config, text):
    with pytest.raises(ValidationError, match=text):
        make(**config)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"type": "strin"}, "are no JSON Schema"),
        ({"type": "array"}, "must describe an object"),
    ],
)
def test_parameters_must_be_an_object_schema(parameters, text):
    with pytest.raises(ValueError, match=text):
        make(parameters=parameters)


def test_names_are_unique():
    with pytest.raises(ValidationError, match="duplicates: a"):
        PROVIDER.create_layer({"tools": [{"name": "a"}, {"name": "a"}]})
