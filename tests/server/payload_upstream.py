"""A model provider that sends its answer one byte a packet, so that every character is torn apart."""

import json
from typing import Any

import h11
import trio
from tests.server.upstream import Upstream


def chunk(delta: dict[str, Any], finish: str | None = None, *, ascii_only: bool = False) -> bytes:
    """One frame of OpenAI's stream, its text in UTF-8 or in escapes."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-fake", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=ascii_only).encode() + b"\n\n"


class BytewiseUpstream(Upstream):
    """Answers the n-th request with the n-th list of frames, the last one repeating."""

    def __init__(self, *answers: list[bytes]) -> None:
        super().__init__("bytewise")
        self._answers = answers

    async def _answer(self, http: h11.Connection, stream: trio.SocketStream) -> None:
        frames = self._answers[min(len(self.requests), len(self._answers)) - 1]
        head = h11.Response(status_code=200, headers=[("content-type", "text/event-stream"), ("connection", "close")])
        await stream.send_all(http.send(head))
        # SocketStream sets TCP_NODELAY: each byte leaves by itself.
        for byte in b"".join(frames) + b"data: [DONE]\n\n":
            await stream.send_all(http.send(h11.Data(data=bytes([byte]))))
            await trio.lowlevel.checkpoint()
        await stream.send_all(http.send(h11.EndOfMessage()))
