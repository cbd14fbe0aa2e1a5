"""Dify's services in this process: what they were asked, and what they are to answer."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import httpx2
import trio

from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton_collections.transformers.pydantic_ai import PYDANTIC_AI_TRANSFORMERS
from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import OutboundHttp
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer

DAEMON_URL = "http://daemon.test"
API_URL = "http://api.test"
DAEMON_KEY = "key-of-the-daemon"
API_KEY = "key-of-the-api"
CONTEXT = {
    "tenant_id": "t-1",
    "user_id": "u-1",
    "user_from": "account",
    "app_id": "app-1",
    "agent_mode": "agent_app",
    "invoke_from": "web-app",
}

Answer = httpx2.Response | Exception | Callable[[httpx2.Request], Awaitable[httpx2.Response]]


@dataclass
class Service:
    """Gives its answers one after the other, the last again and again."""

    answers: list[Answer]
    requests: list[httpx2.Request] = field(default_factory=list)

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            answer.request = request
            raise answer
        if isinstance(answer, httpx2.Response):
            return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)
        return await answer(request)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    def client(self, key_header: str, key: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.handle), headers={key_header: key})


def services(*, daemon: list[Answer] | None = None, api: list[Answer] | None = None):
    """The two services and the outbound clients that reach them."""
    unasked: list[Answer] = [AssertionError("not to be asked")]
    plugin_daemon, dify_api = Service(daemon or unasked), Service(api or unasked)
    outbound = OutboundHttp(
        daemon=plugin_daemon.client("X-Api-Key", DAEMON_KEY),
        daemon_url=DAEMON_URL,
        dify_api=dify_api.client("X-Inner-Api-Key", API_KEY),
        dify_api_url=API_URL,
        models=httpx2.AsyncClient(transport=httpx2.MockTransport(Service(unasked).handle)),
        redactor=Redactor([DAEMON_KEY, API_KEY]),
    )
    return plugin_daemon, dify_api, outbound


def reply(value: Any, status: int = 200) -> httpx2.Response:
    """A JSON answer; bytes and text go out as they are."""
    if isinstance(value, bytes | str):
        return httpx2.Response(status, content=value)
    return httpx2.Response(status, json=value)


def items(*messages: Any, code: int = 0, message: str = "success") -> httpx2.Response:
    """A stream of tool messages as the plugin daemon frames it."""
    lines = [json.dumps({"code": code, "message": message, "data": item}, ensure_ascii=False) for item in messages]
    return httpx2.Response(200, content="".join(f"data: {line}\n\n" for line in lines).encode())


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "message": {"text": text}, "meta": None}


@asynccontextmanager
async def entered(
    layer_provider: LayerProvider[Any], config: Any, *, context: Any = None, shell: Any = None, snapshot: Any = None
) -> AsyncIterator[Any]:
    """A run with the layer and its execution context, suspended at the end."""
    nodes = [LayerNode("execution_context", DifyExecutionContextLayer)]
    deps = {"execution_context": "execution_context"}
    if shell is not None:
        nodes.append(LayerNode("shell", shell))
        deps["shell"] = "shell"
    nodes.append(LayerNode("it", layer_provider, deps=deps))
    configs = {"execution_context": {**CONTEXT, **(context or {})}, "it": config}
    compositor = Compositor(nodes, **PYDANTIC_AI_TRANSFORMERS)
    async with compositor.enter(configs=configs, session_snapshot=snapshot) as run:
        run.suspend_on_exit()
        yield run


class SocketServer:
    """HTTP on a real socket. The first request is left half answered, the others get ``content``."""

    def __init__(self, half: bytes, content: bytes) -> None:
        self._half, self._content = half, content
        self.asked, self.dropped = trio.Event(), trio.Event()
        self.requests = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1")
            [listener] = await nursery.start(serve)
            yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.cancel_scope.cancel(reason="the test is over")

    async def _serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        async with stream:
            while not isinstance(event := http.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.ConnectionClosed):
                    return
            self.requests += 1
            await self._answer(http, stream)

    async def _answer(self, http: h11.Connection, stream: trio.SocketStream) -> None:
        first = self.requests == 1
        head = http.send(h11.Response(status_code=200, headers=[("connection", "close")]))
        await stream.send_all(head + http.send(h11.Data(data=self._half if first else self._content)))
        if not first:
            await stream.send_all(http.send(h11.EndOfMessage()))
            return
        self.asked.set()
        try:
            gone = await stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            gone = True
        assert gone
        self.dropped.set()
