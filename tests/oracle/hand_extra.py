"""Hand-written scenarios beyond the specification's list: rare paths, and the deliberate differences."""

from tests.oracle.catalogue import OUTPUT, A, B, after, ret, retry, scenario, tool
from tests.oracle.hand_output import final, question
from tests.oracle.hand_resume import CALL, again, answered, asked, resume, stored
from tests.oracle.scenario import Run, Scenario, call, delay, error, hang, say, text, turn
from tests.oracle.scripted import TICK

DONE = say("Done")
ONE = call("a", {"x": 1}, "c1")


def _settings(**ticks: float) -> dict[str, float]:
    return {name: count * TICK for name, count in ticks.items()}


def timeouts() -> list[Scenario]:
    """The two settings that bound a model request, and a tool's own timeout."""
    slow = [turn(text("one"), delay(4), text("two"), hang())]
    return [
        scenario("request_timeout_opening", [turn(opening=hang())], settings=_settings(request_timeout=3)),
        scenario("request_timeout_stream", slow, settings=_settings(request_timeout=6.5)),
        scenario("first_event_timeout_opening", [turn(opening=hang())], settings=_settings(first_event_timeout=3)),
        scenario("first_event_timeout_stream", [turn(hang())], settings=_settings(first_event_timeout=3)),
        scenario("first_event_timeout_passed", [turn(text("a"), delay(9))], settings=_settings(first_event_timeout=3)),
        scenario("both_timeouts", slow, settings=_settings(request_timeout=3, first_event_timeout=5)),
        scenario(
            "request_timeouts_per_request",
            [turn(ONE, delay(4)), turn(delay(4), text("b"))],
            tools=[A],
            settings=_settings(request_timeout=6),
        ),
        scenario("tool_timeout_not_reached", [turn(ONE), DONE], tools=[tool("a", after(2, ret("a ok")), timeout=3)]),
        scenario("tool_timeout_exhausted", [turn(ONE), turn(ONE), DONE], tools=[tool("a", [["hang"]], timeout=3)]),
        scenario("tool_timeout_own_error", [turn(ONE), DONE], tools=[tool("a", [["raise", "timeout"]], timeout=9)]),
        scenario("cancel_before_tool_timeout", [turn(ONE)], tools=[tool("a", [["hang"]], timeout=9)], deadline=3),
    ]


def contexts() -> list[Scenario]:
    """Tools that ask what run they are in."""
    nosy = tool("a", [["context"]], kind="context")
    stubborn = tool("a", [["retry", "again"]], [["context"]], [["context"]], kind="context")
    three = [turn(call("a", {"x": n}, f"c{n}")) for n in range(3)]
    return [
        scenario("tool_with_context", [turn(ONE, call("b", {"x": 1}, "c2")), three[2], DONE], tools=[nosy, B]),
        scenario("tool_with_context_retried", [*three, DONE], tools=[stubborn], prompt=["a", "list"]),
    ]


def twists() -> list[Scenario]:
    """Combinations that the list does not name."""
    rich = tool("a", [["rich", "r", "see", None]], [["rich", None, ["x", "y"], None]])
    both = turn(ONE, question("q1"))
    flaky = tool("a", [retry()], [ret("now")])
    old = stored(asked(), answered(CALL))
    rules = ["Be brief."]
    wrong, right = turn(final({"n": "x"})), turn(final({"n": 2}, "f2"))
    pending = [turn(question("q1"))]
    return [
        scenario("resume_after_rich_result", [both], resume({"q1": 1}), tools=[rich], ask=True),
        scenario("two_rich_results", [turn(ONE, call("a", {"x": 2}, "c2")), DONE], tools=[rich]),
        scenario("retry_then_next_run", [turn(ONE)], again(turn(ONE), DONE), tools=[flaky], limit=1),
        scenario("pending_function_unknown_now", [DONE], history=old, prompt=None),
        scenario("pending_function_with_instructions", [DONE], tools=[A], history=old, prompt=None, instructions=rules),
        scenario("output_then_two_tools", [turn(final({"n": 1}), ONE, call("b", {"x": 2}, "c2"))],
                 tools=[tool("a", after(4, ret(1))), tool("b", after(2, ret(2)))], output=True),
        scenario("cancel_in_tool_after_output", [turn(final({"n": 1}), ONE)], again(turn(final({"n": 3}, "f3"))),
                 tools=[tool("a", [["hang"]])], output=True, deadline=3),
        scenario("error_after_call", [turn(ONE, error("api"))], again(), tools=[A]),
        scenario("output_and_text_after_retry", [wrong, turn(), right], output=True),
        scenario("cut_calls_before_text", [turn(text("a"), call("a", '{"x"', "c1"), finish="length"), DONE], tools=[A]),
        scenario("unknown_beside_cut", [turn(call("ghost", '{"x"', "g1"), finish="length")] * 2, tools=[A]),
        scenario("empty_results", pending, resume({}), ask=True),
        scenario("limit_reached_on_resume", pending, resume({"q1": 1}, limit=0), ask=True),
        scenario("two_interrupted_tails", [turn(ONE)], Run(turns=[turn(ONE)], deadline=3), again(),
                 tools=[tool("a", [["hang"]])], deadline=3),
        scenario("cancelled_before_resume_request", pending,
                 resume({"q1": 1}, turn(opening=hang()), deadline=3), again(), ask=True),
        scenario("cancel_event_1_resume", pending, resume({"q1": 1}, cancel_event=1), again(), ask=True),
        scenario("cancel_event_2_resume", pending, resume({"q1": 1}, cancel_event=2), again(), ask=True),
        scenario("handler_raises_2_resume", pending, resume({"q1": 1}, raise_event=2), again(), ask=True),
    ]  # fmt: skip


def deliberate() -> list[Scenario]:
    """Rows of ``compare.DIFFERENCES``."""
    return [
        scenario("output_same_id_twice", [turn(final({"n": 1}), final({"n": "x"}))], output=OUTPUT),
        scenario("instructions_whitespace", [DONE], instructions=["Be brief.", "  "]),
    ]


def all_scenarios() -> list[Scenario]:
    return [*timeouts(), *contexts(), *twists(), *deliberate()]
