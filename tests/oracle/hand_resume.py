"""Hand-written scenarios: results from outside, given histories, and the run behind an interrupted one."""

from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from tests.oracle.catalogue import A, B, after, ask, ret, retry, scenario, tool
from tests.oracle.hand_output import OK, RIGHT, final, question
from tests.oracle.scenario import Run, Scenario, call, fragments, hang, say, text, turn

DONE = say("Done")
ONE = call("a", {"x": 1}, "c1")
ASKED = turn(question())
ASKED_BOTH = turn(ONE, question())
ASKED_TWICE = turn(question(), question("q2", "how?"))


def resume(results: dict[str, Any], *turns: Any, **options: Any) -> Run:
    """A run without a prompt that brings results."""
    return Run(turns=list(turns) or [DONE], prompt=options.pop("prompt", None), results=results, **options)


def again(*turns: Any, **options: Any) -> Run:
    """A run with a new prompt."""
    return Run(turns=list(turns) or [DONE], prompt=options.pop("prompt", "and now?"), **options)


def _asks(name: str, first: Any, *more: Run, **options: Any) -> Scenario:
    return scenario(name, [first] if not isinstance(first, list) else first, *more, ask=True, **options)


def stored(*messages: ModelMessage) -> list[dict[str, Any]]:
    """Messages as JSON."""
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def asked(content: str = "before") -> ModelRequest:
    """A stored prompt."""
    return ModelRequest(parts=[UserPromptPart(content)])


def answered(*parts: Any, **options: Any) -> ModelResponse:
    """A stored response."""
    return ModelResponse(parts=list(parts), **options)


CALL = ToolCallPart("a", {"x": 1}, "c1")
CALL_B = ToolCallPart("b", '{"x": 2}', "c2")
RETURN = ToolReturnPart("a", "a ok", "c1")


def resumed() -> list[Scenario]:
    """Runs that continue with results."""
    got = {"q1": "because"}
    kindlike = {"q1": {"kind": "tool-approved", "value": {"kind": "tool-return"}}}
    return [
        _asks("resume_ok", ASKED, resume({"q1": {"answer": "because", "n": [1, None]}})),
        _asks("resume_string", ASKED, resume(got, instructions=["Be brief."]), instructions=["Be brief."]),
        _asks("resume_none_value", ASKED, resume({"q1": None})),
        _asks("resume_kindlike_dict", ASKED, resume(kindlike)),
        _asks("resume_mixed", ASKED_BOTH, resume(got), tools=[A]),
        _asks("resume_mixed_override", ASKED_BOTH, resume({"q1": "because", "c1": "mine"}), tools=[A]),
        _asks("resume_missing", ASKED_TWICE, resume(got)),
        _asks("resume_extra", ASKED, resume({"q1": "because", "q8": 1, "q7": 2})),
        _asks("resume_two", ASKED_TWICE, resume({"q2": "thus", "q1": "because"})),
        _asks("resume_again_deferred", ASKED, resume(got, turn(question("q2"))), resume({"q2": "thus"})),
        _asks("resume_nothing_pending", DONE, resume(got)),
        _asks("resume_empty_history", ASKED, resume(got, history=[])),
        _asks("resume_with_prompt", ASKED, resume(got, prompt="and be quick")),
        _asks("resume_tool_gone", ASKED, resume(got, without=["ask"])),
    ]


def pending() -> list[Scenario]:
    """Runs that meet calls without results, or results that do not fit."""
    marked = stored(asked(), answered(ToolCallPart("ask", {"question": "why?"}, "q1"), state="interrupted"))
    plain = stored(asked(), answered(CALL, CALL_B))
    bad_then_good = [turn(question("q1", 5), question("q2"))]
    tail = stored(asked(), answered(CALL, ToolCallPart("ask", {"question": "why?"}, "q1")))
    tail += stored(ModelRequest(parts=[], state="interrupted"))
    retried = turn(final({"n": "x"}), question())
    return [
        _asks("resume_prompt_while_pending", ASKED, again()),
        _asks("resume_prompt_pending_marked", DONE, again(), history=marked),
        _asks("resume_prompt_after_mixed_pending", ASKED_BOTH, again(), tools=[A]),
        _asks("resume_invalid_external_retried", bad_then_good, resume({"q2": "because"})),
        _asks("resume_then_tool_then_output", ASKED, resume({"q1": 1}, turn(ONE), OK), tools=[A], output=True),
        _asks("resume_output_retried_plus_external", retried, resume({"q1": 1}, RIGHT), output=True),
        scenario("resume_plain_function_pending", [DONE], tools=[A, B], history=plain, prompt=None),
        _asks("resume_extra_then_right", ASKED, resume({"q1": 1, "q9": 2}), resume({"q1": 1})),
        _asks("resume_missing_then_prompt", ASKED_TWICE, resume({"q1": 1}), again()),
        _asks(
            "results_after_interrupted_tail",
            DONE,
            resume({"q1": 1, "c1": 2}, history=tail),
            tools=[A],
            history=tail,
            prompt=None,
            results={"q1": 1},
        ),
    ]


def histories() -> list[Scenario]:
    """Histories as they come from storage, and from older versions."""
    legacy = stored(asked(), answered(CALL))
    retry_part = {"part_kind": "retry-prompt", "content": "again", "tool_name": "a", "tool_call_id": "c1"}
    legacy += [{"kind": "request", "parts": [retry_part]}]
    dangling = stored(asked(), answered(CALL, CALL_B), ModelRequest(parts=[RETURN]), answered(TextPart("so")))
    orphan = stored(asked(), answered(TextPart("so")), ModelRequest(parts=[RETURN, UserPromptPart("more")]))
    orphan += stored(answered(TextPart("yes")))
    calls_cut = stored(asked(), answered(CALL, state="interrupted"))
    settled = stored(asked(), answered(TextPart("so"), TextPart(" it is")))
    unanswered = [turn(opening=[["error", "api"]])]
    settings = {"temperature": 0.5, "max_tokens": 9}
    rules = ["Be brief.\n", "  Be kind."]
    return [
        scenario("instructions_joined", [turn(ONE), DONE], tools=[A], instructions=rules),
        scenario("instructions_blank", [DONE], again(instructions=[]), instructions=["", "Be brief."]),
        scenario("two_runs_history", [turn(ONE), DONE], again(instructions=rules), tools=[A], instructions=["Old."]),
        scenario("history_unanswered_prompt", unanswered, again()),
        scenario(
            "history_no_prompt_request_tail", [DONE], again(), history=stored(asked("1"), asked("2")), prompt=None
        ),
        scenario("no_prompt_request_tail", [DONE], history=stored(asked()), prompt=None),
        scenario("no_prompt_response_tail", [DONE], again(), history=settled, prompt=None),
        scenario("no_prompt_response_tail_instr", [DONE], history=settled, prompt=None, instructions=rules),
        scenario("no_prompt_interrupted_response_with_calls", [DONE], tools=[A], history=calls_cut, prompt=None),
        scenario("nothing_at_all", [DONE], prompt=None),
        scenario("only_instructions", [DONE], prompt=None, instructions=rules),
        scenario("legacy_retry_prompt_history", [DONE], tools=[A], history=legacy),
        scenario("dangling_middle_history", [DONE], tools=[A, B], history=dangling),
        scenario("orphan_result_history", [DONE], tools=[A], history=orphan),
        scenario("prompt_list", [DONE], prompt=["Look", "at this"]),
        scenario("settings_merge", [DONE], settings=settings, model_settings={"temperature": 0.1, "seed": 3}),
    ]


def next_after() -> list[Scenario]:
    """A second run behind one that ended badly."""
    hangs = tool("a", [["hang"]])
    quick = tool("b", after(1, ret("b ok")))
    two = turn(ONE, call("b", {"x": 2}, "c2"))
    cut_call = turn(fragments("a", ['{"x"', ": 1"], "c1"), hang())
    wrong = [turn(final({"n": "x"}, f"f{n}")) for n in range(2)]
    boom = tool("a", after(2, ["raise", "value"]))
    vague = ask([retry("vague")])
    return [
        scenario("next_after_cancel_text", [turn(text("par", "tial"), hang())], again(), deadline=3),
        scenario("next_after_cancel_empty", [turn(hang())], again(), deadline=3),
        scenario("next_after_cancel_toolargs", [cut_call], again(), tools=[A], deadline=3),
        scenario("next_after_cancel_tools", [two], again(), tools=[hangs, quick], deadline=3),
        scenario("next_after_cancel_tools_none_done", [two], again(), tools=[hangs, tool("b", [["hang"]])], deadline=3),
        scenario("next_after_tool_raise", [two], again(), tools=[boom, quick]),
        scenario("next_after_limit", [turn(ONE)], again(), tools=[A], limit=1),
        scenario("next_after_output_exhausted", wrong, again(RIGHT), output=True),
        scenario("next_after_two_externals_failed", [ASKED_TWICE, ASKED_TWICE], again(), tools=[vague]),
        scenario("next_after_open_error", [turn(opening=[["error", "http"]])], again(), again()),
        scenario("resume_after_cancel_without_prompt", [two], again(prompt=None), tools=[hangs, quick], deadline=3),
    ]


def all_scenarios() -> list[Scenario]:
    return [*resumed(), *pending(), *histories(), *next_after()]
