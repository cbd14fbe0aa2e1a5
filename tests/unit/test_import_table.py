"""The dependency direction: docs/architecture.md, "Who may import whom". An arrow that the table lacks fails.

import-linter holds the prohibitions by name, indirect imports included; this test is the other half: it also fails
for a package that nobody thought of when the contracts were written.
"""

import grimp
import pytest

OPEN = frozenset({"errors", "concurrency"})
"""Open to all below ``agenton*``."""

OUTBOUND = frozenset({"backends.transport", "backends.replies", "backends.redaction"})

TABLE: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "concurrency": frozenset(),
    "protocol": frozenset({"agenton"}),
    "metrics": frozenset(),
    "settings": frozenset({"settings_checks"}),
    "settings_checks": frozenset(),
    "store": frozenset({"protocol"}),
    "doctor": frozenset({"protocol", "store"}),
    "events": frozenset({"protocol"}),
    "backends": frozenset({"protocol"}),
    "loop": frozenset({"protocol"}),
    "model": frozenset({"loop.port", "protocol", "backends.pool", *OUTBOUND}),
    "layers": frozenset({"agenton", "agenton_collections", "protocol", "loop.port", "model", *OUTBOUND}),
    "actors": frozenset({"layers.registry", "loop", "events", "store.base", "agenton", "protocol", "metrics"}),
    "supervisor": frozenset({"actors", "store.base", "protocol", "metrics"}),
    "http": frozenset({"supervisor.handle", "events", "store.base", "protocol", "metrics"}),
}
COMPOSITION = frozenset({"main", "cli", "server", "testing", "__main__"})
"""May import everything; ``main`` and ``cli`` are the only ones that name concrete variants."""


@pytest.fixture(scope="module")
def arrows() -> list[tuple[str, str]]:
    """Importer and imported module of every direct import among our packages, without the common prefix."""
    graph = grimp.build_graph("dify_agent", "agenton", "agenton_collections")
    return [
        (importer.removeprefix("dify_agent."), imported.removeprefix("dify_agent."))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    ]


def allowed(importer: str, imported: str) -> bool:
    room, target = importer.split(".", maxsplit=1)[0], imported.split(".", maxsplit=1)[0]
    if room == target or room in COMPOSITION or target in OPEN:
        return True
    return any(imported == entry or imported.startswith(f"{entry}.") for entry in TABLE[room])


def test_agenton_imports_nothing_of_ours(arrows: list[tuple[str, str]]) -> None:
    for importer, imported in arrows:
        if importer.startswith("agenton_collections"):
            assert imported.startswith("agenton"), (importer, imported)
        elif importer.startswith("agenton"):
            assert imported.startswith("agenton.") or imported == "agenton", (importer, imported)


def test_every_arrow_is_in_the_table(arrows: list[tuple[str, str]]) -> None:
    inner = [(a, b) for a, b in arrows if not a.startswith("agenton") and a != "dify_agent"]
    assert inner
    rooms = {importer.split(".")[0] for importer, _ in inner}
    assert rooms <= TABLE.keys() | COMPOSITION, "a new package needs a row"
    assert [arrow for arrow in inner if not allowed(*arrow)] == []


def test_the_table_itself_refuses() -> None:
    assert not allowed("http.runs", "actors.run_actor")
    assert not allowed("actors.work", "layers.scripted_model.layer")
    assert not allowed("model.scripted", "loop.run")
    assert allowed("actors.work", "layers.registry")
