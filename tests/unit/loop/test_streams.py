"""Streams that are cut: what the adapters leave behind. A loopback server stands for the provider."""

import gc
import os
import re
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import trio
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from tests.unit.loop.scripted import ScriptedModel, Text, turn

from dify_agent.loop.port import Capture, LoopRequest
from dify_agent.loop.run import run_agent_loop

# Pydantic AI, its SDKs and their HTTP library nest generators that nobody outside can close; see agent-loop 6.
THEIRS = re.compile(
    r"Async generator '(pydantic_ai|openai|httpx2?|httpcore2?|tests\.unit\.loop\.scripted|test_streams)\b"
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(pydantic_ai|openai|httpx2?|httpcore2?|tests):ResourceWarning"
)


@dataclass
class LeanStream(StreamedResponse):
    """A flat stream as our own models have it: one iterator, no parts manager."""

    text: str = ""
    ended: bool = False
    closed: list[bool] = field(default_factory=list)
    model_name = "lean"
    provider_name = None
    provider_url = None
    timestamp = datetime(2026, 1, 1, tzinfo=UTC)

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        raise AssertionError("`__aiter__` is overridden")
        yield

    async def __aiter__(self) -> AsyncIterator[Any]:  # type: ignore[override]
        try:
            yield PartStartEvent(index=0, part=TextPart(""))
            for _ in range(100):
                await trio.lowlevel.checkpoint()
                self.text += "tok "
                yield PartDeltaEvent(index=0, delta=TextPartDelta("tok "))
            self.ended = True
        finally:
            self.closed.append(self.ended)

    def get(self) -> ModelResponse:
        state: Any = "complete" if self.ended else "incomplete"
        return ModelResponse(parts=[TextPart(self.text)], model_name="lean", state=state)


class LeanModel(ScriptedModel):
    def __init__(self) -> None:
        super().__init__()
        self.streams: list[LeanStream] = []

    @asynccontextmanager
    async def request_stream(self, messages: Any, settings: Any, parameters: Any, run_context: Any = None) -> Any:
        self.streams.append(LeanStream(parameters))
        yield self.streams[-1]


async def _tokens(messages: Any, info: Any) -> AsyncIterator[str]:
    for _ in range(100):
        await trio.lowlevel.checkpoint()
        yield "tok "


async def cut(model: Model, *, at_event: int = 4) -> Capture:
    """Run until the sink cancels at an event."""
    capture = Capture()
    seen = 0

    with trio.CancelScope() as scope:

        async def sink(event: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == at_event:
                scope.cancel()

        await run_agent_loop(LoopRequest(model=model, prompt="hi"), sink=sink, capture=capture)
    assert scope.cancelled_caught
    assert seen == at_event
    assert capture.messages[-1].state == "interrupted"
    return capture


async def warnings_of(model: Model, times: int = 5) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            await cut(model)
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
    return [str(warning.message) for warning in caught]


async def test_a_lean_stream_is_closed_without_a_warning() -> None:
    model = LeanModel()
    assert await warnings_of(model) == []
    assert [stream.closed for stream in model.streams] == [[False]] * 5


async def test_a_lean_stream_is_an_answer() -> None:
    async def sink(event: Any) -> None:
        return None

    result = await run_agent_loop(LoopRequest(model=LeanModel(), prompt="hi"), sink=sink, capture=Capture())
    assert result == "tok " * 100


@pytest.mark.parametrize(
    "model",
    [
        FunctionModel(stream_function=_tokens),
        TestModel(custom_output_text="many words of text"),
        ScriptedModel(turn(*[Text("a")] * 9)),
    ],
    ids=["function", "test", "scripted"],
)
async def test_other_streams_warn_only_about_their_own_generators(model: Model) -> None:
    assert [text for text in await warnings_of(model) if not THEIRS.match(text)] == []


CHUNK = (
    b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"gpt","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"tok "},"finish_reason":null}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Provider:
    """Sends a few chunks of a chat completion, then nothing, and notes when its client hangs up."""

    def __init__(self) -> None:
        self._left, self.left = trio.open_memory_channel[None](10)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(HEAD)
                for _ in range(9):
                    await stream.send_all(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
                while await stream.receive_some():
                    pass
            self._left.send_nowait(None)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def test_a_cut_stream_of_an_sdk_leaves_no_connection() -> None:
    pytest.importorskip("openai")
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = Provider()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, provider.serve, 0, host="127.0.0.1")
            listeners = await nursery.start(serve)
            port = listeners[0].socket.getsockname()[1]
            client = AsyncOpenAI(api_key="unused", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
            model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))
            async with client:
                await cut(model)
                await provider.left.receive()
                before = descriptors()
                for _ in range(5):
                    capture = await cut(model)
                    assert capture.messages[-1].parts
                    await provider.left.receive()
                gc.collect()
                assert descriptors() <= before
            nursery.cancel_scope.cancel()
