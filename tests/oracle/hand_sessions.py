"""Hand-written scenarios: sessions of several runs, with questions, answers and interruptions between them."""

from typing import Any

from tests.oracle.catalogue import HUMAN, REPORT, A, B, after, ret, retry, scenario, tool
from tests.oracle.hand_contract import BAD, GOOD, RIGHT, WRONG
from tests.oracle.hand_output import final
from tests.oracle.hand_questions import DONE, ONE, PLAIN, TWO, question
from tests.oracle.hand_resume import again, resume
from tests.oracle.scenario import Run, Scenario, ToolSpec, Turn, call, error, fragments, hang, say, text, turn

ASKED = turn(question())
MIXED = turn(ONE, question(), TWO)
TWICE = turn(question(), question("q2"))
ANSWER = {"q1": "yes"}
SLOW = (tool("a", after(4, ret("a ok"))), B)
ANSWERS: dict[str, Any] = {
    "null": None,
    "empty_text": "",
    "zero": 0,
    "false": False,
    "empty_list": [],
    "empty_object": {},
    "list_with_nothing": [None],
    "result": {"status": "submitted", "action": {"id": "yes", "label": "Yes"}, "values": {"n": ""}, "message": None},
    "timeout": {"status": "timeout"},
    "like_a_result_object": {"kind": "tool-denied", "message": "no"},
    "like_a_tool_return": {"return_value": 1, "content": "x", "kind": "tool-return"},
}


def session(
    name: str, first: Turn | list[Turn], *more: Run, tools: tuple[ToolSpec, ...] = (), **options: Any
) -> Scenario:
    """A session whose runs may ask a human."""
    turns = first if isinstance(first, list) else [first]
    return scenario(f"session_{name}", turns, *more, tools=[*tools, HUMAN], **options)


def answered() -> list[Scenario]:
    """Questions that are answered with exactly their ids."""
    rules = ["Be brief."]
    two = {"q2": None, "q1": 1}
    return [
        *(session(f"answer_{name}", ASKED, resume({"q1": value})) for name, value in ANSWERS.items()),
        session("answer_to_call_with_dict", turn(question(args=PLAIN, raw=True)), resume(ANSWER)),
        session("answer_with_instructions", ASKED, resume(ANSWER, instructions=rules), instructions=["Old."]),
        session("answer_with_prompt", ASKED, resume(ANSWER, prompt="and hurry")),
        session("answer_with_prompt_list", ASKED, resume(ANSWER, prompt=["and", "hurry"])),
        session("answer_without_layer", ASKED, resume(ANSWER, without=["ask_human"])),
        session("answer_two", TWICE, resume(two)),
        session("asks_again", ASKED, resume(ANSWER, turn(question("q2"))), resume({"q2": 0}), again()),
        session("asks_again_with_the_same_id", ASKED, resume(ANSWER, ASKED), resume({"q1": "again"})),
        session("answer_then_tool_then_report", ASKED, resume(ANSWER, turn(ONE), RIGHT), tools=(A,), output=REPORT),
        session("answer_then_text_then_report", ASKED, resume(ANSWER, say("Hm."), RIGHT), output=REPORT),
        session("answer_then_text_twice", ASKED, resume(ANSWER, say("a"), say("b")), again(RIGHT), output=REPORT),
        session("answer_then_bad_report", ASKED, resume(ANSWER, WRONG, RIGHT), output=REPORT),
        session("answer_then_bad_question", ASKED, resume(ANSWER, turn(question("q2", {})), turn(question("q3")))),
        session("answer_then_nothing", ASKED, resume(ANSWER, turn(), turn())),
        session("budget_is_new_each_run", [turn(question("q0", {})), ASKED], resume(ANSWER, turn(question("q2", {})))),
        session("answer_at_the_limit", ASKED, resume(ANSWER, limit=0), again(), resume(ANSWER)),
        session("answer_then_prompt", ASKED, resume(ANSWER), again()),
        session("bad_report_answered", turn(final(BAD, "f1"), question()), resume(ANSWER, RIGHT), output=REPORT),
        session("revoked_report_answered", turn(final(GOOD), question(), ONE), resume(ANSWER, RIGHT),
                tools=(tool("a", [retry()]),), output=REPORT),
    ]  # fmt: skip


def refused() -> list[Scenario]:
    """Answers that do not fit what is pending, and what works after them."""
    right = resume(ANSWER)
    bad_one = turn(question("q0", {}), question())
    return [
        session("missing", TWICE, resume(ANSWER), resume({"q1": 1, "q2": 2})),
        session("missing_then_prompt", TWICE, resume(ANSWER), again()),
        session("none_given", ASKED, resume({}), right),
        session("extra", ASKED, resume({"q1": 1, "q8": 2, "q7": 3}), right),
        session("foreign", ASKED, resume({"q8": 1}), right),
        session("foreign_then_prompt", ASKED, resume({"q8": 1}), again()),
        session("answered_twice", ASKED, right, right),
        session("nothing_asked", DONE, right),
        session("no_history", ASKED, resume(ANSWER, history=[])),
        session("prompt_while_pending", ASKED, again(), right),
        session("neither_while_pending", ASKED, again(prompt=None), right),
        session("prompt_while_two_pending", TWICE, again(), resume({"q1": 1, "q2": 2})),
        session("retried_question_answered", bad_one, resume({"q0": 1, "q1": 2}), right),
        session("retried_question_left_alone", bad_one, right),
        session("same_id_twice", turn(question(), question()), right, again()),
        session("question_with_the_id_of_a_tool", turn(call("a", {"x": 1}, "q1"), question()), right, tools=(A,)),
        session(
            "report_id_given", turn(final(BAD, "f1"), question()), resume({"q1": 1, "f1": 2}), right, output=REPORT
        ),
    ]


def mixed() -> list[Scenario]:
    """Batches of which only a part is answered from outside."""
    flaky = (tool("a", [retry()], [ret("now")]), B)
    raising = (tool("a", after(2, ["raise", "value"])), B)
    rich = (tool("a", [["rich", "r", ["see"], None]]), B)
    defers = (tool("a", [["defer", None]]), B)
    again_given = resume({"q1": 1, "c1": "mine"})
    right = resume(ANSWER)
    return [
        session("mixed", MIXED, right, tools=SLOW),
        session("mixed_without_prompt_or_answer", MIXED, again(prompt=None), tools=SLOW),
        session("mixed_prompt", MIXED, again(), right, tools=SLOW),
        session("mixed_ordinary_given_again", MIXED, again_given, right, tools=SLOW),
        session("mixed_only_ordinary_given", MIXED, resume({"c1": "mine"}), right, tools=SLOW),
        session("mixed_missing", turn(ONE, question(), question("q2")), right, tools=(A,)),
        session("mixed_flaky", MIXED, resume(ANSWER, turn(ONE), DONE), tools=flaky),
        session("mixed_failed", MIXED, right, tools=(tool("a", [["fail", "no"]]), B)),
        session("mixed_rich", MIXED, right, tools=rich),
        session("mixed_unknown", turn(call("ghost", {}, "g1"), question()), right),
        session("mixed_raised_prompt", MIXED, again(), tools=raising),
        session("mixed_raised_answered", MIXED, right, tools=raising),
        session("mixed_raised_all_given", MIXED, resume({"q1": 1, "c1": 2, "c2": 3}), tools=raising),
        session("mixed_deferring_tool", MIXED, resume({"q1": 1, "c1": 2}), tools=defers),
        session("mixed_deferring_tool_missing", MIXED, right, resume({"q1": 1, "c1": None}), tools=defers),
        session("mixed_tools_gone", MIXED, resume(ANSWER, without=["a", "b", "ask_human"]), tools=SLOW),
        session("mixed_asks_again_mixed", MIXED, resume(ANSWER, turn(question("q2"), call("a", {"x": 3}, "c3"))),
                resume({"q2": []}), tools=SLOW),
    ]  # fmt: skip


def interrupted() -> list[Scenario]:
    """Runs that are cut in each place, and the run behind."""
    cut = turn(fragments("ask_human", ['{"ques', 'tion": "a'], "q1"), hang())
    behind: dict[str, Run] = {"prompt": again(), "answer": resume(ANSWER), "neither": again(prompt=None)}
    late = turn(text("So"), error("http"))
    bad_then_hang = [turn(question(args={})), turn(opening=hang())]
    return [
        *(session(f"cut_arguments_then_{name}", cut, run, deadline=3) for name, run in behind.items()),
        *(session(f"cut_in_tool_then_{name}", MIXED, run, tools=SLOW, deadline=3) for name, run in behind.items()),
        *(session(f"cut_after_bad_then_{name}", bad_then_hang, run, deadline=3) for name, run in behind.items()),
        *(
            session(f"cancel_event_{event}_then_{name}", MIXED, run, again(), tools=SLOW, cancel_event=event)
            for event in range(3, 14)
            for name, run in behind.items()
        ),
        *(
            session(f"sink_raises_{event}_then_answer", MIXED, behind["answer"], again(), tools=SLOW, raise_event=event)
            for event in range(3, 14)
        ),
        *(
            session(f"answer_cancel_event_{event}_then_{name}", ASKED, resume(ANSWER, turn(ONE), cancel_event=event),
                    run, again(), tools=SLOW)
            for event in range(1, 7)
            for name, run in behind.items()
        ),
        *(session(f"answer_then_error_then_{name}", ASKED, resume(ANSWER, late), run) for name, run in behind.items()),
        session("answer_open_error_then_neither", ASKED, resume(ANSWER, turn(opening=error("api"))), behind["neither"]),
        session("answer_cut_then_asks_again", ASKED, resume(ANSWER, turn(opening=hang()), deadline=3),
                again(turn(question("q2"))), resume({"q2": 1})),
        session("two_cut_runs_then_answer", MIXED, again(turn(TWO), cancel_event=3), resume(ANSWER), again(),
                tools=SLOW, deadline=3),
    ]  # fmt: skip


def all_scenarios() -> list[Scenario]:
    return [*answered(), *refused(), *mixed(), *interrupted()]
