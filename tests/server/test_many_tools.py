"""Three hundred tool calls in one response: bounded concurrency, no leak, the right terminal."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.server.bodies import run_of
from tests.server.clients import Api, kind_of
from tests.server.harness import Server, StoreServer, serving, settled

CALLS = 300
CONCURRENCY = 16
THREADS = 8


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    settings = {"tool_concurrency": CONCURRENCY, "tool_threads": THREADS, "cancel_timeout_seconds": 2}
    with serving(store.url, **settings) as started:
        yield started


def calls(*names: str) -> dict[str, Any]:
    """One turn with three hundred calls, the names taking turns."""
    every = [{"name": names[n % len(names)], "args": {}, "id": f"call-{n}"} for n in range(CALLS)]
    return {"tool_calls": every}


def results(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["data"]["part"] for event in events if kind_of(event) == "function_tool_result"]


@pytest.mark.slow
async def test_all_calls_are_answered_each_once_and_in_batches(api: Api) -> None:
    began = trio.current_time()
    events = await api.run(run_of(calls("a", "b"), {"text": "done"}, tools=(_tool("a"), _tool("b"))))
    took = trio.current_time() - began
    assert events[-1]["type"] == "run_succeeded"
    assert sorted(part["tool_call_id"] for part in results(events)) == sorted(f"call-{n}" for n in range(CALLS))
    assert took >= CALLS / CONCURRENCY * 0.05, "no more than the bound at a time: each takes 50 ms"


def _tool(name: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "result": name, "delay_ms": 50, **config}


@pytest.mark.slow
async def test_threads_are_bounded_for_the_process(server: Server, api: Api) -> None:
    events = await api.run(run_of(calls("t"), {"text": "done"}, tools=(_tool("t", thread=True, delay_ms=20),)))
    assert events[-1]["type"] == "run_succeeded"
    assert len(results(events)) == CALLS
    threads = await settled(lambda: len(os.listdir(f"/proc/{server.pid}/task")))
    assert threads <= THREADS + 8, "workers, and the few threads the process has anyway"


@pytest.mark.slow
async def test_one_that_fails_ends_the_run_and_its_siblings(api: Api) -> None:
    broken = {"name": "broken", "error": "no luck", "delay_ms": 30}
    events = await api.run(run_of(calls("hang", "broken"), tools=({"name": "hang", "hang": True}, broken)))
    assert events[-1]["type"] == "run_failed"
    assert events[-1]["data"]["error"] == "no luck"


@pytest.mark.slow
async def test_a_cancel_ends_all_that_hang_wait_swallow_or_run_in_threads(server: Server, api: Api) -> None:
    tools = (
        {"name": "hang", "hang": True},
        {"name": "swallow", "hang": True, "swallow_cancel_ms": 300},
        {"name": "thread", "thread": True, "delay_ms": 300, "result": 1},
    )
    before = await settled(lambda: len(os.listdir(f"/proc/{server.pid}/fd")))
    run_id = await api.create(run_of(calls("hang", "swallow", "thread"), tools=tools))
    await api.events_until(run_id, "function_tool_call")
    with trio.fail_after(5):
        await api.cancel(run_id, reason="enough")
        events = await api.finished(run_id)
    assert events[-1]["type"] == "run_cancelled"
    assert events[-1]["data"]["session_snapshot"] is not None
    assert await settled(lambda: len(os.listdir(f"/proc/{server.pid}/fd"))) <= before + 2
    assert (await api.run(run_of({"text": "still here"})))[-1]["type"] == "run_succeeded"
