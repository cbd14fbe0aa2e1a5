"""Answers as events and responses: the scripts of integrations 15.3 and the rules of 3.6 and 3.7."""

import json
from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    FinalResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from tests.unit.model.dify.fake_dify import (
    END,
    PROMPT,
    TEXT,
    USAGE,
    FakeDify,
    Reply,
    answer,
    call,
    chunk,
    error_line,
    line,
    parts_of,
    play,
)

from dify_agent.errors import RunFailedError
from dify_agent.loop.port import UsageReport
from dify_agent.model.dify.chunks import MalformedLineError
from dify_agent.model.dify.parts import ResponseParts
from dify_agent.model.dify.stream import finish_reason
from dify_agent.protocol.usage import AgentRunUsage

FINAL = FinalResultEvent(tool_name=None, tool_call_id=None)
ODD = "a\u2028b\u0085c 😀 d\u2029\x0b\x0c"


async def test_text():
    events, response = await play(FakeDify(answer("", "Hel", "lo")).gateway_model())
    assert events == [
        PartStartEvent(index=0, part=TextPart("Hel")),
        FINAL,
        PartDeltaEvent(index=0, delta=TextPartDelta("lo")),
        PartEndEvent(index=0, part=TextPart("Hello")),
    ]
    assert response.parts == [TextPart("Hello")]
    assert (response.state, response.finish_reason) == ("complete", "stop")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 5)


async def test_no_final_result_where_text_is_not_allowed():
    parameters = ModelRequestParameters(
        output_tools=[ToolDefinition(name="final_output", kind="output")], output_mode="tool", allow_text_output=False
    )
    called = chunk("x", tool_calls=[call("final_output", '{"a":1}', "c1")])
    events, _ = await play(FakeDify(answer(called)).gateway_model(), parameters=parameters)
    marks = [event for event in events if isinstance(event, FinalResultEvent)]
    assert marks == [FinalResultEvent(tool_name="final_output", tool_call_id="c1")]
    assert isinstance(events[events.index(marks[0]) - 1].part, ToolCallPart)


async def test_thinking_over_three_chunks():
    events, response = await play(FakeDify(answer("<thi", "nk>plan</th", "ink>answer")).gateway_model())
    assert events == [
        PartStartEvent(index=0, part=ThinkingPart("plan")),
        PartEndEvent(index=0, part=ThinkingPart("plan"), next_part_kind="text"),
        PartStartEvent(index=1, part=TextPart("answer"), previous_part_kind="thinking"),
        FINAL,
        PartEndEvent(index=1, part=TextPart("answer")),
    ]
    assert response.parts == [ThinkingPart("plan"), TextPart("answer")]


async def test_thinking_grows_and_new_text_is_a_new_part():
    events, response = await play(FakeDify(answer("a<think>b", "c</think>d")).gateway_model())
    assert PartDeltaEvent(index=1, delta=ThinkingPartDelta(content_delta="c")) in events
    assert response.parts == [TextPart("a"), ThinkingPart("bc"), TextPart("d")]


async def test_held_text_is_said_at_the_end():
    assert await parts_of("a<th") == [TextPart("a<th")]
    assert await parts_of("<think>a</thi") == [ThinkingPart("a</thi")]


async def test_content_lists():
    items = [
        {"type": "text", "data": "x<think>\nhm\n</think>y<think></think>"},
        {"type": "image", "base64_data": "eA==", "mime_type": "image/png", "url": ""},
        {"type": "image", "base64_data": "", "mime_type": "image/png"},
        {"type": "text", "data": "z"},
    ]
    parts = await parts_of(chunk(items))
    assert parts == [
        TextPart("x"),
        ThinkingPart("hm"),
        TextPart("y"),
        FilePart(BinaryContent(b"x", media_type="image/png")),
        TextPart("z"),
    ]
    assert await parts_of("<think>a", chunk([{"type": "text", "data": "b</think>c"}])) == [
        ThinkingPart("ab"),
        TextPart("c"),
    ]


async def test_a_file_has_no_end():
    image = {"type": "image", "base64_data": "eA==", "mime_type": "image/png"}
    events, _ = await play(FakeDify(answer(chunk([image]))).gateway_model())
    assert [type(event) for event in events] == [PartStartEvent]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "image", "url": "https://x.test", "mime_type": "image/png"},
        {"type": "image", "base64_data": "!", "mime_type": "image/png"},
        {"type": "image", "base64_data": 5, "mime_type": "image/png"},
        {"type": "image", "base64_data": "eA=="},
        {"type": "text", "data": 1},
        {"type": "odd"},
    ],
)
async def test_content_that_cannot_be_taken(item):
    with pytest.raises(RunFailedError) as caught:
        await parts_of(chunk([item]))
    assert caught.value.reason == "upstream_malformed_answer"


async def test_tool_calls():
    calls = [call("f", '{"a":1}', "c1"), call("g", "", " c2 ")]
    events, response = await play(
        FakeDify(answer(chunk("", tool_calls=calls, finish="tool_calls"), end=b"")).gateway_model()
    )
    first, second = ToolCallPart("f", '{"a":1}', "c1"), ToolCallPart("g", "", "c2")
    assert events == [
        PartStartEvent(index=0, part=first),
        PartEndEvent(index=0, part=first, next_part_kind="tool-call"),
        PartStartEvent(index=1, part=second, previous_part_kind="tool-call"),
        PartEndEvent(index=1, part=second),
    ]
    assert response.parts == [first, second]
    assert response.finish_reason == "tool_call"


def fragments(*calls):
    return [chunk("", tool_calls=[item]) for item in calls]


@pytest.mark.parametrize("name", ["f", ""])
async def test_fragments_of_one_id_are_appended(name):
    pieces = [call("f", "", "c1"), call(name, '{"a"', "c1"), call(name, ":1}", "c1")]
    events, response = await play(FakeDify(answer(*fragments(*pieces))).gateway_model())
    whole = ToolCallPart("f", '{"a":1}', "c1")
    assert events == [
        PartStartEvent(index=0, part=ToolCallPart("f", "", "c1")),
        PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta='{"a"', tool_call_id="c1")),
        PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta=":1}", tool_call_id="c1")),
        PartEndEvent(index=0, part=whole),
    ]
    assert response.parts == [whole]


async def test_a_complete_call_again_replaces_it():
    again = [call("f", "{}", "c1"), call("f", '{"a":1}', "c1"), call("g", "{", "c2"), call("h", "{}", "c2")]
    events, response = await play(FakeDify(answer(*fragments(*again))).gateway_model())
    assert response.parts == [ToolCallPart("f", '{"a":1}', "c1"), ToolCallPart("h", "{}", "c2")]
    starts = [(event.index, event.part.tool_name) for event in events if isinstance(event, PartStartEvent)]
    assert starts == [(0, "f"), (0, "f"), (1, "g"), (1, "h")]


async def test_interleaved_fragments():
    pieces = [call("f", "{", "c1"), call("g", "{", "c2"), call("", "}", "c1"), call("", "}", "c2")]
    assert await parts_of(*fragments(*pieces)) == [ToolCallPart("f", "{}", "c1"), ToolCallPart("g", "{}", "c2")]


async def test_calls_without_ids_get_some():
    two = [call("f", "{}", None), call("f", "{}", "none")]
    assert await parts_of("a", chunk("", tool_calls=two)) == [
        TextPart("a"),
        ToolCallPart("f", "{}", "chunk-1-tool-0"),
        ToolCallPart("f", "{}", "chunk-1-tool-1"),
    ]


async def test_a_fragment_without_id_and_name_goes_on_with_the_last_call():
    pieces = [call("f", "{", "c1"), call("", "}", ""), call("g", "{}", "")]
    assert await parts_of(*fragments(*pieces)) == [
        ToolCallPart("f", "{}", "c1"),
        ToolCallPart("g", "{}", "chunk-2-tool-0"),
    ]


async def test_text_around_calls():
    parts = await parts_of("a<", *fragments(call()), "b")
    assert parts == [TextPart("a<"), ToolCallPart("f", "{}", "c1"), TextPart("b")]


CORPUS = b"".join(
    [
        b": hello\r\n\r\n",
        b"event: message\nid: 7\n",
        line(chunk(ODD[:4]), b"\r\n\r\n"),
        line(chunk(ODD[4:]), b"\n"),
        json.dumps(chunk("bare<th"), ensure_ascii=False).encode() + b"\n",
        line(chunk("ink>x</think>")).replace(b"data: ", b"data:"),
        line(chunk(None, tool_calls=None)),
        line(chunk("", tool_calls=[call("f", '{"k":"\u2028', "c1")])),
        line(chunk("", tool_calls=[call("", '"}', "c1")])),
        END.rstrip(),
    ]
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(CORPUS)])
@pytest.mark.parametrize("crlf", [False, True])
async def test_packets_do_not_matter(size, crlf):
    data = CORPUS.replace(b"\r\n", b"\n")
    data = data.replace(b"\n", b"\r\n") if crlf else data
    reply = Reply([data[at : at + size] for at in range(0, len(data), size)])
    _, response = await play(FakeDify(reply).gateway_model())
    assert response.parts == [
        TextPart(f"{ODD}bare"),
        ThinkingPart("x"),
        ToolCallPart("f", '{"k":"\u2028"}', "c1"),
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("STOP", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        ("tool_call", "tool_call"),
        ("Tool_Calls", "tool_call"),
        ("function_call", "tool_call"),
        ("function_calls", "tool_call"),
        ("end_turn", "error"),
        ("", "error"),
    ],
)
def test_finish_reasons(given, reason):
    assert finish_reason(given) == reason


async def test_the_last_finish_reason_and_the_last_usage_count():
    reply = answer(
        chunk("a", usage={**USAGE, "prompt_tokens": 1}, finish="length"),
        chunk("", usage=USAGE),
        chunk("", finish="stop"),
        end=b"",
    )
    model = FakeDify(reply).gateway_model()
    _, response = await play(model)
    assert response.finish_reason == "stop"
    assert response.usage.input_tokens == 10
    assert model.total_usage() == AgentRunUsage.model_validate(USAGE)


@pytest.mark.parametrize("chunks", [[], ["a"], [chunk("", tool_calls=[call()])]])
async def test_an_end_without_finish_reason_or_usage_is_early(chunks):
    model = FakeDify(answer(*chunks, end=b"")).gateway_model()
    with pytest.raises(RunFailedError, match="ended early") as caught:
        await play(model)
    assert caught.value.reason == "incomplete_stream"
    assert model.total_usage() is None


async def test_either_marks_the_end():
    assert await parts_of("a", end=line(chunk("", finish="stop"))) == [TextPart("a")]
    assert await parts_of("a", end=line(chunk("", usage=USAGE))) == [TextPart("a")]


async def test_only_calls_that_were_read_to_their_end_cost():
    broken = Reply([END, error_line("InvokeServerUnavailableError", "gone")])
    model = FakeDify(answer("a"), broken, answer("b")).gateway_model()
    assert isinstance(model, UsageReport)
    assert model.total_usage() is None
    await play(model)
    with pytest.raises(Exception, match="gone"):
        await play(model)
    async with model.request_stream(PROMPT, None, TEXT) as stream:
        assert await anext(aiter(stream)) == PartStartEvent(index=0, part=TextPart("b"))
        left = stream
    assert left.get().state == "incomplete"
    total = model.total_usage()
    assert total is not None
    assert total.total_tokens == 15


async def test_a_cut_response_keeps_what_arrived(autojump_clock):
    dify = FakeDify(Reply([line(chunk("half", usage=USAGE)), 3600.0]))
    with trio.move_on_after(5) as scope:
        async with dify.gateway_model().request_stream(PROMPT, None, TEXT) as stream:
            async for _ in stream:
                pass
    assert scope.cancelled_caught
    response = stream.get()
    assert (response.parts, response.state, response.usage.input_tokens) == ([TextPart("half")], "incomplete", 10)
    assert dify.bodies[0].closed


async def test_cancelling_the_stream_itself():
    dify = FakeDify(Reply([line(chunk("half")), 3600.0]))
    async with dify.gateway_model().request_stream(PROMPT, None, TEXT) as stream:
        await anext(aiter(stream))
        await stream.cancel()
        assert stream.get().state == "interrupted"
        assert [event async for event in stream] == [FINAL]
    assert dify.bodies[0].closed


async def test_a_line_may_repeat_the_prompt_but_not_go_on_for_ever(monkeypatch):
    monkeypatch.setattr("dify_agent.model.dify.model.MAX_LINE_BYTES", 1000)
    prompt = "p" * 5000
    echo = chunk("a", prompt=[{"role": "user", "content": prompt}])
    messages = [type(PROMPT[0])([type(PROMPT[0].parts[0])(prompt)])]
    dify = FakeDify(answer(echo), answer("x" * 20_000), Reply([b"x" * 20_000]))
    model = dify.gateway_model()
    await play(model, messages)
    for _ in range(2):
        with pytest.raises(RunFailedError, match="longer than") as caught:
            await play(model, messages)
        assert caught.value.reason == "upstream_line_too_long"


def with_file(size):
    return chunk([{"type": "image", "base64_data": "eHh4" * (size // 3), "mime_type": "image/png"}])


@pytest.mark.parametrize(
    ("piece", "count"),
    [
        (chunk("é" * 500), 20),
        (chunk("<think>a</think>b"), 20),
        (chunk([{"type": "text", "data": "<think>a</think>"}]), 20),
        (chunk("", tool_calls=[call("f", "[" * 999, "c1")]), 20),
        (chunk("", tool_calls=[call("f", "{}", "")]), 25),
        (with_file(3000), 4),
    ],
)
async def test_all_of_an_answer_is_bounded(monkeypatch, piece, count):
    await play(FakeDify(answer(*[piece] * count)).gateway_model())
    monkeypatch.setattr("dify_agent.model.dify.parts.MAX_ANSWER_BYTES", 10_000)
    with pytest.raises(RunFailedError, match="has more than 10000 bytes") as caught:
        await play(FakeDify(answer(*[piece] * count)).gateway_model())
    assert caught.value.reason == "upstream_answer_too_large"


@pytest.mark.parametrize("in_one_line", [True, False])
async def test_the_parts_of_an_answer_are_bounded(monkeypatch, in_one_line):
    monkeypatch.setattr("dify_agent.model.dify.parts.MAX_PARTS", 10)
    calls = [call("f", "{}", f"c{number}") for number in range(11)]
    whole = [chunk("", tool_calls=calls)] if in_one_line else [chunk("", tool_calls=[each]) for each in calls]
    few = chunk("", tool_calls=calls[:10])
    _, response = await play(FakeDify(answer(few)).gateway_model())
    assert len(response.parts) == 10
    with pytest.raises(RunFailedError, match="has more than 10 parts") as caught:
        await play(FakeDify(answer(*whole)).gateway_model())
    assert caught.value.reason == "upstream_answer_too_large"


async def test_the_repeated_prompt_does_not_count(monkeypatch):
    monkeypatch.setattr("dify_agent.model.dify.parts.MAX_ANSWER_BYTES", 10_000)
    echo = chunk("a", prompt=[{"role": "user", "content": "p" * 5000}])
    _, response = await play(FakeDify(answer(*[echo] * 20)).gateway_model())
    assert response.parts == [TextPart("a" * 20)]


WORDS = st.sampled_from(["a", "<think>", "</think>", "<", "th", "\n", ""])
FRAGMENTS = st.builds(
    call,
    st.sampled_from(["f", "g", ""]),
    st.sampled_from(["", "{", '"k"', ":1", "}", "{}", '{"a":"}"}']),
    st.sampled_from(["c1", "c2", "", None, "null"]),
)
FILES = st.just([{"type": "image", "base64_data": "eA==", "mime_type": "image/png"}])
TEXT_ITEMS = WORDS.map(lambda word: [{"type": "text", "data": f"x{word}y</think>z"}])
CHUNKS = st.builds(
    lambda content, calls: chunk(content, tool_calls=calls),
    WORDS | FILES | TEXT_ITEMS | st.none(),
    st.lists(FRAGMENTS, max_size=2),
)


@given(st.lists(CHUNKS, max_size=12))
def test_the_events_alone_make_the_response(chunks):
    """Whatever comes, a reader of the events ends with the response's parts, and sees each part end whole."""
    grown = ResponseParts(TEXT)
    for number, item in enumerate(chunks):
        with suppress(MalformedLineError):  # what came before it stays told
            grown.take(item["data"]["delta"]["message"], number)
    grown.finish()
    parts, last = {}, None
    for event in grown.events:
        if isinstance(event, PartStartEvent):
            assert event.index <= len(parts)
            assert event.previous_part_kind == (None if last is None else parts[last].part_kind)
            parts[event.index], last = event.part, event.index
        elif isinstance(event, PartDeltaEvent):
            parts[event.index] = event.delta.apply(parts[event.index])
        elif isinstance(event, PartEndEvent):
            assert (event.index, event.part) == (last, parts[last])
    assert list(parts.values()) == grown.snapshot()
    assert len({part.tool_call_id for part in grown.snapshot() if isinstance(part, ToolCallPart)}) == sum(
        isinstance(part, ToolCallPart) for part in grown.snapshot()
    )
