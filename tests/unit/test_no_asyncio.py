"""``src`` runs on Trio: no module imports asyncio or a bridge to it, directly or by name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
BANNED = frozenset({"asyncio", "trio_asyncio", "sniffio_asyncio", "uvloop", "nest_asyncio"})
MODULES = sorted(SRC.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of all modules a source imports, also by ``__import__`` and ``import_module`` with a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in ("__import__", "import_module"):
                yield str(node.args[0].value)


def banned(source: str) -> set[str]:
    return {name.split(".")[0] for name in imported(ast.parse(source))} & BANNED


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 50


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_no_asyncio(path: Path) -> None:
    assert banned(path.read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import asyncio.events as e",
        "def f():\n    from asyncio import run",
        "import trio, trio_asyncio",
        "import importlib\nimportlib.import_module('asyncio')",
        "__import__('asyncio')",
    ],
)
def test_the_check_sees_it(source: str) -> None:
    assert banned(source)
