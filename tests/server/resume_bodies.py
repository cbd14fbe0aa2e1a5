"""The create requests of the resume tests."""

from typing import Any, Final

from tests.server.bodies import HANG, calling, layer
from tests.server.resume_plans import REQUESTS, ROUNDS, Session, Stack

Turn = dict[str, Any]

SCHEMA: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
FAILURES: Final = {
    "enter": "the diary is stuck",
    "leave": "the diary is stuck",
    "leave question": "the diary is stuck",
    "leave resource": "the diary does not close",
    "leave resource question": "the diary does not close",
    "prepare": "the diary has no pen",
    "tools": "the tool is broken",
    "asked and tools": "the tool is broken",
    "silent": "the model is broken",
    "text": "the model is broken",
    "thinking": "the model is broken",
    "twice unknown": "exceeded max retries count of 1",
    "twice output": "Exceeded maximum output retries (1)",
    "twice policy": "exceeded max retries count of 1",
    "two questions": "ask_human supports exactly one deferred call per run in this version; got 2.",
    "question without history": "ask_human deferred tool requests require a 'history' layer",
}
"""What a failure says, by step."""

_ASK: Final = {"name": "ask_human", "args": {"question": "Which?"}}
_BREAK: Final = {"error": "the model is broken"}


def body(
    stack: Stack,
    turns: list[Turn],
    *,
    prompt: str,
    stuck: dict[str, Any] | None = None,
    diary: dict[str, Any] | None = None,
    snapshot: dict[str, Any] | None = None,
    results: dict[str, Any] | None = None,
) -> dict[str, Any]:
    quick = [{"name": name, "result": {"of": name, "in": prompt}} for name in ("quick_1", "quick_2")]
    layers = {
        "prompt": layer("prompt", "plain.prompt", prefix="Be brief.", user=prompt),
        "user_prompt": layer("user_prompt", "dify.user_prompt", text=prompt),
        "extra": layer("extra", "plain.prompt", prefix="Be kind.", suffix=["And", "exact."]),
        "history": layer("history", "pydantic_ai.history"),
        "output": layer("output", "dify.output", json_schema=SCHEMA),
        "ask_human": layer("ask_human", "dify.ask_human", enabled=stack.human == "on", max_fields=0),
        "context": layer("context", "dify.execution_context", tenant_id="t1", agent_mode="workflow_run"),
        "diary": layer("diary", "test.diary", **(diary or {})),
        "tools": layer("tools", "scripted.tools", tools=[*quick, {"name": "stuck", **(stuck or {"result": 1})}]),
        "llm": layer("llm", "scripted.model", turns=turns),
    }
    layers["context"]["config"]["invoke_from"] = "service-api"
    members: dict[str, Any] = {"composition": {"layers": [layers[name] for name in stack.order]}}
    if snapshot is not None:
        members["session_snapshot"] = snapshot
    if results is not None:
        members["deferred_tool_results"] = {"calls": results}
    return members


def final(stack: Stack, text: str) -> Turn:
    return calling("final_output", answer=text) if stack.output else {"text": text}


def output(stack: Stack, text: str) -> Any:
    return {"answer": text} if stack.output else text


def quick_calls(count: int) -> list[dict[str, Any]]:
    return [{"name": f"quick_{number}"} for number in range(1, count + 1)]


def tool_round(stack: Stack, count: int, entry: str) -> Turn:
    notes = [{"name": "note", "args": {"entry": entry}}] if stack.diary else []
    return {"tool_calls": [*notes, *quick_calls(count)]}


def asking() -> Turn:
    return {"tool_calls": [_ASK]}


def disturbed(session: Session) -> tuple[list[Turn], dict[str, Any], dict[str, Any]]:
    """The script, the tool that is in the way, and the diary's trouble."""
    hangs = session.ending in ("cancel", "deadline", "shutdown")
    stuck = HANG if hangs else {"error": "the tool is broken", "delay_ms": 5 if session.late else 0}
    rounds = [tool_round(session.stack, session.calls, f"round {number}") for number in range(ROUNDS)]
    turns = rounds[: session.round] + _strike(session, HANG if hangs else _BREAK)
    if session.step.split()[0] in ("enter", "leave", "prepare"):
        asks = session.step.endswith("question")
        turns = [*rounds, _question(session) if asks else final(session.stack, "never mind")]
    return turns, stuck, _trouble(session, hangs)


def _strike(session: Session, stop: Turn) -> list[Turn]:
    step = session.step
    beside = quick_calls(session.beside)
    if step in REQUESTS:
        extra = {"silent": {}, "text": {"after_chunks": 3, "chunk": "half "}, "thinking": {"thinking": "Hm."}}
        return [{**stop, **extra[step]}]
    if step.startswith("retry"):
        return [_bad(session), stop]
    if step.startswith("twice"):
        return [_bad(session), _bad(session)]
    if step == "two questions":
        return [{"tool_calls": [_ASK, *beside, _ASK]}]
    if step in ("question", "question without history"):
        return [asking()]
    if step == "question and tools":
        return [_question(session)]
    beside.insert(session.position, {"name": "stuck"})
    if step == "asked and tools":
        beside.insert(session.position // 2, _ASK)
    return [{"tool_calls": beside}]


def _question(session: Session) -> Turn:
    """A question among the session's other calls."""
    calls = quick_calls(session.beside)
    calls.insert(session.position, _ASK)
    return {"tool_calls": calls}


def _bad(session: Session) -> Turn:
    """A turn that is answered with a retry prompt. A disabled question tool is an unknown one."""
    match session.step.split()[-1]:
        case "output":
            return calling("final_output", answer=7)
        case "policy":
            return calling("ask_human", question="Which?", fields=[{"type": "paragraph", "name": "a", "label": "A"}])
        case _:
            return asking() if session.stack.human == "off" else calling("no_such")


def _trouble(session: Session, hangs: bool) -> dict[str, Any]:
    hook = {"cancel": "gate", "failure": "fail"}.get(session.ending, "hang")
    match session.step.removesuffix(" question"):
        case "enter" | "leave" as moment:
            return {moment: hook}
        case "leave stubborn":
            return {"leave": "stubborn"}
        case "leave resource":
            return {"resource": "fail"}
        case "prepare":
            return {"prepare": "fail"}
    return {}
