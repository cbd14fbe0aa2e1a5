"""The settings tables of README.md. ``python -m tests.docs.settings_table`` writes them anew."""

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

from dify_agent.settings import ServerSettings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
START = "<!-- settings: written by `python -m tests.docs.settings_table` -->\n"
END = "<!-- end of settings -->"
HEAD = "| Variable | Default | Meaning |\n|---|---|---|\n"
UNUSED = """
#### Settings without a use yet

Parsed and validated at the start, so that an invalid one stops it; nothing reads them yet.

"""

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
    """Both tables: one row per field, in the order of the class; those that nothing reads are in the second."""
    used = used_fields()
    unused = ServerSettings.model_fields.keys() - used
    return f"{_table(used)}{UNUSED}{_table(unused)}" if unused else _table(used)


def _table(names: Container[str]) -> str:
    rows = [
        f"| `{variable}` | {_default(ServerSettings.model_fields[name].default)} | "
        f"{ServerSettings.model_fields[name].description or ''} |\n"
        for name, variable in ServerSettings.variables().items()
        if name in names
    ]
    return HEAD + "".join(rows)


def _default(value: Any) -> str:
    if value is None or value in ("", ()):
        return "(empty)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    return f"`{value}`"


def written() -> str:
    """The tables as README.md has them."""
    return README.read_text().split(START)[1].split(END)[0]


def write() -> None:
    """Put the tables into README.md."""
    before, rest = README.read_text().split(START)
    README.write_text(before + START + render() + END + rest.split(END)[1])


if __name__ == "__main__":
    write()
