"""Hand-written scenarios: the contract of the layer `dify.output`, alone and beside other calls."""

from typing import Any

from tests.oracle.catalogue import HUMAN, REPORT, A, B, S, after, ret, retry, scenario, tool
from tests.oracle.hand_output import final
from tests.oracle.hand_resume import again
from tests.oracle.scenario import (
    OutputSpec,
    Piece,
    Run,
    Scenario,
    Turn,
    call,
    fragments,
    hang,
    say,
    text,
    thinking,
    turn,
)

GOOD = {"title": "t", "rows": [{"name": "a"}], "score": 5}
BAD = {"title": "t", "rows": [{"name": "a"}, {"name": "B"}]}
DEEP = '{"title": "t", "rows": ' + "[" * 250 + "]" * 250 + "}"
RIGHT = turn(final(GOOD, "f9"))
WRONG = turn(final(BAD, "f0"))
ONE = call("a", {"x": 1}, "c1")
TWO = call("b", {"x": 2}, "c2")


def report(name: str, *turns: Turn, then: tuple[Run, ...] = (), **options: Any) -> Scenario:
    """A run that must end with a report; ``then`` are the runs behind it."""
    return scenario(f"contract_{name}", list(turns), *then, **{"output": REPORT, **options})


def shown() -> list[Scenario]:
    """What the model is shown of a contract."""
    schema = REPORT.json_schema
    plain = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return [
        report("ok", RIGHT),
        report("fragments", turn(fragments("final_output", ['{"ti', 'tle": "', 't"}'], "f1"))),
        report("dict_args", turn(call("final_output", GOOD, "f1", raw=True))),
        report("no_id", turn(call("final_output", GOOD))),
        report("text_and_thinking_before", turn(thinking("hm"), text("Here: "), final(GOOD))),
        report("own_description", RIGHT, output=OutputSpec(kind="contract", json_schema=schema)),
        report("strict", RIGHT, output=OutputSpec(kind="contract", json_schema=schema, description="D", strict=True)),
        report("not_strict", RIGHT, output=OutputSpec(kind="contract", json_schema=schema, strict=False)),
        report("no_description", turn(final({"n": 1})), output=OutputSpec(kind="contract", json_schema=plain)),
        report(
            "titled", turn(final({"n": 1})), output=OutputSpec(kind="contract", json_schema={**plain, "title": "N"})
        ),
    ]


def refused() -> list[Scenario]:
    """Outputs that do not fit, each followed by one that does."""
    wrong: dict[str, Any] = {
        "nested": BAD,
        "third_before_eleventh": {"title": "t", "rows": [{"name": name} for name in "aaBaaaaaaaCa"]},
        "several": {"rows": {}, "title": "", "score": "x", "more": 1},
        "missing": {"rows": [{}]},
        "extra": {"title": "t", "more": 1},
        "tighter_than_shown": {"title": "t", "score": 3},
        "braces": {"title": "t", "rows": [{"name": "{text} {0} {"}]},
        "empty_object": {},
        "empty_text": "",
        "null": None,
        "null_text": "null",
        "array": "[1]",
        "number": "7",
        "truncated": '{"title": "t", "rows": [',
        "doubled": '{"title": "t"}{"title": "t"}',
        "words": "the report",
        "nan": '{"title": "t", "score": NaN}',
        "infinity": '{"title": "t", "score": Infinity}',
        "surrogate": '{"title": "\\ud800"}',
        "deep": DEEP,
        "same_key_twice": '{"title": "t", "title": 1}',
    }
    return [
        *(report(f"{name}_then_ok", turn(final(args, "f0")), RIGHT) for name, args in wrong.items()),
        report("dict_nested_then_ok", turn(call("final_output", BAD, "f0", raw=True)), RIGHT),
        report("invalid_twice", WRONG, turn(final({}, "f1")), RIGHT),
        report("invalid_twice_then_prompt", WRONG, WRONG, then=(again(RIGHT),)),
        report("cut_by_length_twice", *[turn(final('{"title"'), finish="length")] * 2),
        report("text_instead", say("A report."), RIGHT),
        report("text_twice", say("A report."), say("No."), RIGHT),
        report("text_then_invalid_then_ok", say("A report."), WRONG, RIGHT),
        report("invalid_then_text", WRONG, say("A report."), RIGHT),
        report("nothing_then_ok", turn(), RIGHT),
        report("only_thinking_then_ok", turn(thinking("hm")), RIGHT),
        report("interrupted", turn(fragments("final_output", ['{"title', '": "t"'], "f1"), hang()), deadline=3,
               then=(again(RIGHT),)),
    ]  # fmt: skip


def _both(name: str, *calls: list[Piece], tools: list[Any], **options: Any) -> Scenario:
    """These calls in one response; a report follows should the first one not stand."""
    return report(name, turn(*calls), turn(call("a", {"x": 9}, "c9")), RIGHT, tools=tools, **options)


def beside() -> list[Scenario]:
    """Outputs beside other calls of the same response."""
    ok, bad = final(GOOD, "f1"), final(BAD, "f2")
    slow, failing = tool("a", after(2, ret("slow"))), tool("a", [["fail", "no such row"]])
    flaky, raising = tool("a", after(2, retry()), [ret("now")]), tool("a", [["raise", "value"]])
    alone = call("s", {"x": 3}, "c3")
    return [
        report("two", turn(ok, final({"title": "u"}, "f2"))),
        report("valid_then_invalid", turn(ok, bad)),
        report("invalid_then_valid", turn(bad, ok)),
        report("two_invalid", turn(bad, final({}, "f1")), RIGHT),
        report("two_invalid_then_invalid", turn(bad, final({}, "f1")), WRONG, RIGHT),
        _both("behind_tool", ONE, ok, tools=[slow]),
        _both("before_tool", ok, ONE, tools=[slow]),
        _both("between_tools", TWO, ok, ONE, tools=[slow, B]),
        _both("behind_failing_tool", ONE, ok, tools=[failing]),
        _both("before_failing_tool", ok, ONE, tools=[failing]),
        _both("behind_flaky_tool", ONE, ok, tools=[flaky]),
        _both("before_flaky_tool", ok, TWO, ONE, tools=[flaky, B]),
        _both("before_raising_tool", ok, ONE, tools=[raising]),
        _both("behind_bad_arguments", call("a", {"x": "?"}, "c1"), ok, tools=[A]),
        _both("beside_unknown_tool", call("ghost", {}, "g1"), ok, tools=[A]),
        _both("beside_sequential", alone, ok, ONE, tools=[slow, S]),
        _both("invalid_beside_tool", bad, ONE, tools=[slow]),
        _both("invalid_behind_flaky_tool", ONE, bad, tools=[flaky]),
        _both("skips_question", call("ask_human", {"question": "?"}, "q1"), ok, tools=[HUMAN, A]),
        _both("skips_bad_question", call("ask_human", {}, "q1"), ok, tools=[HUMAN, A]),
        _both("skips_two_questions", *(call("ask_human", {"question": "?"}, n) for n in ("q1", "q2")), ok,
              tools=[HUMAN, A]),
    ]  # fmt: skip


def all_scenarios() -> list[Scenario]:
    return [*shown(), *refused(), *beside()]
