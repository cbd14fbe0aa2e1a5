"""The pure parts: lines, thinking tags, tool-call fragments, usage."""

import json
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from tests.unit.model.dify.fake_dify import USAGE, call, chunk, line

from dify_agent.model.dify.chunks import ErrorEnvelopeError, MalformedLineError, parse_chunk
from dify_agent.model.dify.lines import LineSplitter, LineTooLongError, payload
from dify_agent.model.dify.thinking import ThinkingSplitter
from dify_agent.model.dify.tool_calls import JsonProgress, call_id, name_and_arguments
from dify_agent.model.dify.usage import add_usage, call_usage, request_usage
from dify_agent.protocol.usage import AgentRunUsage

ODD = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei😀"


def split(data, packets, max_bytes=100_000):
    splitter = LineSplitter(max_bytes)
    lines = []
    for packet in packets(data):
        lines += splitter.feed(packet)
    return [text for text in map(payload, [*lines, splitter.finish()]) if text]


def whole(data):
    return [data]


def single(data):
    return [bytes([byte]) for byte in data]


@pytest.mark.parametrize("packets", [whole, single])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])
def test_lines_end_at_lf_and_crlf_only(packets, end):
    text = f'"{ODD}"'.encode()
    data = end.join([b"data: 1", b"data:2", b": comment", b"event: x", b"id: 1", b"retry: 5", text, b"  data:  3  "])
    assert split(data, packets) == [b"1", b"2", text, b"3"]


def test_a_byte_order_mark_and_an_empty_data_line_say_nothing():
    assert split(b"\xef\xbb\xbfdata: 1\ndata:\n\n", whole) == [b"1"]


@pytest.mark.parametrize("packets", [whole, single])
@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n"])
def test_a_line_is_bounded(packets, data):
    with pytest.raises(LineTooLongError, match="longer than 10 bytes"):
        split(data, packets, max_bytes=10)
    assert split(b"x" * 10 + b"\n" + b"y" * 10, packets, max_bytes=10) == [b"x" * 10, b"y" * 10]


def test_a_chunk_needs_only_what_is_used():
    assert parse_chunk(b'{"code":0,"data":{"delta":{}}}') == {"delta": {}}
    full = parse_chunk(line(chunk("a", prompt=[{"role": "user"}] * 3))[6:])
    assert full == {
        "delta": {"message": {"content": "a", "tool_calls": []}, "usage": None, "finish_reason": None},
    }
    assert parse_chunk(b'{"code":0,"data":{"delta":{"message":{"content":null,"tool_calls":null}}}}')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"<html>", "not JSON"),
        (b'{"code":0', "not JSON"),
        (b"[]", "object"),
        (b'{"data":null}', "code"),
        (b'{"code":0}', "data is null"),
        (b'{"code":0,"data":{}}', "data.delta"),
        (b'{"code":0,"data":{"delta":{"message":{"content":5}}}}', "data.delta.message.content"),
        (b'{"code":0,"data":{"delta":{"message":{"content":"secret' + b"\xff" + b'"}}}}', "not JSON"),
        (b'{"code":0,"data":{"delta":{"message":{"content":"\\ud800"}}}}', "not JSON"),
    ],
)
def test_what_is_not_a_chunk(text, problem):
    with pytest.raises(MalformedLineError, match=problem) as caught:
        parse_chunk(text)
    assert "secret" not in str(caught.value)


def test_an_error_envelope():
    with pytest.raises(ErrorEnvelopeError) as caught:
        parse_chunk(b'{"code":-500,"message":"m","data":null}')
    assert (caught.value.code, caught.value.message) == (-500, "m")


def told(text, cuts):
    """Thinking and answer of a text that is cut at these places; neighbours of one kind joined."""
    splitter = ThinkingSplitter()
    edges = [0, *sorted(cuts), len(text)]
    pieces = [piece for a, b in pairwise(edges) for piece in splitter.feed(text[a:b])]
    joined = []
    for thinking, piece in [*pieces, *splitter.flush()]:
        assert piece
        if joined and joined[-1][0] == thinking:
            joined[-1] = (thinking, joined[-1][1] + piece)
        else:
            joined.append((thinking, piece))
    return joined


TAGGED = "a<<think>\nb</th</think>\nc<think>d<"


@pytest.mark.parametrize("cut", range(len(TAGGED) + 1))
def test_a_tag_may_be_cut_anywhere(cut):
    expected = [(False, "a<"), (True, "\nb</th"), (False, "\nc"), (True, "d<")]
    assert told(TAGGED, [cut]) == told(TAGGED, range(len(TAGGED))) == expected


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "x", "\n", "/"])), st.data())
def test_cuts_never_change_what_is_said(words, data):
    text = "".join(words)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert told(text, cuts) == told(text, [])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_is_complete_at_its_end_and_not_before(value):
    text = json.dumps({"value": value}, ensure_ascii=False)
    progress = JsonProgress()
    for position, character in enumerate(text):
        assert not progress.is_complete(), position
        progress.add(character)
    assert progress.is_complete()
    assert from_json(progress.text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "{}{}", "}", '"', '{"a":"\\"}', "x"])
def test_incomplete_json(text):
    progress = JsonProgress()
    progress.add(text)
    assert not progress.is_complete()


@pytest.mark.parametrize("given_id", [None, "", "  ", "none", "None", "NULL", "null"])
def test_absent_ids(given_id):
    assert call_id(call(call_id=given_id)) == ""
    assert call_id(call(call_id=" c1 ")) == "c1"


def test_absent_functions_and_object_arguments():
    assert name_and_arguments({"id": "a"}) == ("", "")
    assert name_and_arguments({"function": {"name": None, "arguments": None}}) == ("", "")
    assert name_and_arguments(call(arguments={"a": 1})) == ("f", '{"a":1}')


def test_usage_of_a_call():
    usage = call_usage({**USAGE, "unknown": 1, "currency": None, "time_to_generate": None})
    assert (usage.prompt_tokens, usage.total_price, usage.currency) == (10, Decimal("0.002"), "USD")
    assert call_usage({"prompt_tokens": 3}).total_tokens == 3
    counts = request_usage(USAGE)
    assert (counts.input_tokens, counts.output_tokens) == (10, 5)
    assert request_usage(None).input_tokens == 0


@pytest.mark.parametrize("bad", [{"prompt_tokens": "many"}, {"total_price": "NaN"}, {"latency": float("inf")}])
def test_unusable_usage(bad):
    with pytest.raises(MalformedLineError, match="usage"):
        call_usage(bad)


def test_usages_are_summed_and_the_newest_prices_kept():
    first = call_usage(USAGE)
    second = call_usage({**USAGE, "prompt_unit_price": "0.9", "currency": "EUR", "time_to_first_token": 0.7})
    total = add_usage(add_usage(None, first), second)
    assert (total.prompt_tokens, total.completion_tokens, total.total_tokens) == (20, 10, 30)
    assert (total.prompt_price, total.completion_price, total.total_price) == (
        Decimal("0.002"),
        Decimal("0.002"),
        Decimal("0.004"),
    )
    assert (total.prompt_unit_price, total.currency, total.latency) == (Decimal("0.9"), "EUR", 1.0)
    assert total.time_to_first_token == 0.7
    assert add_usage(AgentRunUsage(latency=3.0), first) == first
