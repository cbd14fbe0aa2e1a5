"""Says where two records of a scenario differ, apart from what may differ."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Rule = Callable[[list[Record], list[Record]], bool]


@dataclass(frozen=True)
class Difference:
    """A deliberate difference between the loop and `Agent`."""

    what: str
    why: str
    scenario: str | None = None
    """The hand-written scenario that shows it; None when no scenario can (``seen_in`` says where it is tested)."""
    holds: Rule | None = None
    """Given the runs of `Agent` and of the loop: whether they differ in exactly this way."""
    seen_in: str = ""


def _retried_instead_of_crash(agent: list[Record], loop: list[Record]) -> bool:
    results = [event for event in loop[0]["events"] if event["event_kind"] == "function_tool_result"]
    return (
        agent[0]["outcome"].get("error") == "TypeError"
        and "output" in loop[0]["outcome"]
        and [event["part"]["outcome"] for event in results] == ["retried"]
        and loop[0]["tools"] == []
    )


def _fewer_instruction_parts(agent: list[Record], loop: list[Record]) -> bool:
    kept = [run[0]["requests"][0]["parameters"].pop("instruction_parts") for run in (agent, loop)]
    return [[part["content"] for part in parts] for parts in kept] == [["Be brief.", "  "], ["Be brief."]] and not list(
        _walk("runs", normalise(agent), normalise(loop))
    )


def _second_output_unused(agent: list[Record], loop: list[Record]) -> bool:
    said = [[part["content"] for part in run[0]["messages"][-1]["parts"]] for run in (agent, loop)]
    accepted, unused = "Final result processed.", "Output tool not used - a final result was already processed."
    return said == [[accepted, accepted], [accepted, unused]] and agent[0]["outcome"] == loop[0]["outcome"]


DIFFERENCES = (
    Difference(
        "Arguments that are not a JSON object are a retry, also for a tool made of a bare JSON Schema",
        "`Agent` validates nothing there and ends the run with a TypeError that the model could have corrected",
        scenario="args_array_on_schema_tool",
        holds=_retried_instead_of_crash,
    ),
    Difference(
        "Error texts of the loop have a second sentence of their own",
        "`Agent`'s points at its own API and documentation; the first sentence is the contract",
        seen_in="normalised in compare.py",
    ),
    Difference(
        "Results of calls beyond `tool_concurrency` come later",
        "`Agent` starts every call of a response at once; a server bounds them",
        seen_in="test_native.py",
    ),
    Difference(
        "`usage.cost` stays null",
        "`Agent` fills it from a bundled price list for models it knows; prices are the gateway's",
    ),
    Difference(
        "The ids in `Expected: {...}, got: {...}` are sorted",
        "`Agent` prints Python sets, whose order differs between processes",
        seen_in="normalised in compare.py",
    ),
    Difference(
        "Whitespace-only instruction fragments are dropped",
        "`Agent` keeps them as parts; the compositor drops them before the loop sees them",
        scenario="instructions_whitespace",
        holds=_fewer_instruction_parts,
    ),
    Difference(
        "A second output call with the id of the accepted one is not used",
        "`Agent` tells calls apart by id, so it reports the second one as accepted whatever its arguments are",
        scenario="output_same_id_twice",
        holds=_second_output_unused,
    ),
    Difference(
        "A response whose state is `suspended` fails the run",
        "`Agent` polls for the rest. Only provider-side tools and background settings cause it; neither is sent",
        seen_in="test_native.py",
    ),
    Difference(
        "Retried results are published in their `retry-prompt` form",
        "Older callers reject the new form; the mapping is made behind the loop, whose own events agree with `Agent`",
    ),
    Difference(
        "A response of more than 1,000 tool calls fails the run",
        "`Agent` executes them all; a model that repeats itself would fill memory, the log and every later request",
        seen_in="tests/unit/loop/test_bounds.py",
    ),
    Difference(
        "The text about an unknown tool lists names up to 4,000 characters, then `…`",
        "`Agent` lists them all in the result of each such call: hundreds of megabytes for many tools and calls",
        seen_in="tests/unit/loop/test_bounds.py",
    ),
)

_EXPECTED = {row.scenario: row for row in DIFFERENCES if row.scenario is not None}
_FIRST_SENTENCES = (
    re.compile(r"(Tool '[^']*' exceeded max retries count of \d+)\. .*"),
    re.compile(r"(The next request would exceed the request_limit of \d+)\. .*"),
    re.compile(r"(Cannot provide a new user prompt when the message history contains unprocessed tool calls)\. .*"),
    re.compile(r"(A deferred tool call was present, but `DeferredToolRequests` is not among output types)\. .*"),
)
_GENERATED = re.compile(r"pyd_ai_[0-9a-zA-Z_-]+")
_SET = re.compile(r"\{('[^']*'(?:, '[^']*')*)\}")
_VOLATILE = {"timestamp", "model_id"}
_NUMBERED = {"run_id", "conversation_id"}


class _Normaliser:
    """Replaces what legitimately differs between two processes."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def _number(self, kind: str, value: str) -> str:
        return self._ids.setdefault(value, f"{kind}{sum(v.startswith(kind) for v in self._ids.values())}")

    def text(self, value: str) -> Any:
        head, separator, body = value.partition(", body:\n")
        if separator:
            return [head, self.value(json.loads(body))]
        value = _GENERATED.sub(lambda match: self._number("gen", match[0]), value)
        return _SET.sub(lambda match: "{" + ", ".join(sorted(match[1].split(", "))) + "}", value)

    def member(self, key: str, value: Any) -> Any:
        if value is None:
            return None
        if key in _VOLATILE:
            return "*"
        return self._number(key, value) if key in _NUMBERED else self.value(value)

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.member(key, item) for key, item in value.items() if key != "toolset_id"}
        return value


def _outcomes(agent: list[Record], loop: list[Record]) -> None:
    """Reduce error texts to their contract, and forget causes where `Agent`'s is one of its internals."""
    for mine, theirs in zip(agent, loop, strict=True):
        if mine["outcome"].get("cause") == "*":
            mine["outcome"]["cause"] = theirs["outcome"]["cause"] = None
        for outcome in (mine["outcome"], theirs["outcome"]):
            for pattern in _FIRST_SENTENCES:
                if isinstance(outcome.get("text"), str):
                    outcome["text"] = pattern.sub(r"\1", outcome["text"])


def normalise(answer: Any) -> Any:
    """A side's answer with times, ids and set orders replaced."""
    return _Normaliser().value(answer)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _walk(path: str, agent: Any, loop: Any) -> Iterator[str]:
    if isinstance(agent, dict) and isinstance(loop, dict):
        for key in sorted(agent.keys() | loop.keys(), key=str):
            yield from _walk(f"{path}.{key}", agent.get(key, "(absent)"), loop.get(key, "(absent)"))
    elif isinstance(agent, list) and isinstance(loop, list):
        for position, (left, right) in enumerate(zip(agent, loop, strict=False)):
            yield from _walk(f"{path}[{position}]", left, right)
        for position in range(len(loop), len(agent)):
            yield f"{path}[{position}]: only Agent has {_short(agent[position])}"
        for position in range(len(agent), len(loop)):
            yield f"{path}[{position}]: only the loop has {_short(loop[position])}"
    elif type(agent) is not type(loop) or agent != loop:
        yield f"{path}: Agent {_short(agent)}, the loop {_short(loop)}"


def _holds(rule: Rule, agent: list[Record], loop: list[Record]) -> bool:
    try:
        return rule(copy.deepcopy(agent), copy.deepcopy(loop))
    except (LookupError, TypeError):  # a record without what the rule looks at
        return False


def differences(name: str, agent: Record, loop: Record) -> list[str]:
    """Where the two answers differ; empty when they agree or differ as they should."""
    for side, answer in (("Agent", agent), ("the loop", loop)):
        if "crash" in answer:
            return [f"{side} crashed: {answer['crash']}"]
        if any("stuck" in run["outcome"] for run in answer["runs"]):
            return [f"{side} never ended"]
    row = _EXPECTED.get(name)
    if row is None or row.holds is None:
        runs = normalise(agent["runs"]), normalise(loop["runs"])
        _outcomes(*runs)
        return list(_walk("runs", *runs))
    return [] if _holds(row.holds, agent["runs"], loop["runs"]) else [f"not the expected difference: {row.what}"]
