"""The corpus of answers (`tests/unit/model/dify/shapes.py`) on sockets: what readers of a run's events and the tools
get of each, from one server that reads them all."""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
)
from tests.server.clients import Api, stream_of
from tests.server.dify_bodies import CONTEXT, core_tools, dify_run, plugin_tools
from tests.server.dify_fakes import CORE_TOOL_PATH, MODEL_PATH, FakeDify, fake_dify
from tests.server.dify_results import ended, failure, observations
from tests.server.dify_scripts import DONE, FRAMINGS, call
from tests.server.harness import Server, StoreServer, serving
from tests.unit.model.dify.shapes import ODD, SHAPES, Shape

pytestmark = pytest.mark.slow

Events = list[dict[str, Any]]

_EVENT: TypeAdapter[ModelResponseStreamEvent] = TypeAdapter(ModelResponseStreamEvent)
_OF_A_RESPONSE = ("part_start", "part_delta", "part_end", "final_result")


def rule(name: str, shape: Shape) -> dict[str, Any]:
    """The model of this name says the shape, then ends."""
    raw = [b64encode(packet).decode() for packet in shape.packets]
    return {"model": name, "steps": [{"raw": raw}, DONE]}


def tool_named(how: str) -> str:
    """The tool that answers in a framing."""
    return how.replace(" ", "_")


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    """Each shape is a model of its own, so that all can be asked at any time, in any order."""
    with fake_dify() as fakes:
        models = [rule(name, shape) for name, shape in SHAPES.items()]
        calls = [
            {"model": f"tool {how}", "steps": [{"tool_calls": [call(tool_named(how), query="a")]}, DONE]}
            for how in FRAMINGS
        ]
        said = {"text": ODD, "json_object": {"a": ODD}}
        tools = [{"tool": tool_named(how), "steps": [{**said, **framing}]} for how, framing in FRAMINGS.items()]
        trio.run(lambda: fakes.play(llm=[*models, *calls], tools=tools))
        yield fakes


@pytest.fixture(scope="module")
def server(store: StoreServer, dify: FakeDify) -> Iterator[Server]:
    with serving(store.url, env=dify.environment) as started:
        yield started


def body(name: str) -> dict[str, Any]:
    return dify_run(core_tools("f", "g"), llm={"model": name}, context={**CONTEXT, "conversation_id": name})


def first_response(events: Events) -> list[ModelResponsePart]:
    """The parts of the first answer as a reader of the events puts them together, who is told of each end once."""
    parts: dict[int, ModelResponsePart] = {}
    last = -1
    for each in events:
        data = each["data"]
        if data.get("event_kind") not in _OF_A_RESPONSE:
            if parts:
                break
            continue
        event = _EVENT.validate_python(data)
        if isinstance(event, PartStartEvent):
            assert event.index <= len(parts)
            parts[event.index], last = event.part, event.index
        elif isinstance(event, PartDeltaEvent):
            parts[event.index] = event.delta.apply(parts[event.index])  # type: ignore[arg-type]
        elif isinstance(event, PartEndEvent):
            assert (event.index, event.part) == (last, parts[last])
    return list(parts.values())


@pytest.mark.parametrize("name", SHAPES)
async def test_what_a_shape_comes_to(api: Api, server: Server, dify: FakeDify, name: str) -> None:
    shape = SHAPES[name]
    run_id = await api.create(body(name))
    events = [frame.json for frame in await stream_of(server, run_id)]
    assert tuple(first_response(events)) == shape.parts
    asked = [each for each in dify.bodies(MODEL_PATH) if each["caller"]["agent_run_id"] == run_id]
    if shape.reason is not None:
        assert failure(events)[0] == shape.reason
        assert len(asked) == 1, "a model call is never repeated"
        return
    data = ended(events)
    if not shape.arguments:
        assert data["output"] == "".join(part.content for part in shape.parts if part.part_kind == "text")
        return
    assert data["output"] == "Done."
    calls = [part for part in shape.parts if part.part_kind == "tool-call"]
    assert_tools_were_asked(dify, name, shape, calls)
    assert_told(asked[1]["target"]["prompt_messages"], shape, calls)


def assert_tools_were_asked(dify: FakeDify, name: str, shape: Shape, calls: list[Any]) -> None:
    """Exactly the calls with usable arguments, with these, once."""
    tools = [each["tool"] for each in dify.bodies(CORE_TOOL_PATH) if each["caller"]["conversation_id"] == name]
    found = sorted((tool["tool_name"], json.dumps(tool["tool_parameters"])) for tool in tools)
    wanted = zip(calls, shape.arguments, strict=True)
    assert found == sorted((part.tool_name, json.dumps(given)) for part, given in wanted if given is not None)


def assert_told(messages: list[dict[str, Any]], shape: Shape, calls: list[Any]) -> None:
    """The model's next request repeats its calls and answers each, in order; unusable ones by what is wrong."""
    said, *told = messages[2:]
    assert [each["id"] for each in said["tool_calls"]] == [part.tool_call_id for part in calls]
    assert [each["tool_call_id"] for each in told] == [part.tool_call_id for part in calls]
    for message, given in zip(told, shape.arguments, strict=True):
        assert (message["content"] == "ok") is (given is not None), message


@pytest.mark.parametrize("how", FRAMINGS)
async def test_a_tool_says_the_same_in_any_framing(api: Api, server: Server, how: str) -> None:
    run_id = await api.create(dify_run(plugin_tools(tool_named(how)), llm={"model": f"tool {how}"}))
    events = [frame.json for frame in await stream_of(server, run_id)]
    assert ended(events)["output"] == "Done."
    assert observations(events) == {"call-1-1": ODD + json.dumps({"a": ODD}, ensure_ascii=False)}
