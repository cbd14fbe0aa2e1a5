"""Hand-written scenarios: function tools, how they run beside each other, and how they end."""

from tests.oracle.catalogue import A, B, S, Z, after, ret, retry, scenario, tool
from tests.oracle.scenario import Piece, Run, Scenario, call, fragments, say, text, thinking, turn

ONE = call("a", {"x": 1}, "c1")
DONE = say("Done")
AGAIN = Run(turns=[DONE], prompt="again")


def many(name: str, *xs: int) -> list[list[Piece]]:
    """One call per number, with ids ``c0``, ``c1``, …"""
    return [call(name, {"x": x}, f"c{position}") for position, x in enumerate(xs)]


def plain() -> list[Scenario]:
    """Calls that succeed, in every form a model sends them."""
    return [
        scenario("tool_one", [turn(ONE), DONE], tools=[A]),
        scenario("tool_args_fragments", [turn(fragments("a", ['{"x"', ": 1, ", '"y": "z"}'], "c1")), DONE], tools=[A]),
        scenario("tool_args_dict", [turn(call("a", {"x": 1}, "c1", raw=True)), DONE], tools=[A]),
        scenario("tool_no_id", [turn(call("a", {"x": 1}), call("a", {"x": 2})), DONE], tools=[A]),
        scenario("text_then_tool", [turn(text("Let me ", "see."), ONE), DONE], tools=[A]),
        scenario("tool_then_text", [turn(ONE, text("I am ", "looking.")), DONE], tools=[A]),
        scenario("thinking_tool", [turn(thinking("which?", signature="sig"), ONE), DONE], tools=[A]),
        scenario("many_turns", [*(turn(call("a", {"x": x}, f"c{x}")) for x in range(8)), DONE], tools=[A]),
        scenario("sync_tool", [turn(ONE), DONE], tools=[tool("a", sync=True)]),
        scenario("sync_tool_retry", [turn(ONE), turn(ONE), DONE], tools=[tool("a", [retry()], [ret(2)], sync=True)]),
        scenario("tool_none_result", [turn(ONE), DONE], tools=[tool("a", [ret(None)])]),
        scenario("tool_json_result", [turn(ONE), DONE], tools=[tool("a", [ret({"k": [1, None, "ä", {"z": 1.5}]})])]),
        scenario(
            "tool_toolreturn",
            [turn(ONE, call("b", {"x": 2}, "c2")), DONE],
            tools=[tool("a", [["rich", {"r": 1}, ["See", " this"], {"m": True}]]), B],
        ),
        scenario("tool_failed", [turn(ONE), turn(ONE), turn(ONE), DONE], tools=[tool("a", [["fail", "no such row"]])]),
        scenario(
            "tool_timeout_retry",
            [turn(ONE), turn(ONE), DONE],
            tools=[tool("a", [["hang"]], [ret("quick")], timeout=3)],
        ),
        scenario(
            "call_deferred_by_tool",
            [turn(ONE)],
            tools=[tool("a", [["defer", {"why": "slow"}]])],
            allow_deferred=True,
        ),
        scenario("dup_call_ids", [turn(ONE, call("b", {"x": 2}, "c1")), DONE], tools=[A, B]),
    ]


def together() -> list[Scenario]:
    """Several calls of one response."""
    two = turn(ONE, call("b", {"x": 2}, "c2"))
    slow_a = tool("a", after(4, ret("a ok")))
    barrier = turn(ONE, call("s", {"x": 2}, "c2"), call("b", {"x": 3}, "c3"))
    ends = turn(call("s", {"x": 1}, "c1"), call("a", {"x": 2}, "c2"), call("s", {"x": 3}, "c3"))
    twelve = [tool("a", *(after(24 - 2 * n, ret(n)) for n in range(12)))]
    return [
        scenario("two_tools_same_tick", [two, DONE], tools=[tool("a", after(2, ret(1))), tool("b", after(2, ret(2)))]),
        scenario("two_tools_reverse_completion", [two, DONE], tools=[slow_a, tool("b", after(2, ret("b ok")))]),
        scenario(
            "same_tool_three_times",
            [turn(*many("a", 1, 2, 3)), DONE],
            tools=[tool("a", [ret("first")], [ret("second")], [ret("third")])],
        ),
        scenario(
            "sequential_barrier",
            [barrier, DONE],
            tools=[slow_a, tool("s", after(2, ret("s ok")), sequential=True), tool("b", after(2, ret("b ok")))],
        ),
        scenario("sequential_first_last", [ends, DONE], tools=[slow_a, S]),
        scenario("many_parallel_12", [turn(*many("a", *range(12))), DONE], tools=twelve),
    ]


def failing() -> list[Scenario]:
    """A tool raises something that is not a retry."""
    boom = tool("a", after(2, ["raise", "runtime"]))
    two = [turn(ONE, call("b", {"x": 2}, "c2")), DONE]
    barrier = [turn(ONE, call("s", {"x": 2}, "c2"), call("b", {"x": 3}, "c3")), DONE]
    return [
        scenario("tool_raises", [turn(ONE), DONE], tools=[tool("a", [["raise", "runtime"]])]),
        scenario("tool_raises_valueerror", [turn(ONE), DONE], tools=[tool("a", [["raise", "value"]])]),
        scenario("tool_raises_timeout", [turn(ONE), DONE], tools=[tool("a", [["raise", "timeout"]])]),
        scenario("tool_raises_sibling_done", two, tools=[tool("a", after(4, ["raise", "key"])), B]),
        scenario("tool_raises_sibling_same_tick", two, tools=[boom, tool("b", after(2, ret("b ok")))]),
        scenario("tool_raises_sibling_running", two, tools=[boom, tool("b", [["hang"]])]),
        scenario("two_tools_raise", two, tools=[boom, tool("b", after(2, ["raise", "value"]))]),
        scenario("tool_raises_before_barrier", barrier, tools=[boom, S, B]),
    ]


def cancelled() -> list[Scenario]:
    """A deadline strikes while tools run."""
    hang = tool("a", [["hang"]])
    two = turn(ONE, call("b", {"x": 2}, "c2"))
    barrier = turn(call("b", {"x": 1}, "c1"), call("s", {"x": 2}, "c2"), call("a", {"x": 3}, "c3"))
    beside = turn(ONE, call("final_output", {"n": 1}, "c2"))
    swallows = tool("a", [["swallow"], ret("late")])
    return [
        scenario("cancel_in_tool", [turn(ONE), DONE], tools=[hang], deadline=3),
        scenario("cancel_in_tools_one_done", [two, DONE], tools=[hang, tool("b", after(1, ret("b ok")))], deadline=3),
        scenario("cancel_in_tools_after_barrier", [barrier, DONE], tools=[hang, B, S], deadline=3),
        scenario("cancel_in_tool_beside_output", [beside, DONE], tools=[hang], output=True, deadline=3),
        scenario("cancel_tool_swallows", [two, DONE], tools=[swallows, tool("b", [["hang"]])], deadline=3),
        scenario("cancel_last_tool_swallows_then_next", [turn(ONE)], AGAIN, tools=[swallows], deadline=3),
    ]


def arguments() -> list[Scenario]:
    """Arguments that do not fit, and the check behind the schema."""
    bad, bad_too = call("a", {"x": "one"}, "c1"), call("a", {"x": "two"}, "c2")

    def sent(args: object, *, tools: list | None = None) -> dict:
        return {"turns": [turn(call("a", args, "c1")), turn(call("a", {"x": 1}, "c2")), DONE], "tools": tools or [A]}

    cut = turn(call("a", '{"x": 1', "c1"), finish="length")
    no_args = [turn(call("z", "", "c1")), DONE]
    check = tool("a", check=[[retry("x is taken")], []])
    return [
        scenario("invalid_args_then_ok", **sent({"x": "one"})),
        scenario("invalid_args_twice_fails", [turn(bad), turn(bad_too), DONE], tools=[A]),
        scenario(
            "invalid_and_valid_same_turn",
            [turn(call("b", {"x": 1}, "c0"), bad), DONE],
            tools=[A, tool("b", after(3, ret("b ok")))],
        ),
        scenario("invalid_twice_same_turn", [turn(bad, bad_too), turn(call("a", {"x": 1}, "c3")), DONE], tools=[A]),
        scenario("args_truncated_json", **sent('{"x": 1')),
        scenario("args_doubled_json", **sent('{"x": 1}{"x": 1}')),
        scenario("args_empty_string", no_args, tools=[Z]),
        scenario("args_null", [turn(call("z", None, "c1")), DONE], tools=[Z]),
        scenario("args_empty_on_required", **sent("")),
        scenario(
            "args_array_on_schema_tool",
            [turn(call("q", "[1]", "c1")), DONE],
            tools=[tool("q", kind="schema")],
        ),
        scenario("args_extra_keys", **sent({"x": 1, "w": 2})),
        scenario("args_many_errors", **sent({"x": "one", "y": 5, "w": 2})),
        scenario("args_two_missing", [turn(call("m", {"w": 0}, "c1")), DONE], tools=[tool("m", kind="two")]),
        scenario("args_nan", **sent('{"x": NaN}')),
        scenario("args_check_retry", [turn(ONE), turn(call("a", {"x": 2}, "c2")), DONE], tools=[check]),
        scenario("args_check_failed", [turn(ONE), DONE], tools=[tool("a", check=[[["fail", "x is gone"]]])]),
        scenario("length_cut_tool_args", [cut, turn(call("a", {"x": 1}, "c2")), DONE], tools=[A]),
        scenario("length_cut_tool_args_exhausted", [cut, cut], tools=[A]),
    ]


def unknown() -> list[Scenario]:
    """Names the model made up."""
    ghost = call("ghost", {"x": 1}, "g1")
    accepted = turn(call("final_output", {"n": 1}, "f1"))
    return [
        scenario("unknown_tool_then_text", [turn(ghost), DONE], tools=[A]),
        scenario("unknown_tool_no_tools", [turn(ghost), DONE]),
        scenario("unknown_tool_twice_fails", [turn(ghost), turn(ghost), DONE], tools=[A]),
        scenario("unknown_tool_names_sorted", [turn(ghost), accepted], tools=[Z, B, A], output=True, ask=True),
        scenario("unknown_and_known", [turn(ghost, ONE), turn(call("spook", {}, "g2")), DONE], tools=[A]),
        scenario("unknown_with_output", [turn(ghost, call("final_output", {"n": 1}, "c1"))], tools=[A], output=True),
    ]


def retries() -> list[Scenario]:
    """The budget of each tool."""
    flaky = tool("a", [retry()], [ret("now")])
    stubborn = tool("a", [retry("no")])
    again = [turn(call("a", {"x": n}, f"c{n}")) for n in range(5)]
    resets = tool("a", [retry()], [ret(1)], [retry()], [ret(2)])
    mixed = [turn(ONE), turn(call("b", {"x": 1}, "c2")), turn(call("a", {"x": 2}, "c3")), DONE]
    same = turn(*many("a", 1, 2))
    two = turn(ONE, call("b", {"x": 2}, "c2"))
    return [
        scenario("tool_retry_then_ok", [*again[:2], DONE], tools=[flaky]),
        scenario("tool_retry_twice_fails", [*again[:2], DONE], tools=[stubborn]),
        scenario("tool_retry_reset_after_success", [*again[:4], DONE], tools=[resets]),
        scenario("tool_retry_not_reset_by_other", mixed, tools=[stubborn, B]),
        scenario("retry_and_success_same_turn", [same, again[2], DONE], tools=[tool("a", [ret(1)], [retry()])]),
        scenario("tool_max_retries_0", [again[0], DONE], tools=[tool("a", [retry()], max_retries=0)]),
        scenario("tool_max_retries_3", [*again, DONE], tools=[tool("a", [retry("no")], max_retries=3)]),
        scenario(
            "tool_retry_exhausted_sibling",
            [again[0], two, DONE],
            tools=[tool("a", [retry()], after(4, retry())), tool("b", after(2, ret("b ok")))],
        ),
    ]


def all_scenarios() -> list[Scenario]:
    return [*plain(), *together(), *failing(), *cancelled(), *arguments(), *unknown(), *retries()]
