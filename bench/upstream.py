"""Dify's LLM gateway and OpenAI's chat completions, in a process of their own: ``python -m bench.upstream``.

Whichever is asked, the answer is the same text in bytes made beforehand, and leaves in as many writes: the head, one
for each piece, one with the end. Prints the port, serves one connection until its end, and listens no more: a side that
does not keep its connection alive is refused.
"""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from bench.gateway_text import PACES, PIECES, PROMPT

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
RECEIVE_BYTES = 1 << 16
STUCK_SECONDS = 30.0
"""Nothing asked in so long: the side that is measured is stuck."""
PROMPT_TOKENS = 8


def _frame(*values: dict[str, Any] | str) -> bytes:
    """Data lines in one chunk of HTTP's framing."""
    texts = (value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in values)
    data = b"".join(b"data: %b\n\n" % text.encode() for text in texts)
    return b"%x\r\n%b\r\n" % (len(data), data)


def _gateway_chunk(content: str, usage: dict[str, Any] | None = None, finish_reason: str | None = None) -> Any:
    message = {"role": "assistant", "content": content, "name": None, "tool_calls": []}
    return {
        "code": 0,
        "message": "",
        "data": {
            "model": "gpt-x",
            "prompt_messages": [{"role": "user", "content": PROMPT, "name": None}],
            "system_fingerprint": None,
            "delta": {"index": 0, "message": message, "usage": usage, "finish_reason": finish_reason},
        },
    }


def _gateway() -> Iterator[bytes]:
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "prompt_unit_price": "0.1",
        "prompt_price_unit": "0.001",
        "prompt_price": "0.0008",
        "completion_tokens": len(PIECES),
        "completion_unit_price": "0.2",
        "completion_price_unit": "0.001",
        "completion_price": "0.04",
        "total_tokens": PROMPT_TOKENS + len(PIECES),
        "total_price": "0.0408",
        "currency": "USD",
        "latency": 0.5,
    }
    for piece in PIECES:
        yield _frame(_gateway_chunk(piece))
    yield _frame(_gateway_chunk("", usage, "stop")) + END


def _openai_chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-Bv4q2W0TzXx1yqf4mJ2hN7kz5c8aR",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "gpt-x",
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": choices,
        "usage": usage,
    }


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


def _openai() -> Iterator[bytes]:
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(PIECES),
        "total_tokens": PROMPT_TOKENS + len(PIECES),
    }
    first, *others = PIECES
    role = _openai_chunk(_choice({"role": "assistant", "content": "", "refusal": None}))
    yield _frame(role, _openai_chunk(_choice({"content": first})))
    for piece in others:
        yield _frame(_openai_chunk(_choice({"content": piece})))
    yield _frame(_openai_chunk(_choice({}, "stop")), _openai_chunk([], usage), "[DONE]") + END


def _length(head: bytes) -> int:
    """What the request's head says of its body.

    Raises:
        ValueError: nothing; the clients that are measured know their bodies' lengths.
    """
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError(f"a request without Content-Length: {head!r}")


def _requests(connection: socket.socket) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Path and body of each request."""
    received = b""
    while True:
        head, end, rest = received.partition(b"\r\n\r\n")
        if end and len(rest) >= (length := _length(head)):
            received = rest[length:]
            yield head.split(b" ", 2)[1], json.loads(rest[:length])
            continue
        if not (data := connection.recv(RECEIVE_BYTES)):
            return
        received += data


def serve() -> None:
    """Serve one connection."""
    answers = {b"/inner/api/agent/llm/invoke": list(_gateway()), b"/v1/chat/completions": list(_openai())}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(STUCK_SECONDS)
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(STUCK_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for path, body in _requests(connection):
            pace_seconds = PACES[body.get("target", body)["model"]]
            connection.sendall(HEAD)
            for frame in answers[path]:
                if pace_seconds:
                    time.sleep(pace_seconds)
                connection.sendall(frame)


if __name__ == "__main__":
    serve()
