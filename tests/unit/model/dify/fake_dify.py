"""Dify in memory: answers with given bytes, and keeps what it was asked."""

import json
from collections import deque
from dataclasses import dataclass, field

import httpx2
import trio
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import OutboundHttp
from dify_agent.model.dify.daemon import DaemonRoute
from dify_agent.model.dify.gateway import GatewayRoute
from dify_agent.model.dify.model import DifyModel
from dify_agent.protocol.execution_context import DifyExecutionContextLayerConfig

TEXT = ModelRequestParameters()
PROMPT = [ModelRequest([UserPromptPart("hello")])]
CONTEXT = DifyExecutionContextLayerConfig(
    tenant_id="t-1", user_id="u-1", user_from="account", app_id="app-1", agent_mode="agent_app", invoke_from="web-app"
)
USAGE = {
    "prompt_tokens": 10,
    "prompt_unit_price": "0.1",
    "prompt_price_unit": "0.001",
    "prompt_price": "0.001",
    "completion_tokens": 5,
    "completion_unit_price": "0.2",
    "completion_price_unit": "0.001",
    "completion_price": "0.001",
    "total_tokens": 15,
    "total_price": "0.002",
    "currency": "USD",
    "latency": 0.5,
    "time_to_first_token": 0.1,
}


@dataclass
class Reply:
    """Pieces of a body: bytes to send, an error to break with, seconds to wait."""

    pieces: list[bytes | Exception | float] = field(default_factory=list)
    status: int = 200


class _Body(httpx2.AsyncByteStream):
    def __init__(self, pieces):
        self._pieces = iter(pieces)
        self.closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                return piece
            await trio.sleep(piece)
        raise StopAsyncIteration

    async def aclose(self):
        self.closed = True
        self._pieces = iter(())


class FakeDify(httpx2.AsyncBaseTransport):
    """One reply for each request. ``bodies`` are the answers' streams, to see whether they were closed."""

    def __init__(self, *replies):
        self._replies = deque(replies)
        self.requests: list[httpx2.Request] = []
        self.bodies: list[_Body] = []
        daemon = httpx2.AsyncClient(transport=self, headers={"X-Api-Key": "daemon-key"})
        dify_api = httpx2.AsyncClient(transport=self, headers={"X-Inner-Api-Key": "inner-key"})
        self.outbound = OutboundHttp(
            daemon=daemon,
            daemon_url="http://daemon.test:5002",
            dify_api=dify_api,
            dify_api_url="http://api.test:5001",
            models=httpx2.AsyncClient(transport=self),
            redactor=Redactor(["daemon-key", "inner-key"]),
        )

    async def handle_async_request(self, request):
        await request.aread()
        self.requests.append(request)
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            reply.request = request
            raise reply
        self.bodies.append(_Body(reply.pieces))
        return httpx2.Response(reply.status, stream=self.bodies[-1], request=request)

    def sent(self, index=-1):
        """The JSON of one request."""
        return json.loads(self.requests[index].content)

    def gateway_model(self, *, context=CONTEXT, provider="openai", settings=None):
        route = GatewayRoute(
            self.outbound, context, run_id="run-1", plugin_id="langgenius/openai", model_provider=provider
        )
        return DifyModel("gpt-x", route, settings=settings)

    def daemon_model(self, *, context=CONTEXT, credentials=None, plugin_id="langgenius/openai"):
        route = DaemonRoute(
            self.outbound,
            context,
            plugin_id=plugin_id,
            model_provider="openai",
            credentials={"k": "v"} if credentials is None else credentials,
        )
        return DifyModel("gpt-x", route)


def envelope(data, code=0, message=""):
    return {"code": code, "message": message, "data": data}


def chunk(content="", *, tool_calls=(), usage=None, finish=None, prompt=()):
    """One envelope as the gateway sends it."""
    message = {"role": "assistant", "content": content, "name": None, "tool_calls": tool_calls}
    delta = {"index": 0, "message": message, "usage": usage, "finish_reason": finish}
    return envelope({"model": "gpt-x", "prompt_messages": list(prompt), "system_fingerprint": None, "delta": delta})


def call(name="f", arguments="{}", call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def line(value, end=b"\n\n"):
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + end


def error_line(kind, message, *, code=-500, nested=0):
    text = json.dumps({"error_type": kind, "message": message, "args": None})
    for _ in range(nested):
        text = json.dumps({"error_type": "PluginInvokeError", "message": text})
    return line(envelope(None, code, text))


END = line(chunk(usage=USAGE, finish="stop"))


def answer(*chunks, end=END):
    """A reply of these chunks, each a text or an envelope."""
    lines = [line(chunk(item) if isinstance(item, str) else item) for item in chunks]
    return Reply([*lines, end] if end else lines)


async def play(model, messages=PROMPT, parameters=TEXT, settings=None):
    """All events of one request, and the response after them."""
    async with model.request_stream(messages, settings, parameters) as stream:
        events = [event async for event in stream]
        return events, stream.get()


async def parts_of(*chunks, end=END):
    """The parts of an answer."""
    _, response = await play(FakeDify(answer(*chunks, end=end)).gateway_model())
    return response.parts
