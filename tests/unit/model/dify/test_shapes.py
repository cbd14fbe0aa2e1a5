"""The corpus of `shapes`, read in memory."""

import pytest
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent
from tests.unit.model.dify.fake_dify import PROMPT, TEXT, FakeDify, Reply
from tests.unit.model.dify.shapes import SHAPES

from dify_agent.actors.failures import describe_failure


@pytest.mark.parametrize("name", SHAPES)
async def test_what_a_shape_says(name):
    shape = SHAPES[name]
    parts, reason = {}, None
    try:
        async with FakeDify(Reply(list(shape.packets))).gateway_model().request_stream(PROMPT, None, TEXT) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent):
                    parts[event.index] = event.part
                elif isinstance(event, PartDeltaEvent):
                    parts[event.index] = event.delta.apply(parts[event.index])
    except Exception as error:
        reason = describe_failure(error).reason
    assert reason == shape.reason
    assert tuple(parts.values()) == shape.parts
    assert reason is not None or tuple(stream.get().parts) == shape.parts


def test_tool_calls_say_what_the_tools_are_asked():
    for name, shape in SHAPES.items():
        calls = [part for part in shape.parts if part.part_kind == "tool-call"]
        assert shape.reason is not None or len(calls) == len(shape.arguments), name
