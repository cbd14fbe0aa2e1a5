"""Steps → the lines of a stream: envelopes as the gateway and the plugin daemon send them (integrations 3.6, 4.3)."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final

from dify_agent.testing.script import (
    AUTO,
    Blob,
    Ending,
    EnvelopeError,
    LlmStep,
    Newline,
    StreamStep,
    ToolCall,
    ToolStep,
    Usage,
)

HALF_CHUNK: Final = b'1000\r\ndata: {"code":0,"mess'
"""A chunk of HTTP's own framing that announces more bytes than follow."""

_OPEN_TAIL: Final = b'"usage":null,"finish_reason":null}'
_NEWLINES: Final = {Newline.LF: b"\n", Newline.CRLF: b"\r\n"}


def to_json(value: Any) -> bytes:
    """Compact JSON with non-ASCII characters as they are, as Dify writes it: U+2028 and U+0085 stay raw."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def llm_frames(
    step: LlmStep, *, model: str, messages: Sequence[Mapping[str, Any]], prompt: str, number: int, success: str
) -> Iterator[bytes]:
    """The frames of a model call.

    Args:
        step: what to say.
        model: name that each chunk repeats.
        messages: the request's, for ``echo_messages``.
        prompt: text of the last user message, for ``echo_text``.
        number: which call of its run it is, for the ids of tool calls.
        success: the envelope's message, by which the services differ.
    """
    if step.raw is not None:
        return iter(step.raw)
    payloads = _payloads(step, prompt, number)
    head = b'{"code":0,"message":%b,"data":{"model":%b,"prompt_messages":%b,"system_fingerprint":null,"delta":' % (
        to_json(success),
        to_json(model),
        to_json(messages if step.echo_messages else []),
    )
    empty_calls = b"null" if step.null_tool_calls else b"[]"
    return _framed(step, (b"%b%b}}" % (head, delta) for delta in _deltas(step, payloads, empty_calls)))


def tool_frames(step: ToolStep) -> Iterator[bytes]:
    """The frames of a plugin tool's answer."""
    if step.raw is not None:
        return iter(step.raw)
    head = b'{"code":0,"message":"success","data":'
    return _framed(step, (b"%b%b}" % (head, to_json(message)) for message in _tool_messages(step)))


def error_message(error_type: str, message: str, args: Any = None) -> str:
    """The JSON text that both services put into the ``message`` of an error envelope."""
    members = {"error_type": error_type, "message": message} | ({} if args is None else {"args": args})
    return to_json(members).decode()


_Payload = tuple[str, list[dict[str, Any]]]
"""Content and tool calls of one chunk."""


def _payloads(step: LlmStep, prompt: str, number: int) -> Iterator[_Payload]:
    if step.thinking is not None:
        yield f"<think>{step.thinking}</think>", []
    if step.echo_text:
        yield prompt, []
    count, pieces = step.texts
    for _ in range(count):
        for piece in pieces:
            yield piece, []
    if step.long_line_bytes:
        yield "x" * step.long_line_bytes, []
    yield from _call_payloads(step.tool_calls, number)


def _call_payloads(calls: tuple[ToolCall, ...], number: int) -> Iterator[_Payload]:
    """Complete calls that follow each other share a chunk; fragments have one each."""
    complete: list[dict[str, Any]] = []
    for position, call in enumerate(calls, start=1):
        call_id = f"call-{number}-{position}" if call.id is None else call.id
        text = call.arguments if isinstance(call.arguments, str) else to_json(call.arguments).decode()
        if call.fragments == 1:
            complete.append(_call(call_id, call.name, text))
            continue
        if complete:
            yield "", complete
            complete = []
        for place, part in enumerate(_parts(text, call.fragments)):
            again = place > 0
            known_id = "" if again and not call.fragments_with_id else call_id
            yield "", [_call(known_id, "" if again else call.name, part)]
    if complete:
        yield "", complete


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _parts(text: str, count: int) -> list[str]:
    """``text`` in ``count`` parts of about the same length, which may be empty."""
    cuts = [len(text) * place // count for place in range(count + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]


def _deltas(step: LlmStep, payloads: Iterator[_Payload], empty_calls: bytes) -> Iterator[bytes]:
    """The JSON of each delta. The last one of a regular end tells finish reason and usage."""
    regular = step.error is None and step.end is Ending.COMPLETE
    finish, usage = (_finish_reason(step), _usage(step.usage)) if regular else (None, None)
    last_tail = b'"usage":%b,"finish_reason":%b}' % (to_json(usage), to_json(finish))
    silent = finish is None and usage is None
    current = next(payloads, None if silent else ("", []))
    index, known, known_json = 0, "", b'""'
    while current is not None:
        following = next(payloads, None)
        content, calls = current
        if content != known:  # a load test repeats one text a thousand times
            known, known_json = content, to_json(content)
        yield b'{"index":%d,"message":{"role":"assistant","content":%b,"name":null,"tool_calls":%b},%b' % (
            index,
            known_json,
            to_json(calls) if calls else empty_calls,
            _OPEN_TAIL if following is not None else last_tail,
        )
        index, current = index + 1, following


def _finish_reason(step: LlmStep) -> str | None:
    if step.finish_reason != AUTO:
        return step.finish_reason
    return "tool_calls" if step.tool_calls else "stop"


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    members = usage.model_dump()
    if usage.total_tokens is None:
        members["total_tokens"] = usage.prompt_tokens + usage.completion_tokens
    return members


def _tool_messages(step: ToolStep) -> Iterator[dict[str, Any]]:
    if step.answer_text is not None:
        yield {"type": "text", "message": {"text": step.answer_text}, "meta": None}
    if step.json_object is not None:
        yield {"type": "json", "message": {"json_object": step.json_object, "suppress_output": False}, "meta": None}
    for message in step.messages:
        yield message.model_dump(mode="json")
    for blob in step.blobs:
        yield from _blob_chunks(blob)
    if step.long_line_bytes:
        yield {"type": "text", "message": {"text": "x" * step.long_line_bytes}, "meta": None}


def _blob_chunks(blob: Blob) -> Iterator[dict[str, Any]]:
    for sequence, start in enumerate(range(0, max(blob.size, 1), blob.chunk_bytes)):
        piece = bytes(min(blob.chunk_bytes, blob.size - start))
        message = {
            "id": blob.id,
            "sequence": sequence,
            "total_length": blob.size,
            "blob": b64encode(piece).decode(),
            "end": blob.ends and start + blob.chunk_bytes >= blob.size,
        }
        yield {"type": "blob_chunk", "message": message, "meta": {"mime_type": blob.mime_type}}


def _framed(step: StreamStep, envelopes: Iterator[bytes]) -> Iterator[bytes]:
    """Envelopes as lines, each with what the step puts before it, and the error behind them."""
    newline = _NEWLINES[step.newline]
    prefix = b"data: " if step.prefix else b""
    end = newline * 2
    if step.error is not None:
        envelopes = chain(envelopes, (_error_envelope(step.error),))
    if not step.comments and not step.event_lines:
        return (b"%b%b%b" % (prefix, envelope, end) for envelope in envelopes)
    return (
        b"%b%b%b%b" % (_extra_lines(step, newline, number), prefix, envelope, end)
        for number, envelope in enumerate(envelopes, start=1)
    )


def _extra_lines(step: StreamStep, newline: bytes, number: int) -> bytes:
    comment = b": a comment%b" % newline if step.comments else b""
    return comment + (b"event: message%bid: %d%b" % (newline, number, newline) if step.event_lines else b"")


def _error_envelope(error: EnvelopeError) -> bytes:
    message = error_message(error.type, error.message, error.args)
    for _ in range(error.nested):
        message = error_message("PluginInvokeError", message)
    return to_json({"code": error.code, "message": message if error.raw is None else error.raw, "data": None})
