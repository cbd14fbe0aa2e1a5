"""Which step of the script answers a request, and the counts that this needs."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from dify_agent.testing.script import (
    CoreToolStep,
    CountBy,
    FileStep,
    JsonStep,
    KnowledgeStep,
    LlmRule,
    LlmStep,
    Rule,
    Script,
    Step,
    ToolStep,
)

COUNTED_RUNS: Final = 100_000
"""Runs whose calls are counted; of more, those that called least recently are forgotten."""

StepT = TypeVar("StepT", bound=Step)
RuleT = TypeVar("RuleT", bound=Rule[Any])


class Call(NamedTuple):
    """What is known of a model call."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    agent_run_id: str | None = None
    call_index: int | None = None


class Chooser:
    """A script and how far it has been played."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._asked: Counter[tuple[str, int]] = Counter()
        self._calls: OrderedDict[tuple[int, str], int] = OrderedDict()

    def restart(self) -> None:
        """Play the script from its beginning."""
        self._asked.clear()
        self._calls.clear()

    def llm(self, call: Call) -> tuple[LlmStep, int]:
        """The step for a model call, and which call of its run it is."""
        prompt = last_user_text(call.messages)
        for place, rule in enumerate(self.script.llm):
            if rule.model in (None, call.model) and (rule.prompt_contains or "") in prompt:
                number = self._number(place, rule, call)
                return rule.step(number), number
        return LlmStep(), call.call_index or calls_since_prompt(call.messages)

    def tool(self, tool: str) -> ToolStep:
        """The step for a plugin tool."""
        return self._next("tools", self.script.tools, lambda rule: rule.tool in (None, tool)) or ToolStep()

    def core_tool(self, tool: str) -> CoreToolStep:
        """The step for a core tool."""
        rules = self.script.core_tools
        return self._next("core_tools", rules, lambda rule: rule.tool in (None, tool)) or CoreToolStep()

    def knowledge(self, datasets: Sequence[str]) -> KnowledgeStep:
        """The step for a retrieval."""
        rules = self.script.knowledge
        return self._next("knowledge", rules, lambda rule: rule.dataset in (None, *datasets)) or KnowledgeStep()

    def file(self, reference: str, default: FileStep) -> FileStep:
        """The step for a file."""
        return self._next("files", self.script.files, lambda rule: rule.reference in (None, reference)) or default

    def stub(self, path: str) -> JsonStep:
        """The step for a request of the Agent Stub, or of a sandbox."""
        return self._next("agent_stub", self.script.agent_stub, lambda rule: (rule.path or "") in path) or JsonStep()

    def _next(self, kind: str, rules: Sequence[RuleT], matches: Callable[[RuleT], bool]) -> Any:
        for place, rule in enumerate(rules):
            if matches(rule):
                self._asked[kind, place] += 1
                return rule.step(self._asked[kind, place])
        return None

    def _number(self, place: int, rule: LlmRule, call: Call) -> int:
        if rule.count_by is CountBy.HISTORY or call.agent_run_id is None or call.call_index is None:
            return calls_since_prompt(call.messages)
        if rule.count_by is CountBy.CALL_INDEX:
            return call.call_index
        key = (place, call.agent_run_id)
        self._calls[key] = number = self._calls.pop(key, 0) + 1
        if len(self._calls) > COUNTED_RUNS:
            self._calls.popitem(last=False)
        return number


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last user message, its text parts joined; empty where there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                return "".join(str(part.get("data", "")) for part in content if _is_text(part))
            return content if isinstance(content, str) else ""
    return ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def calls_since_prompt(messages: Sequence[Mapping[str, Any]]) -> int:
    """Which model call behind the last user message this is, from 1."""
    number = 1
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        number += message.get("role") == "assistant"
    return number
