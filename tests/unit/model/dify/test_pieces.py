"""The pure parts: lines, thinking tags, tool-call fragments, usage."""

import json
import re
from contextlib import suppress
from decimal import Decimal
from itertools import cycle, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from tests.unit.model.dify.fake_dify import USAGE, call, chunk, line
from tests.unit.model.dify.growth import LINEAR, growth

from dify_agent.events.json_text import encode
from dify_agent.model.dify.chunks import ErrorEnvelopeError, MalformedLineError, parse_chunk
from dify_agent.model.dify.lines import LineSplitter, LineTooLongError, payload
from dify_agent.model.dify.thinking import ThinkingSplitter, whole_spans
from dify_agent.model.dify.tool_calls import JsonProgress, ToolCallDraft, call_id, name_and_arguments
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


TAGS = st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "x", "\n", "/"])).map("".join)


@given(TAGS)
def test_whole_spans_are_those_that_end(text):
    expected, end = [], 0
    for span in re.finditer(r"<think>(.*?)</think>", text, re.DOTALL):
        expected.append((text[end : span.start()], span[1].strip("\r\n")))
        end = span.end()
    assert list(whole_spans(text)) == [*expected, (text[end:], None)]


@pytest.mark.parametrize("text", ["<think>", "</think>", "<think>a</think>", "<think><"])
def test_long_texts_take_no_more_than_their_length(text):
    assert growth(lambda size: lambda: list(whole_spans(text * size)), 2000) < LINEAR
    assert growth(lambda size: lambda: ThinkingSplitter().feed(text * size), 5000) < LINEAR


@pytest.mark.parametrize(
    ("first", "piece"),
    [("", "x"), ("", " "), ("", "1"), ('"', "x"), ("", "[]"), ("{}", " "), ('{"a":tru}', "x"), ("{", '"a":1,')],
)
def test_many_fragments_take_no_more_than_their_length(first, piece):
    def fragments(size):
        def work():
            progress = JsonProgress()
            progress.add(first)
            for _ in range(size):
                progress.is_complete()
                progress.add(20 * piece)

        return work

    assert growth(fragments, 4000) < LINEAR


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


@pytest.mark.parametrize("text", ["null", "7", ' "a" ', "[1]", " {} ", '{"a":"}"}\r\n\t'])
def test_complete_json(text):
    progress = JsonProgress()
    progress.add(text)
    assert progress.is_complete()
    progress.add("\n")
    assert progress.is_complete()
    progress.add("{}")
    assert not progress.is_complete()


def test_what_is_nothing_new():
    draft = ToolCallDraft(0, "c1", "f", "")
    assert not draft.is_nothing_new("", "")
    draft.append("{}")
    assert draft.is_nothing_new("", " ")
    assert draft.is_nothing_new("f", "")
    assert not draft.is_nothing_new("g", "")
    assert not draft.is_nothing_new("f", "{}")


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


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt_tokens": "many"},
        {"prompt_tokens": -1},
        {"completion_tokens": 2**53},
        {"total_tokens": 10**4299},
        {"total_price": "NaN"},
        {"total_price": "9e999999"},
        {"total_price": "-0.1"},
        {"prompt_price": "1e-999999"},
        {"prompt_unit_price": "0e999999"},
        {"completion_price_unit": "1" * 100_000},
        {"latency": float("inf")},
        {"latency": 1.7e308},
        {"time_to_first_token": -1},
        {"time_to_generate": float("nan")},
        {"currency": "U" * 1000},
    ],
)
def test_unusable_usage(bad):
    (name,) = bad
    with pytest.raises(MalformedLineError, match=f"usage has unusable members: {name}"):
        call_usage(bad)
    assert request_usage(bad) == request_usage(None)


def test_a_total_beyond_the_bound_is_none():
    with pytest.raises(MalformedLineError, match="total_tokens"):
        call_usage({"prompt_tokens": 2**53 - 1, "completion_tokens": 1})


NUMBERS = st.integers(0, 2**53 - 1) | st.sampled_from([0, 1, 2**53 - 1, 2**53, -1, 10**4299])
DECIMALS = st.decimals(0, 10**15, allow_nan=False).map(str) | st.sampled_from(
    ["1e15", "9e999999", "1e-60", "1e-999999", "0e60", "0.1", "9" * 15 + "." + "9" * 45, 0.1, 5]
)
SECONDS = st.floats(0, 1e9) | st.sampled_from([0.0, 1e9, 1.7e308, -1.0, 5e-324])


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                name: NUMBERS if name.endswith("tokens") else DECIMALS if "price" in name else SECONDS
                for name in AgentRunUsage.model_fields
                if name != "currency"
            },
        ),
        min_size=1,
        max_size=3,
    )
)
def test_sums_of_usages_can_be_stored(reported):
    usages = []
    for usage in reported:
        with suppress(MalformedLineError):
            usages.append(call_usage(usage))
    total = None
    for usage in islice(cycle(usages), 500 if usages else 0):
        total = add_usage(total, usage)
    if total is not None:
        text = encode(total)
        assert len(text) < 2000
        assert AgentRunUsage.model_validate_json(text) == total
        assert b"null" not in text.replace(b'"time_to_first_token":null', b"").replace(b'"time_to_generate":null', b"")
        assert call_usage(json.loads(text)) == total


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
