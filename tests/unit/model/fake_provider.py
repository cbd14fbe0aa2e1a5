"""A very small HTTP/1.1 server on loopback that answers as an OpenAI endpoint would."""

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass
class Reply:
    """What one request is answered with. ``hang``: the body is left open after ``chunks``; ``more`` follows its end."""

    chunks: list[bytes] = field(default_factory=list)
    status: str = "200 OK"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    hang: bool = False
    more: bytes = b""


class FakeProvider:
    """Keeps the requests it got; ``closed`` is set when a client leaves an open body."""

    def __init__(self, *replies):
        self.requests = []
        self.closed = trio.Event()
        self.connections = 0
        self.base_url = ""
        self._replies = deque(replies)

    async def handle(self, stream):
        self.connections += 1
        with stream:
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    data = await stream.receive_some()
                    if not data:
                        return
                    buffer += data
                head, buffer = buffer.split(b"\r\n\r\n", 1)
                lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
                length = int(headers.get("content-length", 0))
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                body, buffer = buffer[:length], buffer[length:]
                self.requests.append((lines[0].split(" ")[1], headers, json.loads(body or b"null")))
                await self._answer(stream, self._replies.popleft())

    async def _answer(self, stream, reply):
        headers = {"transfer-encoding": "chunked", **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await stream.send_all(f"HTTP/1.1 {reply.status}\r\n{head}\r\n".encode())
        for chunk in reply.chunks:
            await stream.send_all(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if reply.hang:
            try:
                data = await stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                self.closed.set()
        else:
            await stream.send_all(b"0\r\n\r\n" + reply.more)


class _Stream:
    """Closes with ``with``: a served socket must not wait on its way out."""

    def __init__(self, inner):
        self._inner = inner
        self.receive_some = inner.receive_some
        self.send_all = inner.send_all

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._inner.socket.close()


@asynccontextmanager
async def open_fake_provider(*replies):
    """Serve the replies in order until the block ends."""
    provider = FakeProvider(*replies)

    async def handle(stream):
        await provider.handle(_Stream(stream))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handle, 0)
        listener = next(listener for listener in listeners if listener.socket.family == trio.socket.AF_INET)
        provider.base_url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
        yield provider
        nursery.cancel_scope.cancel()


def sse(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def responses_event(event_type, sequence, **members):
    """One event of OpenAI's Responses API."""
    data = json.dumps({"type": event_type, "sequence_number": sequence, **members})
    return f"event: {event_type}\ndata: {data}\n\n".encode()


_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1796041234,
    "model": "gpt-x",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
_USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 9,
}


def responses_text(*pieces, cut=False):
    """A text answer; ``cut`` leaves out everything behind the last piece."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = "".join(pieces)
    done = {**item, "status": "completed", "content": [{**part, "text": text}]}
    events = [
        responses_event("response.created", 0, response={**_RESPONSE, "status": "in_progress"}),
        responses_event("response.output_item.added", 1, output_index=0, item=item),
        responses_event("response.content_part.added", 2, part=part, **place),
        *(responses_event("response.output_text.delta", 3, delta=p, logprobs=[], **place) for p in pieces),
    ]
    if cut:
        return events
    return [
        *events,
        responses_event("response.output_text.done", 4, text=text, logprobs=[], **place),
        responses_event("response.output_item.done", 5, output_index=0, item=done),
        responses_event(
            "response.completed", 6, response={**_RESPONSE, "status": "completed", "output": [done], "usage": _USAGE}
        ),
    ]


def responses_call(name, call_id, *pieces):
    """A tool call whose arguments come in pieces."""
    item = {"id": "fc_1", "type": "function_call", "status": "in_progress", "arguments": "", "call_id": call_id}
    item["name"] = name
    done = {**item, "status": "completed", "arguments": "".join(pieces)}
    place = {"item_id": "fc_1", "output_index": 0}
    return [
        responses_event("response.created", 0, response={**_RESPONSE, "status": "in_progress"}),
        responses_event("response.output_item.added", 1, output_index=0, item=item),
        *(responses_event("response.function_call_arguments.delta", 2, delta=p, **place) for p in pieces),
        responses_event("response.function_call_arguments.done", 3, arguments="".join(pieces), name=name, **place),
        responses_event("response.output_item.done", 4, output_index=0, item=done),
        responses_event(
            "response.completed", 5, response={**_RESPONSE, "status": "completed", "output": [done], "usage": _USAGE}
        ),
    ]


def chat_text(*pieces):
    """A text answer of the Chat Completions API."""
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1796041234, "model": "gpt-x"}
    chunks = [
        {**base, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces
    ]
    end = {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [sse(chunk) for chunk in (*chunks, end)] + [sse(b"[DONE]")]
