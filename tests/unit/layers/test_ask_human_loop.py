"""Questions to a human through the real loop, and the same tool under Pydantic AI's own ``Agent``."""

import json
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ToolReturnPart,
)
from pydantic_ai.tools import DeferredToolRequests, Tool
from tests.unit.loop.scripted import DONE, Call, Ran, ScriptedModel, Text, Turn, echo, play, turn

from agenton.compositor import LayerProvider
from dify_agent.layers.ask_human.layer import DifyAskHumanLayer
from dify_agent.protocol.schemas import DeferredToolResultsPayload

PROVIDER = LayerProvider.from_layer_type(DifyAskHumanLayer)
QUESTION = {"question": "Deploy now?"}
TOO_LONG = {"question": "q" * 1001}
RETRIES_SPENT = "Tool 'ask_human' exceeded max retries count of 1"


def make(**config: Any) -> DifyAskHumanLayer:
    layer = PROVIDER.create_layer(config)
    assert isinstance(layer, DifyAskHumanLayer)
    return layer


def asking(args: Any = None, call_id: str = "c1") -> Call:
    return Call("ask_human", QUESTION if args is None else args, call_id)


async def run(*turns: Turn, layer: DifyAskHumanLayer | None = None, **more: Any) -> Ran:
    tools = [*more.pop("tools", ()), *(layer or make()).tools]
    return await play(*turns, tools=tools, allow_deferred=True, **more)


async def resume(history: list[ModelMessage], calls: dict[str, Any], *turns: Turn, **more: Any) -> Ran:
    """A later run: history and answers as they come back from a snapshot and a request."""
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history))
    given = DeferredToolResultsPayload.model_validate_json(json.dumps({"calls": calls}))
    return await run(*(turns or (DONE,)), history=stored, prompt=None, deferred_results=given.to_pydantic_ai(), **more)


def question_of(ran: Ran, layer: DifyAskHumanLayer | None = None) -> Any:
    assert isinstance(ran.result, DeferredToolRequests), ran.error
    return (layer or make()).deferred_call(ran.result).args


def valid(ran: Ran) -> list[bool | None]:
    return [event.args_valid for event in ran.events if isinstance(event, FunctionToolCallEvent)]


def returns(ran: Ran) -> list[ToolReturnPart]:
    """Results in the last request the model was sent."""
    return [part for part in ran.model.sent[-1].messages[-1].parts if isinstance(part, ToolReturnPart)]


@pytest.mark.parametrize("args", [QUESTION, json.dumps(QUESTION)], ids=["object", "text"])
async def test_a_question_ends_the_run(args: Any) -> None:
    ran = await run(turn(asking(args)))
    assert question_of(ran)["question"] == "Deploy now?"
    assert ran.kinds == ["part_start", "final_result", "part_end", "function_tool_call", "deferred_tool_requests"]
    assert valid(ran) == [True]
    [stored] = ran.parts()
    assert stored.args == args, "the history keeps the model's call as it was"
    [offered] = ran.model.sent[0].parameters.function_tools
    assert (offered.kind, offered.sequential, offered.strict) == ("external", True, False)


async def test_a_question_that_breaks_a_limit_is_asked_again() -> None:
    ran = await run(turn(asking(TOO_LONG)), turn(asking(call_id="c2")))
    assert valid(ran) == [False, True]
    [refusal] = returns(ran)
    assert (refusal.outcome, refusal.tool_call_id) == ("retried", "c1")
    assert refusal.content == "ask_human question must be <= 1000 characters"
    assert refusal.retry is not None
    assert (refusal.retry.cause, refusal.retry.attempt, refusal.retry.max_retries) == ("model_retry", 1, 1)
    assert question_of(ran)["question"] == "Deploy now?"


@pytest.mark.parametrize("bad", [TOO_LONG, {}, '{"question": "cut'], ids=["limit", "schema", "json"])
async def test_two_bad_questions_fail_the_run(bad: Any) -> None:
    ran = await run(turn(asking(bad)), turn(asking(bad, "c2")))
    assert isinstance(ran.error, UnexpectedModelBehavior)
    assert str(ran.error).startswith(RETRIES_SPENT)
    assert "deferred_tool_requests" not in ran.kinds


@pytest.mark.parametrize("args", ["", None, {}, "{}"])
async def test_no_arguments_are_an_empty_object_without_a_question(args: Any) -> None:
    # `asking` would replace None.
    ran = await run(turn(Call("ask_human", args)), turn(asking(call_id="c2")))
    [refusal] = returns(ran)
    assert refusal.content == [{"type": "missing", "loc": ["question"], "msg": "Field required", "input": {}}]
    assert valid(ran) == [False, True]


@pytest.mark.parametrize("args", ['{"question": "cut', '{"question": "a"}{"question": "b"}', "words"])
async def test_arguments_that_are_not_json_are_asked_for_again(args: str) -> None:
    ran = await run(turn(asking(args)), turn(asking(call_id="c2")))
    [refusal] = returns(ran)
    assert isinstance(refusal.content, list)
    assert (refusal.content[0]["type"], refusal.content[0]["loc"]) == ("json_invalid", [])
    assert question_of(ran)["question"] == "Deploy now?"


async def test_the_model_gets_every_error_of_the_arguments() -> None:
    bad = {
        "question": " ",
        "extra": 1,
        "fields": [{"type": "select", "name": "1", "label": "L", "options": []}, {"type": "date"}],
    }
    ran = await run(turn(asking(bad)), turn(asking(call_id="c2")))
    [refusal] = returns(ran)
    assert isinstance(refusal.content, list)
    assert [(error["type"], error["loc"], error["msg"]) for error in refusal.content] == [
        ("value_error", ["question"], "Value error, question must not be blank"),
        ("value_error", ["fields", 0, "select", "name"], "Value error, field name must be a valid identifier"),
        (
            "union_tag_invalid",
            ["fields", 1],
            "Input tag 'date' found using 'type' does not match any of the expected tags: "
            "'paragraph', 'select', 'file', 'file-list'",
        ),
        ("extra_forbidden", ["extra"], "Extra inputs are not permitted"),
    ]


@pytest.mark.parametrize("args", ["[1]", "7", "null", "true", '{"args": {"question": "a"}}'])
async def test_arguments_of_another_shape_are_asked_for_again(args: str) -> None:
    ran = await run(turn(asking(args)), turn(asking(call_id="c2")))
    assert valid(ran) == [False, True]
    assert question_of(ran)["question"] == "Deploy now?"


async def test_two_questions_at_once_are_refused_by_the_layer() -> None:
    ran = await run(turn(asking(), asking(call_id="c2")))
    assert isinstance(ran.result, DeferredToolRequests)
    assert [call.tool_call_id for call in ran.result.calls] == ["c1", "c2"]
    with pytest.raises(ValueError, match=r"exactly one deferred call per run in this version; got 2\.$"):
        question_of(ran)


async def test_of_a_good_and_a_bad_question_the_good_one_is_asked() -> None:
    ran = await run(turn(asking(TOO_LONG), asking(call_id="c2")))
    assert question_of(ran)["question"] == "Deploy now?"
    assert valid(ran) == [False, True]
    assert [part.outcome for part in ran.parts()] == ["retried"]


async def test_beside_an_ordinary_tool_only_the_question_is_deferred() -> None:
    ran = await run(turn(asking(), Call("echo", {"x": 3}, "c2")), tools=[echo()])
    assert isinstance(ran.result, DeferredToolRequests)
    assert [call.tool_call_id for call in ran.result.calls] == ["c1"]
    [result] = ran.parts()
    assert (result.tool_call_id, result.content) == ("c2", "x=3")
    again = await resume(ran.messages, {"c1": {"status": "submitted"}}, tools=[echo()])
    assert again.result == "done"
    assert sorted((part.tool_call_id, part.content) for part in returns(again) if part.tool_call_id == "c2") == [
        ("c2", "x=3")
    ]


ANSWERS = [
    {"status": "submitted", "action": {"id": "submit", "label": "Submit"}, "values": {"note": "ok"}},
    {"status": "timeout", "values": {}},
    {"kind": "tool-approved"},
    {"return_value": 1, "content": "x", "kind": "tool-return"},
    None,
    "",
    "skip",
    [],
    {},
    0,
    False,
    [None, {"n": [1.5]}],
]


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
async def test_an_answer_reaches_the_model_unchanged(answer: Any) -> None:
    first = await run(turn(asking()))
    ran = await resume(first.messages, {"c1": answer})
    assert ran.result == "done"
    [part] = returns(ran)
    assert (part.tool_name, part.tool_call_id, part.outcome) == ("ask_human", "c1", "success")
    assert part.content == answer
    assert type(part.content) is type(answer)
    assert ran.kinds[:2] == ["function_tool_call", "function_tool_result"]
    assert valid(ran) == [None], "nothing was validated, so nothing was executed"
    assert ran.capture.usage.tool_calls == 0


async def test_an_answer_is_taken_when_the_layer_is_gone() -> None:
    first = await run(turn(asking()))
    ran = await resume(first.messages, {"c1": "yes"}, layer=make(enabled=False))
    assert ran.result == "done"
    assert ran.model.sent[0].parameters.function_tools == []


async def test_a_resumed_run_can_ask_again() -> None:
    first = await run(turn(asking()))
    second = await resume(first.messages, {"c1": "yes"}, turn(Text("One more: "), asking({"question": "Sure?"}, "c2")))
    assert question_of(second)["question"] == "Sure?"
    third = await resume(second.messages, {"c2": None})
    assert third.result == "done"


MISMATCH = "Tool call results need to be provided for all deferred tool calls. Expected: {'c1'}, got: "


@pytest.mark.parametrize(
    ("calls", "got"),
    [({}, "set()"), ({"c2": 1}, "{'c2'}"), ({"c1": 1, "c2": 2}, "{'c1', 'c2'}")],
    ids=["missing", "wrong", "extra"],
)
async def test_answers_must_cover_exactly_the_pending_question(calls: dict[str, Any], got: str) -> None:
    first = await run(turn(asking()))
    ran = await resume(first.messages, calls)
    assert isinstance(ran.error, UserError)
    assert str(ran.error) == MISMATCH + got
    assert ran.model.sent == []


async def test_answers_of_an_executed_call_are_refused() -> None:
    first = await run(turn(asking(), Call("echo", {}, "c2")), tools=[echo()])
    ran = await resume(first.messages, {"c1": 1, "c2": 2}, tools=[echo()])
    assert str(ran.error) == "Tool call 'c2' was already executed and its result cannot be overridden."


@pytest.mark.parametrize("turns", [(), (DONE,)], ids=["no history", "nothing pending"])
async def test_answers_without_a_question_are_refused(turns: tuple[Turn, ...]) -> None:
    history = (await run(*turns)).messages if turns else []
    ran = await resume(history, {"c1": 1})
    problem = "does not contain any unprocessed tool calls." if turns else "is empty."
    assert str(ran.error).startswith("Tool call results were provided, but the message history ")
    assert str(ran.error).endswith(problem)


async def test_a_prompt_is_no_answer() -> None:
    first = await run(turn(asking()))
    ran = await run(DONE, history=first.messages, prompt="never mind")
    assert str(ran.error).startswith(
        "Cannot provide a new user prompt when the message history contains unprocessed tool calls."
    )


async def test_a_disabled_tool_is_unknown_to_the_model() -> None:
    ran = await run(turn(asking()), DONE, layer=make(enabled=False))
    [refusal] = returns(ran)
    assert refusal.content == "Unknown tool name: 'ask_human'. No tools available."
    assert ran.result == "done"


def same(messages: list[ModelMessage]) -> Any:
    """Messages without the times and ids that each run makes anew."""
    ours = {"timestamp", "run_id", "conversation_id", "model_id"}

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(item) for item in value]
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key not in ours}
        return value

    return bare(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


async def _by_agent(model: ScriptedModel, tool: Tool[Any]) -> tuple[Any, str | None, list[ModelMessage]]:
    agent: Any = Agent(model, tools=[tool], output_type=[str, DeferredToolRequests])
    with capture_run_messages() as messages:
        try:
            async with agent.run_stream_events("hi") as events:
                async for event in events:
                    if event.event_kind == "agent_run_result":
                        return event.result.output, None, messages
        except UnexpectedModelBehavior as error:
            return None, str(error).split(". ")[0], messages
    raise AssertionError("the agent ended without a result")


SCRIPTS = {
    "good": (turn(asking()),),
    "text": (turn(asking(json.dumps(QUESTION))),),
    "limit": (turn(asking(TOO_LONG)), turn(asking(call_id="c2"))),
    "schema": (turn(asking({"fields": [{"type": "date"}]})), turn(asking(call_id="c2"))),
    "empty": (turn(asking("")), turn(asking(call_id="c2"))),
    "doubled": (turn(asking('{"question": "a"}{}')), turn(asking(call_id="c2"))),
    "twice": (turn(asking(TOO_LONG)), turn(asking(TOO_LONG, "c2"))),
    "two": (turn(asking(), asking(call_id="c2")),),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_tool_behaves_the_same_under_the_agent(script: str) -> None:
    turns = SCRIPTS[script]
    [tool] = make().tools

    async def by_agent() -> tuple[Any, str | None, list[ModelMessage]]:
        return await _by_agent(ScriptedModel(*turns), tool)

    async def by_loop() -> Ran:
        return await play(*turns, tools=[tool], allow_deferred=True)

    output, error, messages = anyio.run(by_agent)
    ran = anyio.run(by_loop, backend="trio")
    assert same(ran.messages) == same(messages)
    assert ran.result == output
    assert (ran.error and str(ran.error).split(". ")[0]) == error
