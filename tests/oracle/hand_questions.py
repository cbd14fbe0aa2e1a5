"""Hand-written scenarios: the tool of the layer `dify.ask_human`, its arguments, its limits, and its batches."""

import json
from typing import Any

from tests.oracle.catalogue import ASK, HUMAN, REPORT, A, B, S, after, human, ret, retry, scenario, tool
from tests.oracle.hand_contract import BAD, GOOD, RIGHT
from tests.oracle.hand_output import final
from tests.oracle.scenario import Piece, Scenario, ToolSpec, Turn, call, fragments, say, text, thinking, turn

PLAIN = {"question": "Deploy now?"}
NOTE = {"type": "paragraph", "name": "note", "label": "Note"}
PICK = {"type": "select", "name": "pick", "label": "Pick", "options": [{"value": "a", "label": "A"}], "default": "a"}
YES = {"id": "yes", "label": "Yes", "style": "destructive"}
FORM = {**PLAIN, "title": "T", "markdown": "*m*", "fields": [NOTE, PICK], "actions": [YES], "urgency": "high"}
LIMITS = {"max_fields": 2, "max_actions": 1, "max_question_chars": 20, "max_markdown_chars": 5}
LABELS = {"max_field_label_chars": 5, "max_action_label_chars": 6}
ONE = call("a", {"x": 1}, "c1")
TWO = call("b", {"x": 2}, "c2")
DONE = say("Done")


def question(id: str | None = "q1", args: Any = PLAIN, *, raw: bool = False) -> list[Piece]:
    """A call of ``ask_human``."""
    return call("ask_human", args, id, raw=raw)


GOOD_QUESTION = turn(question("q9"))


def asks(name: str, *turns: Turn, tools: tuple[ToolSpec, ...] = (), tool: ToolSpec = HUMAN, **options: Any) -> Scenario:
    """A run that may ask a human."""
    return scenario(f"question_{name}", list(turns), tools=[*tools, tool], **options)


def accepted() -> list[Scenario]:
    """Questions that end the run."""
    pieces = ['{"question"', ': "Deploy ', 'now?"}']
    return [
        asks("alone", turn(question())),
        asks("dict_args", turn(question(args=PLAIN, raw=True))),
        asks("form", turn(question(args=FORM))),
        asks("form_dict_args", turn(question(args=FORM, raw=True))),
        asks("fragments", turn(fragments("ask_human", pieces, "q1"))),
        asks("no_id", turn(question(None))),
        asks("text_before", turn(thinking("hm", signature="s"), text("I must ask."), question())),
        asks("text_behind", turn(question(), text("Please."))),
        asks("renamed", turn(call("ask_boss", PLAIN, "q1")),
             tool=ToolSpec(name="ask_boss", kind="human", config={"tool_description": "Ask the boss."})),
        asks("file_allowed", turn(question(args={**PLAIN, "fields": [{"type": "file", "name": "f", "label": "F"}]})),
             tool=human(allow_file_fields=True, allowed_field_types=["file"])),
        asks("default_action_too_long", turn(question()), GOOD_QUESTION, tool=human(max_action_label_chars=3)),
        asks("after_tool_turn", turn(ONE), turn(question()), tools=(A,)),
        asks("not_allowed", turn(question()), DONE, allow_deferred=False),
        asks("unknown_without_layer", turn(question()), DONE, without=["ask_human"]),
        asks("where_a_report_is_due", turn(question()), output=REPORT),
        asks("after_text_where_a_report_is_due", say("Hm."), turn(question()), output=REPORT),
        asks("after_invalid_report", turn(final(BAD)), turn(question()), output=REPORT),
    ]  # fmt: skip


def _violations() -> dict[str, Any]:
    upload = {"type": "file-list", "name": "f", "label": "F"}
    return {
        "fields": {**PLAIN, "fields": [{**NOTE, "name": f"n{n}"} for n in range(3)]},
        "actions": {**PLAIN, "actions": [YES, {**YES, "id": "no"}]},
        "question": {"question": "Deploy now, or later?"},
        "markdown": {**PLAIN, "markdown": "123456"},
        "field_type": {**PLAIN, "fields": [upload]},
        "field_label": {**PLAIN, "fields": [{**NOTE, "label": "{Note}"}]},
        "action_label": {**PLAIN, "actions": [{**YES, "label": "Certainly"}]},
        "several": {**PLAIN, "markdown": "123456", "fields": [upload], "actions": [{**YES, "label": "Certainly"}]},
    }


def limits() -> list[Scenario]:
    """Questions that break a limit of the layer's config."""
    tool = human(**LIMITS, **LABELS)
    long = turn(question(args=_violations()["question"]))
    missing = turn(question("q2", {}))
    return [
        *(
            asks(f"{name}_limit_then_ok", turn(question(args=args)), GOOD_QUESTION, tool=tool)
            for name, args in _violations().items()
        ),
        asks("at_the_limits", turn(question(args={"question": "?" * 20, "markdown": "12345"})), tool=tool),
        asks("limit_twice", long, long, GOOD_QUESTION, tool=tool),
        asks("limit_then_bad_arguments", long, missing, GOOD_QUESTION, tool=tool),
        asks("bad_arguments_then_limit", missing, long, GOOD_QUESTION, tool=tool),
        asks("limit_then_text", long, DONE, tool=tool),
        asks("limit_then_tool_then_limit", long, turn(ONE), long, tools=(A,), tool=tool),
        asks("limit_then_report", long, RIGHT, tool=tool, output=REPORT),
    ]


def arguments() -> list[Scenario]:
    """Arguments that are no question, each followed by one that is."""
    whole = json.dumps(FORM)
    select = {**PICK, "options": []}
    wrong: dict[str, Any] = {
        "empty_text": "",
        "null": None,
        "empty_object": {},
        "null_text": "null",
        "array": "[1]",
        "truncated": whole[:60],
        "doubled": whole + whole,
        "words": "Deploy now?",
        "nan": '{"question": NaN}',
        "wrong_type": {"question": 5},
        "blank": {"question": "  "},
        "unknown_member": {**PLAIN, "more": 1},
        "several": {"question": "", "title": " ", "urgency": "low", "more": {"a": [1]}},
        "nested": {**FORM, "fields": [NOTE, select, {"type": "?"}], "actions": [{"id": "a b", "label": ""}]},
        "same_field_twice": {**PLAIN, "fields": [NOTE, NOTE]},
        "unknown_member_of_a_field": {**PLAIN, "fields": [{**NOTE, "more": 1}]},
    }
    raw = {name: args for name, args in wrong.items() if isinstance(args, dict)}
    return [
        *(asks(f"{name}_then_ok", turn(question(args=args)), GOOD_QUESTION) for name, args in wrong.items()),
        *(
            asks(f"{name}_dict_then_ok", turn(question(args=args, raw=True)), GOOD_QUESTION)
            for name, args in raw.items()
        ),
        asks("bad_twice", turn(question(args={})), turn(question("q2", "")), GOOD_QUESTION),
        asks("cut_by_length", turn(question(args=whole[:60]), finish="length"), GOOD_QUESTION),
        asks("cut_by_length_twice", *[turn(question(args=whole[:60]), finish="length")] * 2),
    ]


def _mixed(name: str, *calls: list[Piece], tools: tuple[ToolSpec, ...], **options: Any) -> Scenario:
    return asks(f"beside_{name}", turn(*calls), turn(call("a", {"x": 9}, "c9")), DONE, tools=tools, **options)


def batches() -> list[Scenario]:
    """Questions beside other calls of the same response."""
    ask, bad = question(), question("q2", {})
    slow, failing = tool("a", after(4, ret("slow"))), tool("a", [["fail", "no such row"]])
    flaky, raising = tool("a", after(2, retry()), [ret("now")]), tool("a", after(2, ["raise", "value"]))
    rich = tool("a", [["rich", "r", ["see"], {"m": 1}]])
    alone, ghost = call("s", {"x": 3}, "c3"), call("ghost", {}, "g1")
    spent = tool("a", [retry()], max_retries=0)
    output, invalid = final(GOOD), final(BAD)
    return [
        _mixed("tool_before", ONE, ask, tools=(slow,)),
        _mixed("tool_behind", ask, ONE, tools=(slow,)),
        _mixed("tools_around", ONE, ask, TWO, tools=(slow, B)),
        _mixed("failing_tool", ask, ONE, TWO, tools=(failing, B)),
        _mixed("flaky_tool", ONE, ask, TWO, tools=(flaky, B)),
        _mixed("spent_tool", ask, ONE, TWO, tools=(spent, B)),
        _mixed("raising_tool", ask, TWO, ONE, tools=(raising, B)),
        _mixed("rich_tool", ask, ONE, TWO, tools=(rich, B)),
        _mixed("sequential_tool", alone, ask, ONE, tools=(slow, S)),
        _mixed("bad_arguments", call("a", {"x": "?"}, "c1"), ask, tools=(A,)),
        _mixed("unknown_tool", ghost, ask, tools=(A,)),
        _mixed("external", call("ask", {"question": "why?"}, "e1"), ask, tools=(ASK,)),
        _mixed("deferring_tool", ask, ONE, tools=(tool("a", [["defer", {"why": "slow"}]]),)),
        _mixed("another", ask, question("q2"), tools=(A,)),
        _mixed("a_bad_one", ask, bad, tools=(A,)),
        _mixed("a_bad_one_first", bad, ask, tools=(A,)),
        _mixed("two_bad_ones", bad, question("q3", "["), tools=(A,)),
        _mixed("itself", ask, ask, tools=(A,)),
        _mixed("tool_with_its_id", ask, call("a", {"x": 1}, "q1"), tools=(A,)),
        asks("beside_bad_report", turn(invalid, ask), RIGHT, output=REPORT),
        asks("before_bad_report", turn(ask, invalid), RIGHT, output=REPORT),
        asks("bad_beside_report", turn(bad, output), output=REPORT),
        asks("bad_beside_bad_report", turn(bad, invalid), RIGHT, output=REPORT),
        asks("beside_revoked_report", turn(output, ask, ONE), tools=(flaky,), output=REPORT),
        asks("bad_beside_revoked_report", turn(output, bad, ONE), turn(ONE), RIGHT, tools=(flaky,), output=REPORT),
        asks("beside_report_and_tools", turn(ONE, output, ask, TWO), tools=(slow, B), output=REPORT),
    ]


def all_scenarios() -> list[Scenario]:
    return [*accepted(), *limits(), *arguments(), *batches()]
