"""What the loop does and `Agent` does not: bounded concurrency, threads under a cancel, refused responses."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import AgentStreamEvent, FunctionToolResultEvent, ModelRequest
from pydantic_ai.tools import Tool

from dify_agent.errors import RunFailedError
from dify_agent.loop.port import Capture, LoopRequest, LoopResult
from dify_agent.loop.run import run_agent_loop
from tests.oracle.scenario import Turn, call, say, text, turn
from tests.oracle.scripted import ScriptedModel

CUT_STREAM = "ignore:Async generator .* was garbage collected:ResourceWarning"


class Recorder:
    """Keeps the ids of results in the order they were reported."""

    def __init__(self) -> None:
        self.results: list[str] = []

    async def __call__(self, event: AgentStreamEvent) -> None:
        if isinstance(event, FunctionToolResultEvent):
            self.results.append(event.part.tool_call_id)


class Counted:
    """A tool that counts how many of its calls run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.started: list[int] = []

    async def work(self, x: int) -> int:
        """Wait for a while; later calls for less long."""
        self.started.append(x)
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(100 - x)
        self.running -= 1
        return x


async def _run(
    turns: list[Turn],
    *functions: Callable[..., Any],
    capture: Capture | None = None,
    sink: Recorder | None = None,
    **options: Any,
) -> LoopResult:
    tools = [Tool(function) for function in functions]
    request = LoopRequest(model=ScriptedModel(turns), prompt="go", tools=tools, **options)
    return await run_agent_loop(request, sink=sink or Recorder(), capture=capture or Capture())


async def test_no_more_calls_run_than_the_limit_and_they_start_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counted, sink, capture = Counted(), Recorder(), Capture()
    calls = [call("work", {"x": x}, f"c{x}") for x in range(12)]
    assert (
        await _run([turn(*calls), say("Done")], counted.work, sink=sink, capture=capture, tool_concurrency=3) == "Done"
    )
    assert counted.most == 3
    assert counted.started == list(range(12))
    assert sorted(sink.results) == sorted(f"c{x}" for x in range(12))
    assert sink.results != [f"c{x}" for x in range(12)]
    stored = capture.messages[2]
    assert isinstance(stored, ModelRequest)
    assert [getattr(part, "content", None) for part in stored.parts] == list(range(12))


@pytest.mark.full
async def test_a_run_ends_at_the_default_limit_of_500_requests(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def again(x: int) -> int:
        await trio.lowlevel.checkpoint()
        return x

    capture = Capture()
    turns = [turn(call("again", {"x": x}, f"c{x}")) for x in range(600)]
    monkeypatch.setattr(ScriptedModel, "_record", lambda *_: None)  # it would copy the whole history each time
    with pytest.raises(UsageLimitExceeded, match="request_limit of 500"):
        await _run(turns, again, capture=capture)
    assert capture.usage.requests == 500
    assert len(capture.messages) == 1001
    assert isinstance(capture.messages[-1], ModelRequest)


async def test_a_suspended_response_fails_the_run() -> None:
    capture = Capture()
    with pytest.raises(RunFailedError) as caught:
        await _run([turn(text("not yet"), [["state", "suspended"]])], capture=capture)
    assert caught.value.reason == "incomplete_stream"
    assert capture.messages[-1].state == "interrupted"


async def test_a_cancelled_run_does_not_wait_longer_for_a_thread_than_it_may() -> None:
    """The thread is held until the run has ended, so the run cannot have waited for its end."""
    entered, release = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    limiter = trio.CapacityLimiter(1)

    def work(x: int) -> int:
        token.run_sync_soon(entered.set)
        trio.from_thread.run(release.wait, trio_token=token)
        return x

    capture, scope = Capture(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when, entered, scope)
        with scope:
            turns = [turn(call("work", {"x": 1}, "c1"))]
            await _run(turns, work, capture=capture, tool_threads=limiter, cancel_timeout=0.05)
        assert scope.cancelled_caught
        assert limiter.borrowed_tokens == 1
        release.set()
        async with limiter:  # free again only when the thread is really done
            pass
    tail = capture.messages[-1]
    assert isinstance(tail, ModelRequest)
    assert (tail.state, list(tail.parts)) == ("interrupted", [])


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@pytest.mark.filterwarnings(CUT_STREAM)
async def test_a_tool_that_takes_no_wait_leaves_room_for_others(autojump_clock: trio.testing.MockClock) -> None:
    """A model that never waits still lets other tasks run: each long stream gives way."""
    seen: list[int] = []
    done = trio.Event()

    async def other() -> None:
        while not done.is_set():
            seen.append(1)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await _run([turn(text(*("x" for _ in range(200))))])
        done.set()
    assert len(seen) > 10
