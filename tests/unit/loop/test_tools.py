"""Execution of tool calls: order, concurrency, barriers, errors, cancellation, threads."""

import threading
import time
from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import BinaryContent, FunctionToolResultEvent, ToolReturn
from pydantic_ai.tools import DeferredToolRequests, RunContext, Tool
from tests.unit.loop.scripted import (
    DONE,
    Call,
    Ran,
    Text,
    ask,
    echo,
    hanging,
    number_output,
    play,
    played_until,
    raising,
    turn,
)

Clock = trio.testing.MockClock


def results(ran: Ran) -> list[str]:
    """Ids of the results in the order they were emitted."""
    return [event.part.tool_call_id for event in ran.events if isinstance(event, FunctionToolResultEvent)]


def sleeper(name: str = "nap", log: list[str] | None = None, **more: Any) -> Tool[Any]:
    async def nap(seconds: float, label: str = "") -> str:
        if log is not None:
            log.append(f"+{label}")
        await trio.sleep(seconds)
        if log is not None:
            log.append(f"-{label}")
        return label

    return Tool(nap, name=name, **more)


def nap(seconds: float, label: str, name: str = "nap") -> Call:
    return Call(name, {"seconds": seconds, "label": label}, label)


async def test_results_are_emitted_as_they_finish_and_stored_in_call_order(autojump_clock: Clock) -> None:
    ran = await play(turn(nap(3, "a"), nap(1, "b"), nap(2, "c")), DONE, tools=[sleeper()])
    assert ran.kinds.index("function_tool_result") > max(
        index for index, kind in enumerate(ran.kinds) if kind == "function_tool_call"
    )
    assert results(ran) == ["b", "c", "a"]
    assert [part.tool_call_id for part in ran.parts(2)] == ["a", "b", "c"]


async def test_results_of_one_moment_are_emitted_in_call_order(autojump_clock: Clock) -> None:
    labels = [f"c{number}" for number in range(12)]
    ran = await play(turn(*[nap(1, label) for label in labels]), DONE, tools=[sleeper()])
    assert results(ran) == labels


async def test_calls_start_in_call_order_and_never_more_than_the_limit(autojump_clock: Clock) -> None:
    log: list[str] = []
    labels = [f"c{number}" for number in range(12)]
    calls = [nap(1 + number % 3, label) for number, label in enumerate(labels)]
    ran = await play(turn(*calls), DONE, tools=[sleeper(log=log)], tool_concurrency=3)
    assert [entry[1:] for entry in log if entry[0] == "+"] == labels
    running = peak = 0
    for entry in log:
        running += 1 if entry[0] == "+" else -1
        peak = max(peak, running)
    assert peak == 3
    assert [part.tool_call_id for part in ran.parts(2)] == labels


async def test_calls_start_in_call_order_when_all_have_a_slot(autojump_clock: Clock) -> None:
    log: list[str] = []
    labels = [f"c{number}" for number in range(12)]
    await play(turn(*[nap(1, label) for label in labels]), DONE, tools=[sleeper(log=log)])
    assert [entry[1:] for entry in log[:12]] == labels


async def test_a_sequential_tool_is_a_barrier(autojump_clock: Clock) -> None:
    log: list[str] = []
    calls = [nap(2, "a"), nap(1, "s", "alone"), nap(1, "b")]
    await play(turn(*calls), DONE, tools=[sleeper(log=log), sleeper("alone", log, sequential=True)])
    assert log == ["+a", "-a", "+s", "-s", "+b", "-b"]


async def test_a_refused_call_is_answered_before_its_slower_siblings(autojump_clock: Clock) -> None:
    ran = await play(turn(nap(1, "a"), Call("nap", "[", "bad"), Call("ghost", id="g")), DONE, tools=[sleeper()])
    assert results(ran) == ["bad", "g", "a"]


async def test_an_error_of_a_tool_is_raised_alone_and_cancels_the_rest(autojump_clock: Clock) -> None:
    error = KeyError("k")
    ran = await play(turn(Call("slow"), Call("bad", id="c2")), tools=[hanging(), raising(error)])
    assert ran.error is error
    assert results(ran) == []
    assert trio.current_time() < 1


async def test_of_two_errors_the_first_in_call_order_is_raised() -> None:
    first, second = ValueError("1"), ValueError("2")
    calls = [Call("one"), Call("two", id="c2")]
    ran = await play(turn(*calls), tools=[raising(first, "one"), raising(second, "two")])
    assert ran.error is first


async def test_a_result_that_was_ready_is_kept_without_an_event() -> None:
    ran = await play(turn(Call("bad"), Call("echo", id="c2")), tools=[raising(ValueError("no")), echo()])
    assert results(ran) == []
    assert [part.tool_call_id for part in ran.parts()] == ["c2"]
    assert ran.messages[-1].state == "interrupted"


async def test_a_barrier_never_starts_after_an_error() -> None:
    log: list[str] = []
    calls = [Call("bad"), nap(0, "s", "alone")]
    ran = await play(turn(*calls), tools=[raising(ValueError("no")), sleeper("alone", log, sequential=True)])
    assert isinstance(ran.error, ValueError)
    assert log == []


async def test_a_tools_own_timeout_error_is_an_ordinary_error() -> None:
    ran = await play(turn(Call("bad")), tools=[raising(TimeoutError("mine"))])
    assert isinstance(ran.error, TimeoutError)


async def test_an_error_of_the_sink_between_results_is_raised_alone(autojump_clock: Clock) -> None:
    def refuse(event: Any, ran: Ran) -> None:
        if event.event_kind == "function_tool_result":
            raise ConnectionError("reader is gone")

    ran = await play(turn(nap(1, "a"), nap(9, "b")), tools=[sleeper()], on_event=refuse)
    assert isinstance(ran.error, ConnectionError)
    assert [part.tool_call_id for part in ran.parts()] == ["a"]


async def test_a_tool_that_swallows_the_cancel_cannot_save_the_run(autojump_clock: Clock) -> None:
    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return "still here"

    ran = await played_until(1, turn(Call("stubborn")), DONE, tools=[Tool(stubborn)])
    assert ran.cancelled
    assert ran.result is None
    assert ran.parts()[0].content == "still here"
    assert ran.messages[-1].state == "interrupted"
    assert len(ran.model.sent) == 1


async def test_a_cancel_with_many_tools_leaves_as_one_error(autojump_clock: Clock) -> None:
    # `play` asserts that no group leaves the loop.
    ran = await played_until(1, turn(nap(9, "a"), nap(9, "b"), nap(9, "c")), tools=[sleeper()])
    assert isinstance(ran.error, trio.Cancelled)


async def nested() -> None:
    """Fails in its clean-up when it is cancelled, beside a task that does not."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise RuntimeError("in the clean-up")


async def test_a_sibling_that_fails_while_it_is_cancelled_does_not_hide_the_error() -> None:
    error = ValueError("first")
    ran = await play(turn(Call("nested"), Call("bad", id="c2")), tools=[Tool(nested), raising(error)])
    assert ran.error is error


async def test_a_tool_that_fails_while_it_is_cancelled_does_not_hide_the_cancel(autojump_clock: Clock) -> None:
    ran = await played_until(1, turn(Call("nested")), tools=[Tool(nested)])
    assert ran.cancelled


async def test_user_content_comes_behind_all_results() -> None:
    async def look(n: int) -> ToolReturn:
        return ToolReturn(f"r{n}", content=[f"see {n}"], metadata={"n": n})

    ran = await play(turn(Call("look", {"n": 1}, "c1"), Call("look", {"n": 2}, "c2")), DONE, tools=[Tool(look)])
    assert [part.part_kind for part in ran.parts(2)] == ["tool-return", "tool-return", "user-prompt", "user-prompt"]
    assert ran.parts(2)[0].metadata == {"n": 1}
    event = next(event for event in ran.events if isinstance(event, FunctionToolResultEvent))
    assert event.content == ["see 1"]


async def test_nested_tool_returns_are_refused() -> None:
    async def nested() -> list[Any]:
        return [ToolReturn("r")]

    ran = await play(turn(Call("nested")), tools=[Tool(nested)])
    assert isinstance(ran.error, UserError)


async def test_a_binary_result_is_passed_on() -> None:
    content = BinaryContent(b"x", media_type="image/png")

    async def shot() -> BinaryContent:
        return content

    ran = await play(turn(Call("shot")), DONE, tools=[Tool(shot)])
    assert ran.parts(2)[0].content == content


async def test_a_failed_tool_costs_no_retry() -> None:
    ran = await play(*[turn(Call("bad"))] * 3, DONE, tools=[raising(ToolFailed("no such file"), max_retries=0)])
    assert ran.result == "done"
    assert (ran.parts(2)[0].content, ran.parts(2)[0].outcome) == ("no such file", "failed")
    assert ran.capture.usage.tool_calls == 0


async def test_a_tool_past_its_timeout_is_asked_again(autojump_clock: Clock) -> None:
    ran = await play(turn(nap(9, "a")), DONE, tools=[sleeper(timeout=2)])
    part = ran.parts(2)[0]
    assert (part.content, part.outcome, part.retry.cause) == ("Timed out after 2 seconds.", "retried", "model_retry")
    assert trio.current_time() == pytest.approx(2)


async def test_a_tool_may_defer_its_call() -> None:
    tool = raising(CallDeferred({"job": 1}))
    ran = await play(turn(Call("bad"), Call("echo", id="c2")), tools=[tool, echo()], allow_deferred=True)
    assert isinstance(ran.result, DeferredToolRequests)
    assert [call.tool_call_id for call in ran.result.calls] == ["c1"]
    assert ran.result.metadata == {"c1": {"job": 1}}
    assert ran.kinds[-1] == "deferred_tool_requests"
    assert [part.tool_call_id for part in ran.parts()] == ["c2"]


async def test_a_tool_may_ask_for_an_approval() -> None:
    ran = await play(turn(Call("bad")), tools=[raising(ApprovalRequired({"why": "costs"}))], allow_deferred=True)
    assert isinstance(ran.result, DeferredToolRequests)
    assert [call.tool_call_id for call in ran.result.approvals] == ["c1"]
    assert ran.result.metadata == {"c1": {"why": "costs"}}


async def test_an_approval_the_run_may_not_end_with_is_refused_like_a_deferral() -> None:
    ran = await play(turn(Call("bad")), tools=[raising(ApprovalRequired())])
    assert isinstance(ran.error, UserError)
    assert ran.kinds[-1] == "deferred_tool_requests"
    assert ran.messages[-1].state == "interrupted"


async def test_a_tool_gets_the_context_it_asks_for() -> None:
    seen: list[Any] = []

    async def look(context: RunContext[Any], x: int) -> str:
        seen.append((context.tool_name, context.tool_call_id, context.run_step, context.retry, context.max_retries, x))
        raise ModelRetry("again")

    calls = [turn(Call("look", {"x": 1}, "c1")), turn(Call("look", {"x": 2}, "c2"))]
    await play(*calls, DONE, tools=[Tool(look, max_retries=2)])
    assert seen == [("look", "c1", 1, 0, 2, 1), ("look", "c2", 2, 1, 2, 2)]


async def test_positional_parameters_are_passed_by_position() -> None:
    async def add(first: int, /, *rest: int, factor: int = 1) -> int:
        return (first + sum(rest)) * factor

    ran = await play(turn(Call("add", {"first": 1, "rest": [2, 3], "factor": 2})), DONE, tools=[Tool(add)])
    assert ran.parts(2)[0].content == 12


async def test_a_function_after_an_accepted_output_still_runs() -> None:
    ran = await play(
        turn(Call("final_output", {"n": 1}), Call("echo", id="c2")), tools=[echo()], output=number_output()
    )
    assert ran.result == {"n": 1}
    assert ran.kinds[-4:] == [
        "output_tool_call",
        "output_tool_result",
        "function_tool_call",
        "function_tool_result",
    ]


async def test_an_external_call_beside_an_accepted_output_is_skipped() -> None:
    ran = await play(turn(Call("ask", id="c2"), Call("final_output", {"n": 1})), tools=[ask()], output=number_output())
    assert ran.result == {"n": 1}
    assert [part.content for part in ran.parts()] == [
        "Final result processed.",
        "Tool not executed - a final result was already processed.",
    ]


async def test_a_retrying_function_revokes_the_output() -> None:
    calls = turn(Call("final_output", {"n": 1}), Call("bad", id="c2"))
    tools = [raising(ModelRetry("wait"), max_retries=3)]
    ran = await play(calls, turn(Call("final_output", {"n": 2})), tools=tools, output=number_output())
    assert ran.result == {"n": 2}
    assert ran.parts(2)[0].content.startswith("Output not used as the final result")


async def test_an_unknown_tool_does_not_revoke_the_output() -> None:
    ran = await play(turn(Call("final_output", {"n": 1}), Call("ghost", id="c2")), output=number_output())
    assert ran.result == {"n": 1}


async def test_two_tools_of_one_name_are_refused() -> None:
    ran = await play(DONE, tools=[echo(), echo()])
    assert isinstance(ran.error, UserError)
    assert "'echo'" in str(ran.error)


async def test_a_tool_that_is_not_prepared_is_not_offered() -> None:
    async def hide(context: Any, definition: Any) -> None:
        return None

    ran = await play(turn(Text("x")), tools=[echo(prepare=hide)])
    assert ran.model.sent[0].parameters.function_tools == []


class Threads:
    """A sync tool whose threads wait to be released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.tool: Tool[Any] = Tool(self.work, name="work")

    def work(self) -> str:
        self.started.set()
        assert self.release.wait(10)
        return "worked"

    async def until_started(self) -> None:
        await trio.to_thread.run_sync(self.started.wait, 10)

    def end(self) -> None:
        """Let the thread go and wait until Trio has it back: it bears Trio's own name again."""
        self.release.set()
        until = time.monotonic() + 10
        while any("work" in thread.name for thread in threading.enumerate()):
            assert time.monotonic() < until
            time.sleep(0.001)


async def test_a_sync_tool_runs_in_a_thread_under_the_given_limit() -> None:
    limiter = trio.CapacityLimiter(1)
    seen: list[Any] = []

    def work() -> str:
        seen.append((threading.current_thread() is threading.main_thread(), limiter.borrowed_tokens))
        return "worked"

    ran = await play(turn(Call("work"), Call("work", id="c2")), DONE, tools=[Tool(work)], tool_threads=limiter)
    assert ran.result == "done"
    assert seen == [(False, 1), (False, 1)]


async def test_a_sync_tool_may_ask_for_a_retry_or_return_an_awaitable() -> None:
    def lazy() -> Any:
        async def later() -> str:
            return "late"

        return later()

    def refuse() -> str:
        raise ModelRetry("again")

    ran = await play(turn(Call("lazy"), Call("refuse", id="c2")), DONE, tools=[Tool(lazy), Tool(refuse)])
    assert [(part.content, part.outcome) for part in ran.parts(2)] == [("late", "success"), ("again", "retried")]


async def test_a_cancelled_sync_tool_is_abandoned_after_the_bound() -> None:
    threads = Threads()
    scope = trio.CancelScope()
    began = 0.0
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            nonlocal began
            await threads.until_started()
            began = time.monotonic()
            scope.cancel()

        nursery.start_soon(cancel)
        ran = await play(turn(Call("work")), tools=[threads.tool], scope=scope, cancel_timeout=0.1)
    took = time.monotonic() - began
    threads.end()
    assert ran.cancelled
    assert 0.1 <= took < 5
    assert ran.shape()[-1] == ("request", "interrupted", [])


async def test_a_cancelled_sync_tool_that_finishes_in_time_keeps_its_result() -> None:
    threads = Threads()
    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await threads.until_started()
            scope.cancel()
            threads.release.set()

        nursery.start_soon(cancel)
        ran = await play(turn(Call("work")), tools=[threads.tool], scope=scope, cancel_timeout=10)
    assert ran.cancelled
    assert ran.parts()[0].content == "worked"
    assert ran.messages[-1].state == "interrupted"


async def test_a_sync_tool_past_its_timeout_is_left_behind_at_once() -> None:
    threads = Threads()
    threads.tool.timeout = 0.05
    ran = await play(turn(Call("work")), DONE, tools=[threads.tool], cancel_timeout=60)
    threads.end()
    assert ran.result == "done"
    assert ran.parts(2)[0].content == "Timed out after 0.05 seconds."
