"""What bounds one response: its calls, what is said about them, and what it may claim to have cost."""

import re
from decimal import Decimal
from pathlib import Path

import pytest
import trio
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RequestUsage, RunUsage
from tests.unit.loop.scripted import CUT_STREAM, DONE, Call, asked, echo, external, play, turn

from dify_agent.errors import RunFailedError
from dify_agent.loop.compaction import MAX_SUMMARIES
from dify_agent.loop.limits import MAX_CALLS, add_usage, storable_usage
from dify_agent.loop.texts import MAX_NAMES_CHARACTERS, unknown_tool
from dify_agent.protocol.usage import MAX_TOKENS

PAGES = Path(__file__).parents[3] / "docs"


def calls(number, name="echo"):
    return turn(*(Call(name, "{}", f"c{n}") for n in range(number)))


def test_the_pages_have_the_bounds():
    page = (PAGES / "agent-loop.md").read_text()
    assert set(re.findall(r"more than ([\d,]+) tool calls", page)) == {f"{MAX_CALLS:,}"}
    assert re.findall(r"names up to ([\d,]+) characters", page) == [f"{MAX_NAMES_CHARACTERS:,}"]
    assert re.findall(r"at most (\d+) summaries", page) == [str(MAX_SUMMARIES)]
    reasons = (PAGES / "protocol.md").read_text()
    assert f"more than {MAX_CALLS:,} tool calls" in reasons
    assert f"more than {MAX_SUMMARIES} requests" in reasons
    assert f"would take more than {MAX_SUMMARIES} fails" in (PAGES / "dify.md").read_text()


@CUT_STREAM
async def test_a_response_of_too_many_calls_is_not_read_on():
    ran = await play(calls(MAX_CALLS + 500), tools=[echo()])
    assert isinstance(ran.error, RunFailedError)
    assert ran.error.reason == "too_many_tool_calls"
    assert set(ran.kinds) == {"part_start", "part_end"}
    assert ran.kinds.count("part_start") == MAX_CALLS
    assert ran.messages[-1].state == "interrupted"
    # The session goes on: the calls are not waited for.
    after = await play(DONE, history=ran.messages)
    assert after.result == "done"


async def test_too_many_calls_of_a_history_are_not_executed():
    history = [asked(), ModelResponse([ToolCallPart("echo", {}, f"c{n}") for n in range(MAX_CALLS + 1)])]
    ran = await play(DONE, history=history, prompt=None, tools=[echo()])
    assert isinstance(ran.error, RunFailedError)
    assert ran.error.reason == "too_many_tool_calls"
    assert ran.events == []
    assert ran.shape()[-1] == ("request", "interrupted", [])


@pytest.mark.parametrize("name", ["echo", "ghost", "ask"])
async def test_the_most_calls_give_way(name):
    longest = between = 0
    done = False

    async def take_turns():
        nonlocal longest, between
        while not done:
            longest, between = max(longest, between), 0
            await trio.lowlevel.checkpoint()

    def count(event, ran):
        nonlocal between
        between += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        ran = await play(
            calls(MAX_CALLS, name), DONE, tools=[echo(), external(echo_as("ask"))], on_event=count, allow_deferred=True
        )
        done = True
    assert ran.error is None
    assert len(ran.events) >= 3 * MAX_CALLS
    # Trio may let this task's turn come before or after the loop's.
    assert longest <= 2 * 16
    if name != "ask":
        assert [part.tool_call_id for part in ran.parts(-2)] == [f"c{n}" for n in range(MAX_CALLS)]


def echo_as(name):
    tool = echo()
    tool.name = name
    return tool


def test_names_in_a_text_are_cut():
    few = [f"tool_{n:02}" for n in range(60)]
    assert unknown_tool("x", few).endswith(", 'tool_59'")
    many = [f"tool_{n:04}" + "x" * 50 for n in range(5000)]
    text = unknown_tool("x", many)
    assert len(text) < MAX_NAMES_CHARACTERS + 100
    assert text.endswith("', …")
    assert text.startswith(f"Unknown tool name: 'x'. Available tools: {many[0]!r}, ")
    assert len(unknown_tool("n" * 500_000, few)) < 2 * MAX_NAMES_CHARACTERS
    assert unknown_tool("n" * MAX_NAMES_CHARACTERS, []) == (
        f"Unknown tool name: {'n' * MAX_NAMES_CHARACTERS!r}. No tools available."
    )


async def test_results_of_unknown_calls_are_small():
    ran = await play(calls(100, "ghost"), DONE, tools=[echo_as(f"tool_{n:03}{'x' * 50}") for n in range(300)])
    contents = [part.content for part in ran.parts(-2) if isinstance(part, ToolReturnPart)]
    assert len(contents) == 100
    assert sum(map(len, contents)) < 100 * (MAX_NAMES_CHARACTERS + 100)


def test_usage_of_a_response_is_one_that_can_be_stored():
    sane = RequestUsage(input_tokens=5, output_tokens=MAX_TOKENS, details={"reasoning": 3}, cost=Decimal(1))
    assert storable_usage(sane) is sane
    wild = RequestUsage(input_tokens=10**4299, output_tokens=-3, details={"a": 10**4299, "b": 2, "c": -1})
    assert storable_usage(wild) == RequestUsage(
        input_tokens=MAX_TOKENS, output_tokens=0, details={"a": MAX_TOKENS, "b": 2, "c": 0}
    )


def test_costs_that_cannot_be_summed_are_left_out():
    total = RunUsage()
    for _ in range(2):
        add_usage(total, RequestUsage(input_tokens=1, cost=Decimal("9e999999")))
    assert (total.input_tokens, total.cost) == (2, None)


async def test_usages_of_any_size_leave_a_response_that_can_be_stored():
    ran = await play(turn(DONE.pieces[0], type(DONE.pieces[1])(10**4299, 10**4299)))
    response = ran.messages[-1]
    assert response.parts == [TextPart("done")]
    assert (response.usage.input_tokens, ran.capture.usage.total_tokens) == (MAX_TOKENS, 2 * MAX_TOKENS)
