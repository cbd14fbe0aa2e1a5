"""The scripted model: its events, usage and endings, and what Pydantic AI's own rules make of them."""

import pytest
import trio
import trio.lowlevel
from pydantic import ValidationError
from pydantic_ai.messages import (
    FinalResultEvent,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from dify_agent.model.script import ScriptedTurn
from dify_agent.model.scripted import ScriptedModel, ScriptedModelError

TEXT = ModelRequestParameters()
OUTPUT = ModelRequestParameters(
    output_tools=[ToolDefinition(name="final_output", kind="output")], output_mode="tool", allow_text_output=False
)
EXTERNAL = ModelRequestParameters(
    function_tools=[ToolDefinition(name="ask", kind="external"), ToolDefinition(name="a")]
)
PROMPT = [ModelRequest([UserPromptPart("hi")])]
FINAL = FinalResultEvent(tool_name=None, tool_call_id=None)


def make(*turns):
    return ScriptedModel([ScriptedTurn.model_validate(turn) for turn in turns])


async def play(model, parameters=TEXT, messages=PROMPT):
    """All events of one request, and the response after them."""
    async with model.request_stream(messages, None, parameters) as stream:
        events = [event async for event in stream]
        return events, stream.get()


def delta(text, index=0):
    return PartDeltaEvent(index=index, delta=TextPartDelta(text))


async def test_text_is_one_chunk():
    events, response = await play(make({"text": "hello"}))
    assert events == [
        PartStartEvent(index=0, part=TextPart("")),
        FINAL,
        delta("hello"),
        PartEndEvent(index=0, part=TextPart("hello")),
    ]
    assert response.parts == [TextPart("hello")]
    assert (response.state, response.finish_reason, response.model_name) == ("complete", "stop", "scripted")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 1)


async def test_chunks_and_delay(autojump_clock):
    start = trio.current_time()
    events, response = await play(make({"chunks": 200, "chunk": "tok ", "delay_ms": 20}))
    assert trio.current_time() - start == pytest.approx(4.0)
    assert events[2:-1] == [delta("tok ")] * 200
    assert response.parts == [TextPart("tok " * 200)]
    assert response.usage.output_tokens == 200


async def test_no_final_result_where_text_is_not_allowed():
    events, _ = await play(make({"text": "x"}), OUTPUT)
    assert FINAL not in events


async def test_thinking_comes_first():
    events, response = await play(make({"thinking": "hm", "text": "x"}))
    assert events == [
        PartStartEvent(index=0, part=ThinkingPart("hm")),
        PartEndEvent(index=0, part=ThinkingPart("hm"), next_part_kind="text"),
        PartStartEvent(index=1, part=TextPart(""), previous_part_kind="thinking"),
        FINAL,
        delta("x", index=1),
        PartEndEvent(index=1, part=TextPart("x")),
    ]
    assert response.parts == [ThinkingPart("hm"), TextPart("x")]


async def test_parallel_tool_calls():
    turn = {"tool_calls": [{"name": "a", "args": {"x": 1}}, {"name": "b", "id": "mine"}, {"name": "c", "args": "{tr"}]}
    events, response = await play(make(turn))
    calls = [
        ToolCallPart("a", {"x": 1}, "call_1_1"),
        ToolCallPart("b", {}, "mine"),
        ToolCallPart("c", "{tr", "call_1_3"),
    ]
    assert events == [
        PartStartEvent(index=0, part=calls[0]),
        PartEndEvent(index=0, part=calls[0], next_part_kind="tool-call"),
        PartStartEvent(index=1, part=calls[1], previous_part_kind="tool-call"),
        PartEndEvent(index=1, part=calls[1], next_part_kind="tool-call"),
        PartStartEvent(index=2, part=calls[2], previous_part_kind="tool-call"),
        PartEndEvent(index=2, part=calls[2]),
    ]
    assert response.parts == calls
    assert (response.finish_reason, response.usage.output_tokens) == ("tool_call", 3)


async def test_made_ids_do_not_repeat_those_of_the_history():
    history = [*PROMPT, ModelResponse([ToolCallPart("a", {}, "call_1_1")]), ModelRequest([])]
    _, response = await play(make({"tool_calls": [{"name": "a"}]}), messages=history)
    assert response.parts[0].tool_call_id == "call_2_1"


async def test_output_tool_is_marked_once():
    turn = {"tool_calls": [{"name": "final_output", "args": {"n": 1}}, {"name": "final_output", "args": {"n": 2}}]}
    events, _ = await play(make(turn), OUTPUT)
    marks = [event for event in events if isinstance(event, FinalResultEvent)]
    assert marks == [FinalResultEvent(tool_name="final_output", tool_call_id="call_1_1")]
    assert events.index(marks[0]) == 1


async def test_external_tool_is_marked_without_its_name():
    events, _ = await play(make({"tool_calls": [{"name": "a"}, {"name": "ask"}]}), EXTERNAL)
    assert [type(event) for event in events] == [
        PartStartEvent,
        PartEndEvent,
        PartStartEvent,
        FinalResultEvent,
        PartEndEvent,
    ]
    assert events[3] == FINAL


async def test_one_turn_per_request_and_the_last_repeats():
    model = make({"text": "one"}, {"text": "two"})
    answers = [await play(model) for _ in range(3)]
    assert [response.text for _, response in answers] == ["one", "two", "two"]
    assert [response.usage.input_tokens for _, response in answers] == [10, 20, 30]


async def test_hang_is_cancelled_at_once(autojump_clock):
    async with make({"hang": True, "after_chunks": 2}).request_stream(PROMPT, None, TEXT) as stream:
        events = []
        with trio.move_on_after(3600) as scope:
            async for event in stream:
                events.append(event)
        assert scope.cancelled_caught
        assert len(events) == 4
        response = stream.get()
    assert (response.state, response.text, response.finish_reason) == ("incomplete", "tok tok ", None)
    assert response.usage.output_tokens == 2


async def test_delay_is_cancelled_at_once(autojump_clock):
    start = trio.current_time()
    with trio.move_on_after(1.5) as scope:
        await play(make({"chunks": 10, "delay_ms": 1000}))
    assert scope.cancelled_caught
    assert trio.current_time() - start == pytest.approx(1.5)


@pytest.mark.parametrize("after", [0, 3])
async def test_error_after_chunks(after):
    events = []

    async def consume(stream):
        async for event in stream:
            events.append(event)

    async with make({"error": "quota", "after_chunks": after}).request_stream(PROMPT, None, TEXT) as stream:
        with pytest.raises(ScriptedModelError, match=r"^quota$"):
            await consume(stream)
        response = stream.get()
    assert len(events) == (5 if after else 0)
    assert response.state == "incomplete"
    assert response.parts == ([TextPart("tok tok tok ")] if after else [])


async def test_no_chunks_is_an_empty_text():
    events, response = await play(make({"chunks": 0}))
    assert [type(event) for event in events] == [PartStartEvent, FinalResultEvent, PartEndEvent]
    assert response.parts == [TextPart("")]


async def test_start_events_are_not_changed_by_what_follows():
    events, _ = await play(make({"chunks": 3}))
    assert events[0].part == TextPart("")


async def test_request_in_one_piece():
    response = await make({"text": "x"}).request(PROMPT, None, TEXT)
    assert (response.text, response.state) == ("x", "complete")


async def test_agrees_with_the_rules_of_pydantic_ais_base_class():
    """The same parts through the base class's machinery give the same events."""
    from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel

    async def script(messages, info):
        await trio.lowlevel.checkpoint()
        yield {0: DeltaThinkingPart(content="hm")}
        yield {1: DeltaToolCall(name="a", json_args='{"x":1}', tool_call_id="c1")}
        yield {2: DeltaToolCall(name="ask", json_args="{}", tool_call_id="c2")}

    expected, _ = await play(FunctionModel(stream_function=script), EXTERNAL)
    turn = {
        "thinking": "hm",
        "tool_calls": [{"name": "a", "args": '{"x":1}', "id": "c1"}, {"name": "ask", "args": "{}", "id": "c2"}],
    }
    events, _ = await play(make(turn), EXTERNAL)
    assert events == expected


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        ({}, "got none"),
        ({"hang": False}, "got none"),
        ({"text": "a", "chunks": 1}, "got text, chunks"),
        ({"text": "a", "chunk": "b"}, "'chunk' belongs to a turn with chunks"),
        ({"chunks": 1, "after_chunks": 1}, "'after_chunks' belongs to a turn with hang or error"),
        ({"chunks": 100_001}, "less than or equal to 100000"),
        ({"chunks": -1}, "greater than or equal to 0"),
        ({"text": "a", "delay_ms": -1}, "greater than or equal to 0"),
        ({"text": "a", "delay_ms": float("nan")}, "finite number"),
        ({"tool_calls": []}, "at least 1 item"),
        ({"tool_calls": [{"name": ""}]}, "at least 1 character"),
        ({"text": "a", "unknown": 1}, "Extra inputs"),
    ],
)
def test_invalid_turns(turn, text):
    with pytest.raises(ValidationError, match=text):
        ScriptedTurn.model_validate(turn)


def test_a_script_needs_a_turn():
    with pytest.raises(ValueError, match="at least one turn"):
        ScriptedModel([])
