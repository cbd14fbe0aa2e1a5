"""One model request: what is sent, its timeouts, its end, and its place among other runs."""

from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ModelRequestTimeout, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from tests.unit.loop.scripted import (
    CUT_STREAM,
    DONE,
    Call,
    Ran,
    ScriptedModel,
    Text,
    Usage,
    Wait,
    ask,
    asked,
    echo,
    number_output,
    play,
    played_until,
    turn,
)

from dify_agent.errors import RunFailedError
from dify_agent.loop import history

Clock = trio.testing.MockClock


async def test_the_parameters_of_a_text_run() -> None:
    ran = await play(turn(Call("echo")), DONE, tools=[echo(), ask()], instructions=["One.", "Two."])
    first, second = ran.model.sent
    parameters = first.parameters
    assert first.parameters is second.parameters
    assert [(tool.name, tool.kind) for tool in parameters.function_tools] == [("echo", "function"), ("ask", "external")]
    assert (parameters.output_tools, parameters.output_mode, parameters.allow_text_output) == ([], "text", True)
    assert [part.content for part in parameters.instruction_parts or []] == ["One.", "Two."]
    assert first.settings is None


async def test_the_parameters_of_a_run_with_output() -> None:
    ran = await play(turn(Call("final_output", {"n": 1})), output=number_output())
    parameters = ran.model.sent[0].parameters
    (tool,) = parameters.output_tools
    assert (tool.name, tool.kind, tool.strict) == ("final_output", "output", None)
    assert tool.description == "The final response which ends this conversation"
    assert tool.parameters_json_schema["title"] == "final_output"
    assert (parameters.output_mode, parameters.allow_text_output) == ("tool", False)


async def test_settings_of_the_run_win_over_the_models() -> None:
    model = ScriptedModel(DONE, settings={"temperature": 0.5, "max_tokens": 5})
    await play(model=model, model_settings={"max_tokens": 9})
    assert model.sent[0].settings == {"temperature": 0.5, "max_tokens": 9}


async def test_feedback_is_prepared_for_the_provider() -> None:
    ran = await play(turn(), DONE)
    sent = ran.model.sent[1].messages
    assert all(part.part_kind != "retry-feedback" for message in sent for part in message.parts)
    assert ran.parts(2)[0].part_kind == "retry-feedback"


async def test_calls_without_results_are_closed_on_the_wire_only() -> None:
    stored: list[ModelMessage] = [
        asked(),
        ModelResponse(parts=[TextPart("a")]),
        ModelRequest(parts=[UserPromptPart("b")], state="interrupted"),
    ]
    ran = await play(DONE, history=stored)
    assert len(ran.model.sent[0].messages) == 3
    assert len(ran.messages) == 5


@pytest.mark.parametrize("hung", [turn(opening=Wait()), turn(Text("a"), Wait())], ids=["opening", "mid-stream"])
async def test_the_request_timeout_ends_the_run(hung: Any, autojump_clock: Clock) -> None:
    ran = await play(hung, model_settings={"request_timeout": 3})
    assert isinstance(ran.error, ModelRequestTimeout)
    assert (ran.error.timeout, ran.error.setting) == (3, "request_timeout")
    assert trio.current_time() == pytest.approx(3)
    assert ran.messages[-1].state == "interrupted"
    assert not ran.cancelled


async def test_the_first_event_timeout_ends_the_run(autojump_clock: Clock) -> None:
    ran = await play(turn(Wait(5), Text("a")), model_settings={"first_event_timeout": 2, "request_timeout": 9})
    assert isinstance(ran.error, ModelRequestTimeout)
    assert (ran.error.timeout, ran.error.setting) == (2, "first_event_timeout")
    assert trio.current_time() == pytest.approx(2)


async def test_the_first_event_timeout_is_over_with_the_first_event(autojump_clock: Clock) -> None:
    ran = await play(turn(Text("a"), Wait(5), Text("b")), model_settings={"first_event_timeout": 2})
    assert ran.result == "ab"


async def test_a_slow_sink_is_not_cancelled_but_its_time_counts(autojump_clock: Clock) -> None:
    async def linger(event: Any, ran: Ran) -> None:
        if len(ran.events) == 1:
            await trio.sleep(4)
            ran.events.append(event)

    ran = await play(turn(Text("a"), Wait(1), Text("b")), on_event=linger, model_settings={"request_timeout": 3})
    assert len(ran.events) >= 2
    assert isinstance(ran.error, ModelRequestTimeout)


async def test_a_deadline_of_the_caller_is_not_a_timeout_of_the_request(autojump_clock: Clock) -> None:
    ran = await played_until(1, turn(Wait()), model_settings={"request_timeout": 3})
    assert ran.cancelled


@pytest.mark.parametrize("state", ["incomplete", "suspended"])
async def test_a_stream_that_says_it_is_not_whole_fails_the_run(state: str) -> None:
    ran = await play(turn(Text("par"), Usage(3, 1), state=state))
    assert isinstance(ran.error, RunFailedError)
    assert ran.error.reason == "incomplete_stream"
    assert ran.messages[-1].state == "interrupted"
    assert ran.parts() == [TextPart("par")]
    assert (ran.capture.usage.requests, ran.capture.usage.input_tokens) == (1, 3)


@pytest.mark.parametrize("system", ["anthropic", "google", "google-gla", "google-vertex", "google-cloud"])
async def test_no_finish_reason_is_a_cut_where_the_provider_always_gives_one(system: str) -> None:
    ran = await play(model=ScriptedModel(turn(Text("par"), finish=None), system=system))
    assert isinstance(ran.error, RunFailedError)
    assert (await play(model=ScriptedModel(DONE, system=system))).result == "done"


async def test_no_finish_reason_is_normal_elsewhere() -> None:
    assert (await play(turn(Text("whole"), finish=None))).result == "whole"


async def test_a_stream_that_never_blocks_lets_others_run() -> None:
    turns_of_others = 0

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        before = turns_of_others
        await play(turn(*[Text("tok ")] * 320))
        during = turns_of_others - before
        nursery.cancel_scope.cancel()
    assert during >= 15


@CUT_STREAM
async def test_a_deadline_is_noticed_in_a_stream_that_never_blocks() -> None:
    ran = await played_until(0.05, turn(*[Text("tok ")] * 200_000))
    assert ran.cancelled
    assert ran.messages[-1].state == "interrupted"


async def test_a_long_history_is_prepared_beside_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    main = trio.lowlevel.current_task()
    prepared_in: list[bool] = []

    class Watched(ScriptedModel):
        def prepare_messages(self, messages: Any, model_request_parameters: Any = None) -> Any:
            try:
                prepared_in.append(trio.lowlevel.current_task() is main)
            except RuntimeError:
                prepared_in.append(False)
            return super().prepare_messages(messages, model_request_parameters)

    stored: list[ModelMessage] = []
    for number in range(history.LONG_HISTORY // 2):
        stored += [asked(str(number)), ModelResponse(parts=[TextPart("a")])]
    ran = await play(model=Watched(DONE), history=stored)
    assert ran.result == "done"
    assert len(ran.model.sent[0].messages) == len(stored) + 1
    await play(model=Watched(DONE), history=stored[:10])
    assert prepared_in == [False, True]


@pytest.mark.slow
async def test_the_limit_of_500_requests() -> None:
    ran = await play(turn(Call("echo")), tools=[echo()])
    assert isinstance(ran.error, UsageLimitExceeded)
    assert len(ran.model.sent) == 500
    assert ran.capture.usage.requests == 500
    assert ran.capture.usage.tool_calls == 500
    assert len(ran.messages) == 1001


@pytest.mark.parametrize(("limit", "sent"), [(0, 0), (1, 1)])
async def test_the_request_limit_is_checked_before_a_request(limit: int, sent: int) -> None:
    ran = await play(turn(Call("echo")), DONE, tools=[echo()], request_limit=limit)
    assert isinstance(ran.error, UsageLimitExceeded)
    assert len(ran.model.sent) == sent
    assert ran.messages[-1].kind == "request"


async def test_usage_adds_up_over_the_requests() -> None:
    ran = await play(turn(Call("echo"), Usage(5, 1)), DONE, tools=[echo()])
    usage = ran.capture.usage
    assert (usage.requests, usage.tool_calls, usage.input_tokens, usage.output_tokens) == (2, 1, 15, 3)
