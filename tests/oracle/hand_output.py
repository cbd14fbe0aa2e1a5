"""Hand-written scenarios: structured output, and calls that are answered outside of the run."""

from tests.oracle.catalogue import A, B, after, ask, ret, retry, scenario, tool
from tests.oracle.scenario import OutputSpec, Piece, Scenario, Turn, call, fragments, say, text, turn

DONE = say("Done")


def final(args: object, id: str = "f1") -> list[Piece]:
    """A call of ``final_output``."""
    return call("final_output", args, id)


def question(id: str = "q1", asked: object = "why?") -> list[Piece]:
    """A call of ``ask``."""
    return call("ask", {"question": asked}, id)


OK = turn(final({"n": 1}))
RIGHT = turn(final({"n": 2}, "f9"))
WRONG = turn(final({"n": "x"}, "f0"))
WRONG_AGAIN = turn(final({"n": []}, "f1"))
BAD_QUESTION = turn(question("q0", 5))

TWO_FIELDS = OutputSpec(
    json_schema={
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "integer"}}, "name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)
DESCRIBED = OutputSpec(
    json_schema={"type": "object", "properties": {"n": {"type": "integer", "description": "A number."}}},
    description="The number",
    strict=True,
)


def _out(name: str, *turns: Turn, **options: object) -> Scenario:
    return scenario(name, list(turns), **{"output": True, **options})  # type: ignore[arg-type]


def outputs() -> list[Scenario]:
    """Calls of the output tool alone."""
    two_errors = turn(final({"items": [1, "b"], "extra": 1, "name": 4}))
    cut = '{"n": 1'
    return [
        _out("output_ok", OK),
        _out("output_fragments", turn(fragments("final_output", ['{"n"', ": ", "1}"], "f1")), output=DESCRIBED),
        _out("output_dict_args", turn(call("final_output", {"n": 1}, "f1", raw=True))),
        _out("output_invalid_then_ok", WRONG, RIGHT),
        _out("output_invalid_twice", WRONG, WRONG_AGAIN, RIGHT),
        _out("output_not_object", turn(final("[1]")), RIGHT),
        _out("output_truncated", turn(final(cut)), RIGHT),
        _out("output_truncated_length_exhausted", turn(final(cut), finish="length"), turn(final(cut), finish="length")),
        _out("output_empty_args", turn(final("")), RIGHT),
        _out("output_null_args", turn(final(None)), RIGHT),
        _out("output_multi_errors", two_errors, turn(final({"name": "a"}, "f2")), output=TWO_FIELDS),
        _out("output_length_text", turn(text("so lo"), finish="length"), RIGHT),
        _out("output_text_instead", say("1"), RIGHT),
        _out("output_text_twice", say("1"), say("1"), RIGHT),
        _out("output_text_then_invalid_then_ok", say("1"), WRONG, RIGHT),
        _out("output_invalid_then_text", WRONG, say("1"), RIGHT),
        _out("output_text_and_call", turn(text("Here: "), final({"n": 1}))),
        _out("output_two_calls", turn(final({"n": 1}), final({"n": 2}, "f2"))),
        _out("output_invalid_then_valid_same_turn", turn(final({"n": "x"}), final({"n": 2}, "f2"))),
        _out("output_two_invalid_same_turn", turn(final({"n": "x"}), final({"n": "y"}, "f2")), RIGHT),
    ]


def beside_tools() -> list[Scenario]:
    """An output call with function calls in the same response."""
    one = call("a", {"x": 1}, "c1")
    flaky = tool("a", after(2, retry()), [ret("now")])
    two_turns = [turn(one), turn(call("b", {"x": 2}, "c2")), OK]
    return [
        _out("output_tools_turns", *two_turns, tools=[A, B]),
        _out("tool_then_output_same_turn", turn(one, final({"n": 1})), tools=[tool("a", after(2, ret("a ok")))]),
        _out("output_then_tool_same_turn", turn(final({"n": 1}), one), tools=[tool("a", after(2, ret("a ok")))]),
        _out("output_with_retrying_tool", turn(one, final({"n": 1})), turn(one), RIGHT, tools=[flaky]),
        _out("output_then_retrying_tool", turn(final({"n": 1}), one), turn(one), RIGHT, tools=[flaky]),
        _out("output_then_raising_tool", turn(final({"n": 1}), one), tools=[tool("a", [["raise", "value"]])]),
    ]


def externals() -> list[Scenario]:
    """Calls of the external tool."""
    checked = ask([retry("too vague")], [])
    strict = ask([retry("too vague")])
    raising = tool("a", after(2, ["raise", "value"]))
    raw = turn(call("ask", {"question": "why?", "options": ["x", "y"]}, "q1", raw=True))
    broken = turn(call("ask", '{"question": "wh', "q1"))
    one_bad = turn(question("q1", 5), question("q2"))
    return [
        scenario("external_one", [turn(question())], ask=True),
        scenario("external_dict_args", [raw], ask=True),
        scenario("external_text_before", [turn(text("I must ask."), question())], ask=True),
        scenario("external_not_allowed", [turn(question()), DONE], ask=True, allow_deferred=False),
        scenario("external_bad_json", [broken, turn(question("q2"))], ask=True),
        scenario("external_bad_json_twice", [broken, broken, DONE], ask=True),
        scenario("external_check_retry", [turn(question()), turn(question("q2"))], tools=[checked]),
        scenario("external_check_twice", [turn(question()), turn(question("q2")), DONE], tools=[strict]),
        scenario("external_two", [turn(question(), question("q2", "how?"))], ask=True),
        scenario("external_one_valid_one_invalid", [one_bad], ask=True),
        scenario("external_dup_ids", [turn(question(), question("q1", "how?")), DONE], ask=True),
        scenario("external_raises_sibling", [turn(question(), call("a", {"x": 1}, "c1"))], tools=[raising], ask=True),
    ]


def mixed() -> list[Scenario]:
    """External calls beside functions and outputs."""
    one = call("a", {"x": 1}, "c1")
    flaky = [tool("a", [retry()], [ret("now")])]
    ghost = call("ghost", {}, "g1")
    return [
        scenario("mixed_function_external", [turn(question(), one)], tools=[tool("a", after(2, ret(1)))], ask=True),
        scenario("mixed_retry_external", [turn(one, question())], tools=flaky, ask=True),
        scenario("mixed_unknown_external", [turn(ghost, question())], ask=True),
        _out("mixed_output_external", turn(question(), final({"n": 1})), ask=True),
        _out("mixed_invalid_output_external", turn(final({"n": "x"}), question()), ask=True),
        _out("mixed_output_external_retry", turn(final({"n": 1}), question(), one), tools=flaky, ask=True),
    ]


def all_scenarios() -> list[Scenario]:
    return [*outputs(), *beside_tools(), *externals(), *mixed()]
