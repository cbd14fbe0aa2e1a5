"""The table and ``build/bench.json``."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.figures import FIGURES, Figure, Reading

BUILD = Path(__file__).parents[1] / "build"
_VERDICTS = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}


def show(console: Console, readings: Mapping[str, Reading], keys: Collection[str]) -> None:
    """Print the asked figures with their targets."""
    table = Table(title="Costs; only the ratios travel to other machines", title_justify="left")
    for heading in ("figure", "value", "target", ""):
        table.add_column(heading, justify="right" if heading in ("value", "target") else "left", no_wrap=True)
    table.add_column("meaning [dim](lowest–highest sample, or parts)[/]")
    for figure in FIGURES:
        if figure.key in keys:
            table.add_row(*_row(figure, readings.get(figure.key)))
    console.print(table)


def _row(figure: Figure, reading: Reading | None) -> tuple[str, ...]:
    if reading is None:
        return figure.key, "–", figure.bound, "[red]not measured[/]", figure.meaning
    value = f"{_rounded(reading.value):g} {figure.unit}".rstrip()
    note = f" [dim]({reading.note})[/]" if reading.note else ""
    return figure.key, value, figure.bound, _VERDICTS[figure.met(reading.value)], figure.meaning + note


def write(readings: Mapping[str, Reading], keys: Collection[str]) -> Path:
    """Write the asked figures, flat, to ``build/bench.json``."""
    BUILD.mkdir(exist_ok=True)
    path = BUILD / "bench.json"
    values = {f.key: _rounded(readings[f.key].value) for f in FIGURES if f.key in keys and f.key in readings}
    path.write_text(json.dumps(values, indent=2) + "\n")
    return path


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
