"""Validation of tool arguments, and the retries it costs (specification, agent-loop 5)."""

from typing import Any

import pytest
from pydantic_ai.exceptions import CallDeferred, ModelRetry, ToolFailed, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import FunctionToolCallEvent
from pydantic_ai.tools import RunContext, Tool
from tests.unit.loop.scripted import (
    DONE,
    Call,
    Ran,
    Text,
    Thinking,
    ask,
    echo,
    number_output,
    play,
    raising,
    turn,
)

from agenton.json_values import is_exact
from dify_agent.protocol.json_values import MAX_VALUE_DEPTH

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}


def from_schema(schema: dict[str, Any] = SCHEMA, **more: Any) -> Tool[Any]:
    async def take(**args: Any) -> Any:
        return args

    return Tool.from_schema(take, "take", "Takes anything.", schema, **more)


def valid(ran: Ran) -> list[bool | None]:
    return [event.args_valid for event in ran.events if isinstance(event, FunctionToolCallEvent)]


@pytest.mark.parametrize("args", ["", None, {}, "{}"])
@pytest.mark.parametrize("tool", [echo(), from_schema({"type": "object"})], ids=["function", "schema"])
async def test_no_arguments_are_an_empty_object(args: Any, tool: Tool[Any]) -> None:
    ran = await play(turn(Call(tool.name, args)), DONE, tools=[tool])
    assert valid(ran) == [True]


@pytest.mark.parametrize("args", ['{"x": 1', '{"x": 1}{"x": 1}', "nothing"])
@pytest.mark.parametrize("tool", [echo(), from_schema()], ids=["function", "schema"])
async def test_arguments_that_are_not_json_are_retried(args: str, tool: Tool[Any]) -> None:
    ran = await play(turn(Call(tool.name, args)), DONE, tools=[tool])
    assert valid(ran) == [False]
    part = ran.parts(2)[0]
    assert (part.outcome, part.retry.cause, part.retry.attempt) == ("retried", "validation_error", 1)
    assert (part.content[0]["type"], part.content[0]["loc"]) == ("json_invalid", [])


@pytest.mark.parametrize("args", ["[1]", "7", '"text"', "true"])
async def test_a_tool_from_a_schema_takes_only_objects(args: str) -> None:
    ran = await play(turn(Call("take", args)), DONE, tools=[from_schema()])
    assert valid(ran) == [False]
    assert ran.parts(2)[0].content[0]["type"] == "dict_type"
    assert ran.result == "done"


async def test_a_tool_from_a_schema_is_checked_against_it() -> None:
    ran = await play(turn(Call("take", {"x": 0, "tags": [1], "extra {}": 2})), DONE, tools=[from_schema()])
    errors = ran.parts(2)[0].content
    assert {error["type"] for error in errors} == {"json_schema"}
    assert [error["loc"] for error in errors] == [[], ["tags", 0], ["x"]]
    assert "extra {}" in errors[0]["msg"]
    good = await play(turn(Call("take", {"x": 3})), DONE, tools=[from_schema()])
    assert good.parts(2)[0].content == {"x": 3}


@pytest.mark.parametrize(
    "schema",
    [{"type": "no such type"}, {"$ref": "http://127.0.0.1:9/schema.json"}, {"$ref": "#/$defs/missing"}],
    ids=["broken", "remote", "dangling"],
)
async def test_a_schema_that_cannot_be_used_checks_nothing(schema: dict[str, Any]) -> None:
    ran = await play(turn(Call("take", {"x": "any"})), DONE, tools=[from_schema(schema)])
    assert ran.parts(2)[0].content == {"x": "any"}


async def test_many_errors_of_one_call_are_bounded() -> None:
    ran = await play(turn(Call("take", {"x": 1, "tags": [1] * 1000})), DONE, tools=[from_schema()])
    assert len(ran.parts(2)[0].content) == 20


NODE = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/node"}] * 2}}}
REFERRING = {**NODE, "$defs": {"node": NODE}}


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        (REFERRING, '{"a":' * 40 + "1" + "}" * 40),
        (
            {"type": "object", "properties": {"a": {"items": {"allOf": [{"type": "string"}] * 1000}}}},
            {"a": [7] * 5000},
        ),
    ],
    ids=["errors that double at each level", "millions of errors"],
)
async def test_a_schema_and_arguments_that_would_take_minutes_to_list(schema: dict[str, Any], args: Any) -> None:
    """Measured with the listing: 3 s at seventeen levels, and twice that at each further one."""
    ran = await play(turn(Call("take", args)), DONE, tools=[from_schema(schema)])
    assert len(ran.parts(2)[0].content) == 1


@pytest.mark.parametrize("name", ["with space", "a" * 65, "naïve", "a.b", ""])
async def test_a_name_that_providers_refuse_is_not_offered(name: str) -> None:
    async def take() -> str:
        return "ok"

    tool = Tool(take)
    tool.name = name
    ran = await play(DONE, tools=[tool])
    assert isinstance(ran.error, UserError)
    assert "cannot be offered to a model: a name has 1 to 64" in str(ran.error)


async def test_the_whole_input_is_repeated_once() -> None:
    async def pair(a: int, b: int) -> str:
        return "ok"

    ran = await play(turn(Call("pair", "{}")), DONE, tools=[Tool(pair)])
    first, second = ran.parts(2)[0].content
    assert (first["type"], second["type"]) == ("missing", "missing")
    assert first["input"] == {}
    assert "input" not in second


async def test_the_tools_own_check_may_refuse() -> None:
    def refuse(context: RunContext[Any], x: int = 0) -> None:
        if x == 1:
            raise ModelRetry("not 1")
        if x == 2:
            raise ToolFailed("never 2")

    async def refuse_later(context: RunContext[Any], x: int = 0) -> None:
        refuse(context, x)

    for check in (refuse, refuse_later):
        calls = turn(Call("echo", {"x": 1}, "a"), Call("echo", {"x": 2}, "b"), Call("echo", {"x": 3}, "c"))
        ran = await play(calls, DONE, tools=[echo(args_validator=check)])
        assert valid(ran) == [False, False, True]
        assert [part.outcome for part in ran.parts(2)] == ["retried", "failed", "success"]


async def test_the_tools_own_check_may_defer() -> None:
    def defer(context: RunContext[Any], x: int = 0) -> None:
        raise CallDeferred({"x": x})

    ran = await play(turn(Call("echo", {"x": 1})), tools=[echo(args_validator=defer)], allow_deferred=True)
    assert valid(ran) == [True]
    assert ran.result.metadata == {"c1": {"x": 1}}  # type: ignore[union-attr]
    assert ran.capture.usage.tool_calls == 0


async def test_another_error_of_a_check_ends_the_run() -> None:
    def broken(context: RunContext[Any], x: int = 0) -> None:
        raise UserError("broken check")

    ran = await play(turn(Call("echo")), tools=[echo(args_validator=broken)])
    assert str(ran.error) == "broken check"
    assert ran.messages[-1].state == "interrupted"


async def test_an_invalid_external_call_is_retried_and_does_not_defer() -> None:
    ran = await play(turn(Call("ask", "[")), DONE, tools=[ask()], allow_deferred=True)
    assert ran.result == "done"
    assert "deferred_tool_requests" not in ran.kinds
    twice = await play(turn(Call("ask", "[")), tools=[ask()], allow_deferred=True)
    assert isinstance(twice.error, UnexpectedModelBehavior)
    assert twice.kinds[-1] == "function_tool_call"


async def test_an_unknown_tool_is_told_the_known_names() -> None:
    ran = await play(turn(Call("ghost")), DONE, tools=[echo(), ask()], output=None)
    part = ran.parts(2)[0]
    assert part.content == "Unknown tool name: 'ghost'. Available tools: 'ask', 'echo'"
    assert part.retry.cause == "unknown_tool"
    alone = await play(turn(Call("ghost")), DONE)
    assert alone.parts(2)[0].content == "Unknown tool name: 'ghost'. No tools available."


BAD = Call("echo", '{"x": "?"}')
GOOD = Call("echo", id="ok")


async def test_two_bad_calls_of_one_response_cost_one_retry() -> None:
    ran = await play(turn(BAD, Call("echo", "[", "c2")), turn(GOOD), DONE, tools=[echo()])
    assert ran.result == "done"


async def test_a_success_resets_the_counter() -> None:
    ran = await play(turn(BAD), turn(GOOD), turn(BAD), turn(GOOD), DONE, tools=[echo()])
    assert ran.result == "done"


async def test_a_success_beside_a_failure_does_not() -> None:
    ran = await play(turn(BAD, GOOD), turn(BAD), tools=[echo()])
    assert str(ran.error).startswith("Tool 'echo' exceeded max retries count of 1.")
    assert valid(ran) == [False, True, False]


async def test_a_success_of_another_tool_does_not() -> None:
    ran = await play(turn(BAD), turn(Call("other")), turn(BAD), tools=[echo(), Tool(other)])
    assert isinstance(ran.error, UnexpectedModelBehavior)


async def other() -> str:
    return "ok"


async def test_retries_spent_in_execution_give_no_event() -> None:
    ran = await play(turn(Call("bad")), tools=[raising(ModelRetry("again"), max_retries=0)])
    assert isinstance(ran.error, UnexpectedModelBehavior)
    assert isinstance(ran.error.__cause__, ModelRetry)
    assert ran.kinds[-1] == "function_tool_call"


@pytest.mark.parametrize("budget", [0, 1, 3])
async def test_a_tool_may_set_its_budget(budget: int) -> None:
    ran = await play(turn(BAD), tools=[echo(max_retries=budget)])
    assert str(ran.error).startswith(f"Tool 'echo' exceeded max retries count of {budget}.")
    assert len(ran.model.sent) == budget + 1


OUTPUT = Call("final_output", {"n": 1})
NO_OUTPUT = Call("final_output", {"n": "?"})


async def test_text_and_then_an_invalid_output_leave_one_attempt() -> None:
    ran = await play(turn(Text("so")), turn(NO_OUTPUT), turn(OUTPUT), output=number_output())
    assert ran.result == {"n": 1}
    assert ran.parts(2)[0].content == "Please include your response in a tool call."


async def test_an_invalid_output_and_then_text_leave_none() -> None:
    ran = await play(turn(NO_OUTPUT), turn(Text("so")), output=number_output())
    assert str(ran.error) == "Exceeded maximum output retries (1)"


async def test_a_second_output_is_not_used() -> None:
    ran = await play(turn(OUTPUT, Call("final_output", {"n": 2}, "c2")), output=number_output())
    assert ran.result == {"n": 1}
    assert ran.parts()[1].content == "Output tool not used - a final result was already processed."


async def test_feedback_names_what_may_be_returned() -> None:
    with_tools = await play(turn(Thinking("hm")), DONE, tools=[echo()])
    assert with_tools.parts(2)[0].content == "Please return text or call a tool."
    without = await play(turn(Text("")), DONE)
    assert without.parts(2)[0].content == "Please return text."


async def test_all_text_parts_are_the_answer() -> None:
    assert (await play(turn(Text("one "), Thinking("hm", 1), Text("two", 2)))).result == "one two"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["x"] = [value]
    return value


UNFIT: dict[str, dict[str, Any]] = {
    "half a surrogate pair": {"x": "\ud800"},
    "half a surrogate pair in a key": {"\ud800": 1, "x": "text"},
    "deep": {"x": nested(300)},
    "deeper than the stack": {"x": nested(5000)},
    "long integer": {"y": "text", "x": 10**5000},
    "circle": circular(),
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("kind", ["any schema", "schema", "function"])
async def test_arguments_without_a_json_form_are_retried(name: str, kind: str) -> None:
    async def take(x: list[int], y: int) -> str:
        return "ok"

    tool = {"any schema": from_schema({"type": "object"}), "schema": from_schema(), "function": Tool(take)}[kind]
    ran = await play(turn(Call("take", UNFIT[name])), DONE, tools=[tool])
    assert (ran.error, valid(ran)) == (None, [False])
    details = ran.parts(2)[0].content
    assert is_exact(details, MAX_VALUE_DEPTH)


async def test_a_tool_from_a_schema_takes_what_python_reads_as_numbers() -> None:
    ran = await play(turn(Call("take", '{"x": [NaN, Infinity]}')), DONE, tools=[from_schema({"type": "object"})])
    assert (ran.error, valid(ran)) == (None, [True])


async def test_arguments_that_would_take_long_to_check_are_retried() -> None:
    choices = [{"minimum": 10 + number} for number in range(1000)]
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": choices}}}}
    ran = await play(turn(Call("take", {"a": [5] * 20_000})), DONE, tools=[from_schema(schema)])
    [detail] = ran.parts(2)[0].content
    assert detail["msg"].startswith("the arguments cannot be checked: it is too large")
    assert detail["input"] == "<too large>"


async def test_an_error_that_would_take_long_to_find_is_not_told() -> None:
    node = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    schema = {"type": "object", "anyOf": [{**node, "required": ["x"]}, {**node, "required": ["y"]}]}
    ran = await play(turn(Call("take", nested(40))), DONE, tools=[from_schema(schema)])
    [detail] = ran.parts(2)[0].content
    assert detail["msg"] == "too large to say where it does not fit"
