"""Random scenarios. A scenario is a function of its seed and number, so its name is enough to play it again.

Odd numbers are sessions: runs that may ask a human or owe a report, most of them answered by the run behind.
"""

import json
from typing import Any

from tests.oracle.catalogue import N_SCHEMA, human
from tests.oracle.dice import Dice
from tests.oracle.material import CONFIG, CONTRACTS, NO_QUESTIONS, NO_REPORTS, QUESTIONS, REPORTS
from tests.oracle.scenario import (
    OutputSpec,
    Piece,
    Run,
    Scenario,
    Step,
    ToolSpec,
    Turn,
    call,
    fragments,
    text,
    thinking,
    turn,
)

ERRORS = ("http", "api", "value", "timeout", "unexpected")


def _ending(dice: Dice) -> Step:
    roll = dice.between(1, 20)
    if roll <= 11:
        return ["return", dice.pick("ok", None, 7, {"k": [1]}, "")]
    if roll <= 15:
        return ["retry", "again"]
    if roll <= 16:
        return ["fail", "failed"]
    if roll <= 17:
        return ["raise", dice.pick("value", "runtime", "key")]
    if roll <= 18:
        return ["rich", "ok", [f"note {dice.between(1, 9)}"], None]
    return ["hang"] if roll == 19 else ["return", "last"]


def _script(dice: Dice) -> list[Step]:
    """Delays are even, deadlines odd: nothing depends on the order of two timers that strike together."""
    delays: list[Step] = [["delay", 2 * dice.between(1, 5)]] if dice.chance(0.5) else []
    if dice.chance(0.03):
        return [*delays, ["swallow"], ["return", "late"]]  # nothing that waits: asyncio would not cancel it again
    return [*delays, _ending(dice)]


def _tools(dice: Dice) -> list[ToolSpec]:
    tools = []
    for name in ("a", "b")[: dice.between(0, 2)]:
        tools.append(
            ToolSpec(
                name=name,
                calls=[_script(dice) for _ in range(dice.between(1, 4))],
                max_retries=dice.pick(None, None, 0, 1, 2),
                sequential=dice.chance(0.25),
            )
        )
    if dice.chance(0.45):
        checks = [dice.pick([], [], [["retry", "vague"]], [["fail", "no"]]) for _ in range(dice.between(1, 3))]
        tools.append(ToolSpec(name="ask", kind="external", check=checks if dice.chance(0.4) else None))
    if dice.session and dice.chance(0.85):
        tools = [tool for tool in tools if tool.kind != "external" or dice.chance(0.3)]
        tools.append(human(**CONFIG))
    return tools


def _output(dice: Dice) -> OutputSpec | None:
    if not dice.chance(0.5):
        return None
    dice.contract = dice.session
    return dice.pick(*CONTRACTS) if dice.contract else OutputSpec(json_schema=N_SCHEMA)


def _args(dice: Dice, right: dict[str, Any], wrong: dict[str, Any]) -> Any:
    roll = dice.between(1, 20)
    if roll <= 13:
        return right
    if roll <= 16:
        return wrong
    whole = json.dumps(right)
    return dice.pick(whole[: dice.between(1, len(whole) - 1)], whole + whole, "", None, "[1]", "7", '{"x": NaN}')


def _right_and_wrong(dice: Dice, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if name == "ask":
        return {"question": "why?"}, {"question": 1, "more": 2}
    if name == "ask_human":
        return dice.pick(*QUESTIONS), dice.pick(*NO_QUESTIONS)
    if name == "final_output" and dice.contract:
        return dice.pick(*REPORTS), dice.pick(*NO_REPORTS)
    if name == "final_output":
        return {"n": dice.between(0, 9)}, dice.pick({"n": "?"}, {}, {"m": 1})
    return {"x": dice.between(0, 9)}, {"x": "?", "y": dice.between(0, 9)}


def _question(dice: Dice) -> list[Piece]:
    """A good one, mostly."""
    args, id_ = dice.pick(*QUESTIONS, *QUESTIONS, *NO_QUESTIONS[-2:]), dice.new_id()
    if args in QUESTIONS and id_ is not None:
        dice.asked[-1].append(id_)
    return call("ask_human", args, id_, raw=dice.chance(0.3))


def _call(dice: Dice, names: list[str]) -> list[Piece]:
    name = dice.pick(*names, *names, *names, "ghost")
    right, wrong = _right_and_wrong(dice, name)
    args, id_ = _args(dice, right, wrong), dice.new_id()
    if id_ is not None and (name == "ask" or (name == "ask_human" and args is right)):
        dice.asked[-1].append(id_)
    if isinstance(args, dict) and dice.chance(0.2):
        return call(name, args, id_, raw=True)
    sent = json.dumps(args) if isinstance(args, dict) else args
    if isinstance(sent, str) and len(sent) > 3 and dice.chance(0.4):
        middle = dice.between(1, len(sent) - 1)
        return fragments(name, [sent[:middle], sent[middle:]], id_)
    return call(name, sent, id_)


def _distinct_outputs(parts: list[list[Piece]]) -> None:
    """No two output calls of a response share an id: `Agent` takes them for one (see ``compare.DIFFERENCES``)."""
    seen: set[str | None] = set()
    for part in parts:
        if part[0][0] == "call" and part[0][2] == "final_output":
            if part[0][4] in seen:
                part[0][4] = None
            seen.add(part[0][4])


def _turn(dice: Dice, names: list[str], *, asks: bool = False) -> Turn:
    parts: list[list[Piece]] = []
    dice.asked.append([])
    if dice.chance(0.15):
        parts.append(thinking("hm", "m", signature=dice.pick(None, "sig")))
    if dice.chance(0.3):
        parts.append(text(*dice.pick(("",), ("So",), ("So", " it", " is"))))
    for _ in range(dice.pick(0, 0, 0, 1, 1, 2) if asks else dice.pick(0, 1, 1, 1, 2, 2, 3)):
        parts.append(_call(dice, names))
    if asks:
        parts.insert(dice.between(0, len(parts)), _question(dice))
    if dice.chance(0.1):
        parts.append(text("after"))
    if dice.chance(0.3):
        parts.append([["usage", dice.between(1, 9), dice.between(1, 9)]])
    if dice.chance(0.06):
        parts.insert(dice.between(0, len(parts)), dice.pick([["hang"]], [["error", dice.pick(*ERRORS)]]))
    _distinct_outputs(parts)
    opening: list[Piece] = [dice.pick(["hang"], ["error", dice.pick(*ERRORS)])] if dice.chance(0.03) else []
    finish = dice.pick("stop", "stop", "stop", "tool_call", None, "length", "content_filter")
    return turn(*parts, finish=finish, opening=opening)


def _interruption(dice: Dice) -> dict[str, Any]:
    """Every run has a deadline, because any of its tools may hang."""
    roll = dice.between(1, 20)
    if roll <= 3:
        return {"deadline": 101, "cancel_event": dice.between(1, 14)}
    if roll <= 5:
        return {"deadline": 101, "raise_event": dice.between(1, 14)}
    return {"deadline": 2 * dice.between(1, 10) + 1 if roll <= 7 else 101}


def _start(dice: Dice, first: bool) -> dict[str, Any]:
    """A prompt, results, or neither."""
    if first or dice.chance(0.2 if dice.session else 0.4):
        return {"prompt": "go"}
    start: dict[str, Any] = {"prompt": "more" if dice.chance(0.2) else None}
    if dice.session and any(dice.asked):
        start["results"] = dice.some_answers()
    elif dice.chance(0.8 if any(dice.asked) else 0.2):
        start["results"] = {id_: dice.pick("r", None, {"kind": "x"}) for id_ in dice.some_ids()}
    return start


def _run(dice: Dice, names: list[str], first: bool) -> Run:
    start = _start(dice, first)
    if not dice.keeps_pending(start):
        dice.asked.clear()
    turns = [_turn(dice, names, asks=True)] if "ask_human" in names and dice.chance(0.6) else []
    turns += [_turn(dice, names) for _ in range(dice.between(0, 5))]
    if dice.chance(0.2):
        start["instructions"] = dice.pick(["Be brief."], ["Be brief. ", "Be kind."])
    return Run(turns=turns, limit=dice.pick(4, 8, 500, 500), **start, **_interruption(dice))


def generate(seed: int, number: int) -> Scenario:
    """The scenario ``random-<seed>-<number>``."""
    dice = Dice(seed, number)
    tools = _tools(dice)
    output = _output(dice)
    names = [spec.name for spec in tools] + (["final_output"] if output else []) or ["ghost"]
    runs = [
        _run(dice, names, first=position == 0)
        for position in range(dice.between(2, 4) if dice.session else dice.between(1, 3))
    ]
    return Scenario(name=f"random-{seed}-{number}", tools=tools, output=output, runs=runs)
