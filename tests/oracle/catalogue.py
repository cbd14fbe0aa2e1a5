"""The cast of the hand-written scenarios, and a short way to write one."""

from typing import Any

from tests.oracle.scenario import OutputSpec, Run, Scenario, Step, ToolSpec, Turn

N_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OUTPUT = OutputSpec(json_schema=N_SCHEMA)


def tool(name: str, *calls: list[Step], **options: Any) -> ToolSpec:
    """A tool with a script per call; without one it returns ``<name> ok``."""
    return ToolSpec(name=name, calls=list(calls) or [[["return", f"{name} ok"]]], **options)


def after(ticks: float, *steps: Step) -> list[Step]:
    """A call that waits first."""
    return [["delay", ticks], *steps]


def ret(value: Any) -> Step:
    """Return ``value``."""
    return ["return", value]


def retry(message: str = "try harder") -> Step:
    """Ask the model for another attempt."""
    return ["retry", message]


def ask(*checks: list[Step]) -> ToolSpec:
    """The external tool, with a script per argument check."""
    return ToolSpec(name="ask", kind="external", check=list(checks) or None)


A = tool("a")
B = tool("b")
S = tool("s", sequential=True)
Z = tool("z", kind="open")
ASK = ask()


def scenario(
    name: str,
    turns: list[Turn],
    *more: Run,
    tools: list[ToolSpec] | None = None,
    output: OutputSpec | bool = False,
    ask: bool = False,
    **run: Any,
) -> Scenario:
    """A scenario whose first run has these turns and options; ``more`` are the runs behind it."""
    return Scenario(
        name=name,
        tools=[*(tools or []), *([ASK] if ask else [])],
        output=(OUTPUT if output else None) if isinstance(output, bool) else output,
        runs=[Run(turns=turns, **run), *more],
    )
