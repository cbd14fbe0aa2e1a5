"""The cast of the hand-written scenarios, and a short way to write one."""

from typing import Any

from tests.oracle.scenario import OutputSpec, Run, Scenario, Step, ToolSpec, Turn

N_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OUTPUT = OutputSpec(json_schema=N_SCHEMA)
REPORT = OutputSpec(
    kind="contract",
    description="The report",
    json_schema={
        "type": "object",
        "description": "Not this one.",
        "properties": {
            "title": {"type": "string", "minLength": 1},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
            "score": {"$ref": "#/$defs/score", "minimum": 0},
        },
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {
            "row": {"type": "object", "properties": {"name": {"$ref": "#/$defs/name"}}, "required": ["name"]},
            "name": {"type": "string", "pattern": "^[a-z]+$"},
            "score": {"type": "integer", "minimum": 5},
        },
    },
)
"""A contract of the layer `dify.output`. The model is shown a smaller minimum of ``score`` than holds."""


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


def human(**config: Any) -> ToolSpec:
    """The tool ``ask_human`` of the layer `dify.ask_human`, configured so."""
    return ToolSpec(name="ask_human", kind="human", config=config)


A = tool("a")
B = tool("b")
S = tool("s", sequential=True)
Z = tool("z", kind="open")
ASK = ask()
HUMAN = human()


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
