"""The settings table of README.md. ``python -m tests.docs.settings_table`` writes it anew."""

import re
from pathlib import Path
from typing import Any

from dify_agent.settings import ServerSettings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
START = "<!-- settings: written by `python -m tests.docs.settings_table` -->\n"
END = "<!-- end of settings -->"
UNUSED = "*Parsed and validated; not used yet.*"

_SETTINGS_MODULES = ("settings.py", "settings_checks.py")
_READ_THROUGH = {"shutdown_limit_seconds": "shutdown_limit"}
"""Fields that the program reads by a property."""


def used_fields() -> set[str]:
    """Fields that some module besides the settings themselves reads, as ``settings.<field>``."""
    sources = [
        path.read_text()
        for path in (ROOT / "src" / "dify_agent").rglob("*.py")
        if path.name not in _SETTINGS_MODULES or path.parent.name != "dify_agent"
    ]
    read = set(re.findall(r"\bsettings\.(\w+)", "\n".join(sources)))
    return {name for name in ServerSettings.model_fields if _READ_THROUGH.get(name, name) in read}


def render() -> str:
    """The table: one row per field, in the order of the class."""
    used = used_fields()
    lines = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, variable in ServerSettings.variables().items():
        field = ServerSettings.model_fields[name]
        meaning = (field.description or "") + ("" if name in used else f" {UNUSED}")
        lines.append(f"| `{variable}` | {_default(field.default)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None or value in ("", ()):
        return "(empty)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    return f"`{value}`"


def written() -> str:
    """The table as README.md has it."""
    return README.read_text().split(START)[1].split(END)[0]


def write() -> None:
    """Put the table into README.md."""
    before, rest = README.read_text().split(START)
    README.write_text(before + START + render() + END + rest.split(END)[1])


if __name__ == "__main__":
    write()
