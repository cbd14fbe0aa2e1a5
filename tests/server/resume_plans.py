"""What a session of the resume tests is like: its layers, its earlier runs, and how the disturbed run ends."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from hypothesis import strategies as st

Ending = Literal["cancel", "deadline", "shutdown", "failure", "question"]
Human = Literal["none", "on", "off"]

ROUNDS: Final = 3
"""Tool rounds of a disturbed run, if it gets so far; then comes its final answer."""

REQUESTS: Final = ("silent", "text", "thinking")
"""Strikes while the model answers: before its first token, and after some of its text or thinking."""
_INTERRUPTIBLE: Final = (
    *("enter", "tools", "tools", "asked and tools", "leave", "leave question", "leave question", *REQUESTS),
    *("retry unknown", "retry output", "retry policy"),
)
STEPS: Final[dict[Ending, tuple[str, ...]]] = {
    "cancel": _INTERRUPTIBLE,
    "deadline": (*_INTERRUPTIBLE, "leave stubborn", "leave stubborn question"),
    "shutdown": _INTERRUPTIBLE,
    "failure": (
        *("enter", "prepare", "tools", "asked and tools", "leave", "leave question", *REQUESTS),
        *("leave resource", "leave resource question"),
        *("twice unknown", "twice output", "twice policy", "two questions", "question without history"),
    ),
    "question": ("question", "question and tools"),
}
"""Where each ending can strike. ``retry``: after a retry prompt; ``twice``: its answer is as bad. ``leave``: while the
layers leave, with the final answer or, ``leave … question``, with a question that the ending puts to nobody."""


@dataclass(frozen=True)
class Stack:
    """The composition, which a session keeps."""

    order: tuple[str, ...]
    human: Human

    @property
    def history(self) -> bool:
        return "history" in self.order

    @property
    def output(self) -> bool:
        return "output" in self.order

    @property
    def diary(self) -> bool:
        return "diary" in self.order


@dataclass(frozen=True)
class Session:
    """One example. ``pending``: the run before the disturbed one asked, and the disturbed run brings the answer."""

    stack: Stack
    earlier: tuple[Literal["plain", "asked"], ...]
    pending: bool
    ending: Ending
    step: str
    round: int
    """How many tool rounds the disturbed run has behind it when the ending strikes."""
    calls: int
    """Quick calls in each round, 1 or 2, besides the diary's."""
    beside: int
    """Quick calls beside the one that hangs or fails: 0 to 2."""
    position: int
    """Where among them that one is."""
    late: bool
    """Whether a failing tool fails after the others are done."""

    @property
    def entered(self) -> bool:
        return self.step != "enter"

    @property
    def leaves(self) -> bool:
        """Whether the ending strikes while the layers leave."""
        return self.step.startswith("leave")

    @property
    def captured(self) -> bool:
        """Whether the agent loop had begun."""
        return self.step not in ("enter", "prepare")

    @property
    def leaves_snapshot(self) -> bool:
        return self.step not in ("enter", "leave stubborn", "leave stubborn question")


def needed(step: str) -> dict[str, bool]:
    """The layers that a step must have, or must not have."""
    needs: dict[str, bool] = {}
    if step.split(maxsplit=1)[0] in ("enter", "leave", "prepare"):
        needs["diary"] = True
    if "output" in step:
        needs["output"] = True
    if any(word in step for word in ("question", "asked", "policy")):
        needs["human"] = True
    if "question" in step:
        needs["history"] = step != "question without history"
    return needs


@st.composite
def stacks(draw: st.DrawFn, step: str, *, answers: bool) -> Stack:
    """A legal composition for a step, in any order; with all that a question needs when runs ask one."""
    needs = needed(step) | ({"human": True, "history": True} if answers else {})

    def has(name: str) -> bool:
        return needs[name] if name in needs else draw(st.booleans())

    names = ["llm", "tools", *draw(st.sampled_from([["prompt"], ["user_prompt"], ["prompt", "user_prompt"]]))]
    names += [name for name in ("history", "output", "diary", "context", "extra") if has(name)]
    human: Human = "on" if needs.get("human") else draw(st.sampled_from(["none", "on", "off"]))
    if human != "none":
        names.append("ask_human")
    return Stack(tuple(draw(st.permutations(names))), human)


@st.composite
def sessions(draw: st.DrawFn, ending: Ending) -> Session:
    """Any session with this ending."""
    step = draw(st.sampled_from(STEPS[ending]))
    can_ask = step != "question without history" and draw(st.booleans())
    earlier: list[Any] = draw(st.lists(st.sampled_from(["plain", "asked"] if can_ask else ["plain"]), max_size=2))
    pending = can_ask and draw(st.booleans())
    return Session(
        stack=draw(stacks(step, answers=pending or "asked" in earlier)),
        earlier=tuple(earlier),
        pending=pending,
        ending=ending,
        step=step,
        round=draw(st.integers(0, ROUNDS if step in REQUESTS else ROUNDS - 1)),
        calls=draw(st.integers(1, 2)),
        beside=draw(st.integers(0, 2)),
        position=draw(st.integers(0, 2)),
        late=draw(st.booleans()),
    )


def sweep(ending: Ending) -> list[Session]:
    """Every step of an ending: in the middle of a session with every layer, and at the start of one with few."""
    return [session for step in dict.fromkeys(STEPS[ending]) for session in _swept(ending, step)]


def _swept(ending: Ending, step: str) -> list[Session]:
    needs = needed(step)
    every = ["prompt", "ask_human", "output", "context", "extra", "diary", "tools", "user_prompt", "llm"]
    asks = needs.get("history", True)
    if asks:
        every.insert(1, "history")
    names = sorted({"human": "ask_human"}.get(name, name) for name, wanted in needs.items() if wanted)
    few = Stack(("llm", *names, "prompt", "tools"), "on" if "human" in needs else "none")
    return [
        Session(Stack(tuple(every), "on"), ("plain",), asks, ending, step, 1, calls=2, beside=2, position=1, late=True),
        Session(few, (), False, ending, step, 1, calls=1, beside=1, position=0, late=False),
    ]
