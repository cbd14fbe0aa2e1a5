"""Hand-written scenarios: text, thinking, empty answers, files, usage, limits, model errors."""

from tests.oracle.catalogue import A, after, ret, scenario, tool
from tests.oracle.scenario import (
    Scenario,
    call,
    delay,
    error,
    file,
    fragments,
    hang,
    say,
    text,
    thinking,
    turn,
    usage,
)

ERROR_KINDS = ("http", "api", "value", "timeout", "unexpected")


def answers() -> list[Scenario]:
    """Turns without tools."""
    return [
        scenario("text_one", [say("Hello")]),
        scenario("text_deltas", [say("", "Hel", "lo", " there")]),
        scenario("text_two_parts", [turn(text("One. "), text("Two.", " Three."))]),
        scenario(
            "text_interleaved_parts",
            [turn(text("first", key=0), text("second", key=1), text(" more of first", key=0), text(" end", key=1))],
        ),
        scenario("thinking_text", [turn(thinking("let ", "me see", signature="sig"), text("Answer", "."))]),
        scenario("thinking_only_then_text", [turn(thinking("hmm")), say("Answer")]),
        scenario("thinking_only_twice_fails", [turn(thinking("hmm")), turn(thinking("hmm again"))]),
        scenario("empty_then_text", [turn(), say("Answer")]),
        scenario("empty_twice_fails", [turn(), turn()]),
        scenario("blank_text_then_text", [say("", ""), say("Answer")]),
        scenario("empty_with_tools", [turn(), say("Answer")], tools=[A]),
        scenario("length_empty", [turn(finish="length")]),
        scenario("length_thinking", [turn(thinking("so long"), finish="length")], settings={"max_tokens": 7}),
        scenario("length_text_ok", [turn(text("cut he"), finish="length")]),
        scenario("content_filter_empty", [turn(finish="content_filter")]),
        scenario("file_part_only", [turn(file()), say("Answer")]),
        scenario("text_file_text", [turn(text("before"), file(), text("after"))]),
        scenario("usage_reported", [turn(usage(5, 1), text("a"), usage(5, 3), text("b"), usage(6, 9))]),
    ]


def limits() -> list[Scenario]:
    """The request limit."""
    return [
        scenario("limit_0", [say("never")], limit=0),
        scenario("limit_1_text", [say("Answer")], limit=1),
        scenario("limit_1_output_retry", [turn(call("final_output", {"n": "x"}, "c1"))], output=True, limit=1),
        scenario(
            "limit_2",
            [turn(call("a", {"x": 1}, "c1")), turn(call("a", {"x": 2}, "c2")), say("never")],
            tools=[A],
            limit=2,
        ),
    ]


def errors() -> list[Scenario]:
    """The model fails."""
    found: list[Scenario] = []
    for kind in ERROR_KINDS:
        found.append(scenario(f"open_error_{kind}", [turn(opening=error(kind))]))
        mid = turn(usage(4, 2), text("partial ", "text"), error(kind), text("never"))
        found.append(scenario(f"mid_error_{kind}", [mid]))
    cut_call = turn(text("Let me"), fragments("a", ['{"x"', ": 1"], "c1"), error("api"))
    return [
        *found,
        scenario("error_before_first", [turn(error("api"), text("never"))]),
        scenario("error_mid_toolcall", [cut_call], tools=[A]),
        scenario("error_second_request", [turn(call("a", {"x": 1}, "c1")), turn(opening=error("http"))], tools=[A]),
    ]


def cancels() -> list[Scenario]:
    """Cancelled by a deadline while the model is asked."""
    two_tools = [turn(call("a", {"x": 1}, "c1")), turn(opening=hang())]
    return [
        scenario("cancel_open_hang", [turn(opening=hang())], deadline=3),
        scenario("cancel_before_first", [turn(hang())], deadline=3),
        scenario("cancel_mid_text", [turn(usage(3, 1), text("partial ", "text"), hang())], deadline=3),
        scenario("cancel_mid_thinking", [turn(thinking("let me", " see"), hang())], deadline=3),
        scenario("cancel_mid_toolargs", [turn(fragments("a", ['{"x"', ": 1"], "c1"), hang())], tools=[A], deadline=3),
        scenario("cancel_second_request", two_tools, tools=[A], deadline=3),
    ]


def interrupted_by_sink() -> list[Scenario]:
    """Cancelled, or failed, inside the sink at the n-th event."""
    found: list[Scenario] = []
    slow_text = [turn(text("one", " two", " three"), delay(2))]
    both = [turn(call("a", {"x": 1}, "c1"), call("b", {"x": 2}, "c2")), say("Answer")]
    slow = [tool("a", after(4, ret("a ok"))), tool("b", after(2, ret("b ok")))]
    answer = [turn(call("final_output", {"n": 1}, "c1"), call("a", {"x": 1}, "c2"))]
    asked = [turn(call("ask", {"question": "why?"}, "c1"))]
    for n in range(1, 6):
        found.append(scenario(f"cancel_event_{n}_text", slow_text, cancel_event=n))
    for n in range(1, 8):
        found.append(scenario(f"cancel_event_{n}_tools", both, tools=slow, cancel_event=n))
    for n in range(3, 7):
        found.append(scenario(f"cancel_event_{n}_output", answer, tools=[A], output=True, cancel_event=n))
    for n in range(3, 6):
        found.append(scenario(f"cancel_event_{n}_external", asked, ask=True, cancel_event=n))
    for n in (1, 3, 5, 6, 7):
        found.append(scenario(f"handler_raises_{n}", both, tools=slow, raise_event=n))
    return found


def all_scenarios() -> list[Scenario]:
    return [*answers(), *limits(), *errors(), *cancels(), *interrupted_by_sink()]
