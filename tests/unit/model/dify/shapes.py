"""Shapes of a model's answer on the wire, and what each says: read in memory here, and by a real server in
`tests/server/test_dify_streams.py`.

A shape is a list of packets, whose bounds mean nothing. What it says is the list of parts, or those that came before a
failure and the failure's reason.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from tests.unit.model.dify.fake_dify import END, USAGE, call, chunk, envelope, error_line, line

ODD: Final = "a\u2028b\u2029c\u0085d\v\f\x1c\x1d\x1e𝄞 é\r\n\0\u200b\ufeff😀"
LONG: Final = "upstream_line_too_long"
TOOLS_END: Final = line(chunk(usage=USAGE, finish="tool_calls"))
MALFORMED: Final = "upstream_malformed_answer"
EARLY: Final = "incomplete_stream"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One answer."""

    packets: tuple[bytes, ...]
    parts: tuple[ModelResponsePart, ...] = ()
    reason: str | None = None
    """Of the failure; None for an answer that is complete."""
    arguments: tuple[dict[str, Any] | None, ...] = ()
    """What the tools are asked with, call by call; None for a call that the model is told to repeat."""


def _text(*packets: bytes, says: str) -> Shape:
    return Shape(packets=packets, parts=(TextPart(says),) if says else ())


def _fails(*packets: bytes, reason: str, after: str = "") -> Shape:
    return Shape(packets=packets, parts=(TextPart(after),) if after else (), reason=reason)


def _calls(
    *packets: bytes, parts: tuple[ModelResponsePart, ...], arguments: tuple[dict[str, Any] | None, ...]
) -> Shape:
    return Shape(packets=(*packets, TOOLS_END), parts=parts, arguments=arguments)


def _said(*texts: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(line(chunk(text), end) for text in texts)


def _called(*calls: dict[str, Any]) -> bytes:
    """A chunk per call."""
    return b"".join(line(chunk("", tool_calls=[each])) for each in calls)


def _cut(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))


def _cut_at(data: bytes, *marks: bytes) -> tuple[bytes, ...]:
    """Cut in the middle of each mark."""
    places = [data.index(mark) + len(mark) // 2 for mark in marks]
    return tuple(data[start:end] for start, end in pairwise([0, *places, len(data)]))


def _delta(**members: Any) -> bytes:
    """A chunk with exactly these members of ``delta``."""
    return line(envelope({"delta": members}))


def _indexed(index: int, call_id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    return {"index": index, **call(name, arguments, call_id)}  # type: ignore[arg-type]


_TWO: Final = _said("Hel", "lo")
_BARE: Final = json.dumps(chunk("Hel"), ensure_ascii=False).encode()

LINES: Final = {
    "one packet": _text(_TWO + END, says="Hello"),
    "a byte per packet": _text(*_cut(_said(ODD) + END, 1), says=ODD),
    "packets of 7": _text(*_cut(_said(ODD, "!") + END, 7), says=f"{ODD}!"),
    "200 chunks in one packet": _text(_said(*(f"{number} " for number in range(200))) + END,
                                      says="".join(f"{number} " for number in range(200))),
    "CRLF": _text((_said(ODD) + END).replace(b"\n", b"\r\n"), says=ODD),
    "CR and LF in packets of their own": _text(*(_TWO + END).replace(b"\n", b"\r\n|\n|").split(b"|"), says="Hello"),
    "CRLF and LF by turns": _text(_said("Hel", end=b"\r\n\n") + _said("lo", end=b"\n\r\n") + END, says="Hello"),
    "no blank lines": _text(_said("Hel", "lo", end=b"\n") + END, says="Hello"),
    "no line end at the end": _text(_TWO + END.rstrip(), says="Hello"),
    "one line end at the end": _text(_TWO + END.rstrip() + b"\r\n", says="Hello"),
    "many blank lines": _text(b"\n\r\n\n" + _TWO + b"\n\n\n" + END, says="Hello"),
    "bare JSON": _text(_BARE + b"\n" + END, says="Hel"),
    "no space behind the colon": _text((_TWO + END).replace(b"data: ", b"data:"), says="Hello"),
    "spaces around": _text((_TWO + END).replace(b"data: ", b"  data:  ").replace(b"\n", b" \t\n"), says="Hello"),
    "byte order mark": _text(b"\xef\xbb\xbf" + _TWO + END, says="Hello"),
    "comments": _text(b":\n: ping\n\n" + _said("Hel") + b": ping\r\n\r\n" + _said("lo") + END + b": bye", says="Hello"),
    "other fields": _text(b"event: message\nid: 7\nretry: 5\n" + _TWO + b"event: end\ndata:\n\n" + END, says="Hello"),
    "CR alone": _fails((_TWO + END).replace(b"\n", b"\r"), reason=MALFORMED),
    "half a line at the end": _fails(_TWO + END[:40], reason=MALFORMED, after="Hello"),
    "[DONE]": _fails(_TWO + END + b"data: [DONE]\n\n", reason=MALFORMED, after="Hello"),
    "page": _fails(b"<html>\n<body>\n", reason=MALFORMED),
    "not UTF-8": _fails(_TWO + line(chunk("é")).replace("é".encode(), b"\xe9"), reason=MALFORMED, after="Hello"),
}  # fmt: skip

TEXTS: Final = {
    "odd characters": _text(_said(ODD, ODD) + END, says=ODD * 2),
    "odd characters escaped": _text(b"data: " + json.dumps(chunk(ODD)).encode() + b"\n\n" + END, says=ODD),
    "emoji cut by packets": _text(*_cut_at(_said("a😀b", "é") + END, "😀".encode(), "é".encode()), says="a😀bé"),
    "lone surrogate": _fails(_TWO + line(chunk("X")).replace(b"X", b"\\ud83d") + END, reason=MALFORMED, after="Hello"),
    "emoji in two escapes": _text(line(chunk("X")).replace(b"X", b"\\ud83d\\ude00") + END, says="😀"),
    "1 MB line": _text(_said("x" * 1_000_000) + END, says="x" * 1_000_000),
    "2 MB line": _fails(_TWO, _said("x" * 2_000_000) + END, reason=LONG, after="Hello"),
    "2 MB line that does not end": _fails(_TWO, _said("x" * 2_000_000)[:-20], reason=LONG, after="Hello"),
    "list of parts": _text(
        line(chunk([{"type": "text", "data": "Hel"}, {"type": "text", "data": "lo"}])) + END, says="Hello"
    ),
    "thinking over three chunks": Shape(
        packets=(_said("<thi"), _said("nk>plan</th"), _said("ink>Yes."), END),
        parts=(ThinkingPart("plan"), TextPart("Yes.")),
    ),
    "thinking by the character": Shape(
        packets=(_said(*"<think>\np<\n</think>\nYes."), END), parts=(ThinkingPart("\np<\n"), TextPart("\nYes."))
    ),
    "text, thinking, text": Shape(
        packets=(_said("a<b <think>c", "d</think>", "", "e</think>") + END,),
        parts=(TextPart("a<b "), ThinkingPart("cd"), TextPart("e</think>")),
    ),
    "a tag that is none": _text(_said("a<thi", "s>") + END, says="a<this>"),
    "half a tag at the end": _text(_said("Yes.", "<thin") + END, says="Yes.<thin"),
}

DELTAS: Final = {
    "empty deltas": _text(
        _said("", None) + _delta() + _delta(message=None) + _delta(message={}) + _TWO + _said("") + END, says="Hello"
    ),
    "null in place of calls": _text(line(chunk("Hello", tool_calls=None)) + END, says="Hello"),
    "unknown members": _text(
        _delta(message={"content": "Hello", "role": "assistant", "audio": {}}, logprobs=[1]) + END, says="Hello"
    ),
    "the prompt again": _text(line(chunk("Hello", prompt=[{"role": "user", "content": ODD}] * 50)) + END, says="Hello"),
    "no usage": _text(_TWO + line(chunk("", finish="stop")), says="Hello"),
    "no finish reason": _text(_TWO + line(chunk("", usage=USAGE)), says="Hello"),
    "neither": _fails(_TWO, reason=EARLY, after="Hello"),
    "nothing": _fails(reason=EARLY),
    "blank lines only": _fails(b"\n\n: ping\n\n", reason=EARLY),
    "usage in every chunk": _text(
        line(chunk("Hel", usage={**USAGE, "total_tokens": 1})) + line(chunk("lo", usage=USAGE)), says="Hello"
    ),
    "more behind the finish": _text(line(chunk("Hel", finish="stop")) + _said("lo", "!") + END, says="Hello!"),
    "usage behind the finish": _text(line(chunk("Hello", finish="stop")) + line(chunk("", usage=USAGE)), says="Hello"),
    "an unknown finish": _text(line(chunk("Hello", finish="end_turn")), says="Hello"),
    "an error behind the text": _fails(
        _TWO + error_line("InvokeRateLimitError", "slow", nested=1) + END, reason="InvokeRateLimitError", after="Hello"
    ),
    "an error behind the finish": _fails(
        _TWO + END + error_line("InvokeServerUnavailableError", "gone"),
        reason="InvokeServerUnavailableError",
        after="Hello",
    ),
    "quota in the stream": _fails(
        error_line("AgentLLMQuotaExceededError", "spent", code=-429), reason="AgentLLMQuotaExceededError"
    ),
    "data is null": _fails(_TWO + line(envelope(None)), reason=MALFORMED, after="Hello"),
    "content is a number": _fails(_delta(message={"content": 5}), reason=MALFORMED),
    "no code": _fails(line({"data": {"delta": {}}}), reason=MALFORMED),
    "usage of another form": _fails(line(chunk("Hey", usage={"prompt_tokens": "many"})), reason=MALFORMED, after="Hey"),
}  # fmt: skip

_F: Final = ToolCallPart("f", '{"a":1}', "c1")
_G: Final = ToolCallPart("g", '{"b":2}', "c2")
_A: Final = {"a": 1}
_B: Final = {"b": 2}

CALLS: Final = {
    "two calls in one chunk": _calls(
        line(chunk("", tool_calls=[call("f", '{"a":1}', "c1"), call("g", '{"b":2}', "c2")])),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "text and a call": _calls(
        _said("I'll ") + _called(call("f", '{"a":1}', "c1")) + _said("ask."),
        parts=(TextPart("I'll "), _F, TextPart("ask.")),
        arguments=(_A,),
    ),
    "empty arguments": _calls(
        _called(call("f", "", "c1")), parts=(ToolCallPart("f", "", "c1"),), arguments=({},)
    ),
    "null arguments": _calls(
        _called(call("f", None, "c1")), parts=(ToolCallPart("f", "", "c1"),), arguments=({},)  # type: ignore[arg-type]
    ),
    "null as text": _calls(
        _called(call("f", "null", "c1")), parts=(ToolCallPart("f", "null", "c1"),), arguments=(None,)
    ),
    "arguments as an object": _calls(
        _called(call("f", {"a": 1}, "c1")), parts=(_F,), arguments=(_A,)  # type: ignore[arg-type]
    ),
    "arguments cut off": _calls(
        _called(call("f", '{"a":', "c1")), parts=(ToolCallPart("f", '{"a":', "c1"),), arguments=(None,)
    ),
    "arguments twice": _calls(
        _called(call("f", '{"a":1}{"a":1}', "c1")),
        parts=(ToolCallPart("f", '{"a":1}{"a":1}', "c1"),),
        arguments=(None,),
    ),
    "arguments are a list": _calls(
        _called(call("f", "[1]", "c1")), parts=(ToolCallPart("f", "[1]", "c1"),), arguments=(None,)
    ),
    "fragments with id and name": _calls(
        _called(*(call("f", piece, "c1") for piece in ("", '{"a', '":', "1", "}"))), parts=(_F,), arguments=(_A,)
    ),
    "fragments with id": _calls(
        _called(call("f", "", "c1"), call("", '{"a":', "c1"), call("", "1}", "c1")), parts=(_F,), arguments=(_A,)
    ),
    "fragments without id": _calls(
        _called(call("f", '{"a', "c1"), call("", '":1', ""), call("", "}", None)),  # type: ignore[arg-type]
        parts=(_F,),
        arguments=(_A,),
    ),
    "fragments with index only": _calls(
        _called(_indexed(0, "c1", "f", ""), _indexed(0, None, None, '{"a":'), _indexed(0, None, None, "1}")),
        parts=(_F,),
        arguments=(_A,),
    ),
    "interleaved with ids": _calls(
        _called(call("f", "", "c1"), call("g", "", "c2")),
        _called(call("", '{"a":', "c1"), call("", '{"b":', "c2"), call("", "1}", "c1"), call("", "2}", "c2")),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "interleaved in one chunk": _calls(
        line(chunk("", tool_calls=[call("f", "{", "c1"), call("g", "{", "c2")])),
        line(chunk("", tool_calls=[call("", '"a":1}', "c1"), call("", '"b":2}', "c2")])),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "interleaved with index only": _calls(
        _called(_indexed(0, "c1", "f", ""), _indexed(1, "c2", "g", "")),
        _called(_indexed(0, None, None, '{"a":'), _indexed(1, "", "", '{"b":')),
        _called(_indexed(0, None, None, "1}"), _indexed(1, "", "", "2}")),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "no ids": _calls(
        line(chunk("", tool_calls=[call("f", '{"a":1}', ""), call("g", '{"b":2}', None)])),  # type: ignore[arg-type]
        parts=(ToolCallPart("f", '{"a":1}', "chunk-0-tool-0"), ToolCallPart("g", '{"b":2}', "chunk-0-tool-1")),
        arguments=(_A, _B),
    ),
    "one id for a call that comes again": _calls(
        _called(call("f", '{"a":0}', "c1"), call("f", '{"a":1}', "c1")), parts=(_F,), arguments=(_A,)
    ),
    "one id for two tools": _calls(
        line(chunk("", tool_calls=[call("g", '{"b":2}', "c1"), call("f", '{"a":1}', "c1")])),
        parts=(_F,),
        arguments=(_A,),
    ),
    "empty fragments behind a call": _calls(
        _called(call("f", '{"a":1}', "c1"), call("", "", "c1"), call("f", "", "c1"), call("f", " \n", "c1")),
        parts=(_F,),
        arguments=(_A,),
    ),
    "empty fragments without id behind a call": _calls(
        _called(call("f", '{"a":1}', "c1"), call("", "", ""), call("", " ", None)),  # type: ignore[arg-type]
        parts=(_F,),
        arguments=(_A,),
    ),
    "empty fragments with index only behind calls": _calls(
        _called(_indexed(0, "c1", "f", '{"a":1}'), _indexed(0, None, None, ""), _indexed(1, "c2", "g", '{"b":2}')),
        _called(_indexed(0, "", "", " "), _indexed(1, None, None, None), _indexed(7, "", "", "")),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "an empty fragment between two calls": _calls(
        _called(call("f", '{"a":1}', "c1"), call("g", '{"b":', "c2"), call("", "", "c1"), call("", "2}", "")),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "a call with nothing but an id": _calls(
        _called(call("", "", "c0"), call("f", '{"a":1}', "c1"), call("", " ", "c9"), call("", "", "")),
        parts=(_F,),
        arguments=(_A,),
    ),
    "arguments without a name behind a call": _calls(
        _called(call("f", '{"a":1}', "c1"), call("", '{"b":2}', "")),
        parts=(ToolCallPart("f", '{"a":1}{"b":2}', "c1"),),
        arguments=(None,),
    ),
    "arguments with an unknown id behind a call": _calls(
        _called(call("f", '{"a":1}', "c1"), call("", '{"b"', "c9"), call("", ":2}", "c9")),
        parts=(ToolCallPart("f", '{"a":1}{"b":2}', "c1"),),
        arguments=(None,),
    ),
    "arguments with an unknown id for a call": _calls(
        _called(call("f", '{"a"', "c1"), call("", ":", "x1"), call("", "1}", "x2")), parts=(_F,), arguments=(_A,)
    ),
    "arguments with an unknown index behind calls": _calls(
        _called(_indexed(0, "c1", "f", '{"a":1}'), _indexed(1, "c2", "g", '{"b":2}'), _indexed(7, "", "", "{}")),
        parts=(_F, ToolCallPart("g", '{"b":2}{}', "c2")),
        arguments=(_A, None),
    ),
    "arguments with the index of a complete call": _calls(
        _called(_indexed(0, "c1", "f", '{"a":1}'), _indexed(1, "c2", "g", '{"b":2}'), _indexed(0, "", "", "{}")),
        parts=(ToolCallPart("f", '{"a":1}{}', "c1"), _G),
        arguments=(None, _B),
    ),
    "arguments without a name behind the wrong call": _calls(
        _called(call("f", '{"a":', "c1"), call("g", '{"b":2}', "c2"), call("", "1}", "")),
        parts=(ToolCallPart("f", '{"a":', "c1"), ToolCallPart("g", '{"b":2}1}', "c2")),
        arguments=(None, None),
    ),
    "arguments without a name before any call": _fails(
        _TWO + _called(call("", '{"a":1}', "c1"), call("f", "{}", "c2")), reason=MALFORMED, after="Hello"
    ),
    "no id behind a fragment of an earlier call": _calls(
        _called(call("f", '{"a":', "c1"), call("g", '{"b":', "c2")),
        _called(call("", "1", "c1"), call("", "}", ""), call("", "2}", "c2")),
        parts=(_F, _G),
        arguments=(_A, _B),
    ),
    "an id of its own for each fragment": _calls(
        _called(_indexed(0, "c1", "f", '{"a'), _indexed(0, "x1", "", '":'), _indexed(0, "x2", None, "1}")),
        parts=(_F,),
        arguments=(_A,),
    ),
    "an index that no call has": _calls(
        _called(_indexed(0, "c1", "f", '{"a":'), _indexed(5, "", "", '9}'), _indexed(0, "", "", "1}")),
        parts=(ToolCallPart("f", '{"a":9}1}', "c1"),),
        arguments=(None,),
    ),
    "an index in the fragments alone": _calls(
        _called(call("f", '{"a', "c1"), _indexed(0, "", "", '":'), _indexed(0, None, None, "1}")),
        parts=(_F,),
        arguments=(_A,),
    ),
    "null in place of arguments, then arguments": _calls(
        _called(call("f", "null", "c1"), call("f", '{"a":1}', "c1")), parts=(_F,), arguments=(_A,)
    ),
    "a call by the byte": _calls(
        *_cut(_called(call("f", '{"a', "c1"), call("", '":"\u2028😀"}', "c1")), 1),
        parts=(ToolCallPart("f", '{"a":"\u2028😀"}', "c1"),),
        arguments=({"a": "\u2028😀"},),
    ),
    "a call cut off with its stream": Shape(
        packets=(_called(call("f", '{"a":', "c1")),), parts=(ToolCallPart("f", '{"a":', "c1"),), reason=EARLY
    ),
    "finish in the call's chunk": Shape(
        packets=(line(chunk("", tool_calls=[call("f", '{"a":1}', "c1")], finish="tool_calls")),),
        parts=(_F,),
        arguments=(_A,),
    ),
    "a call that ends with stop": Shape(
        packets=(_called(call("f", '{"a":1}', "c1")), END), parts=(_F,), arguments=(_A,)
    ),
}  # fmt: skip

SHAPES: Final = LINES | TEXTS | DELTAS | CALLS
