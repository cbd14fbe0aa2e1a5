"""Installed packages for a server process: what an installer leaves behind, in a folder for ``PYTHONPATH``."""

import tomllib
from collections.abc import Mapping
from pathlib import Path


def install_package(folder: Path, pyproject: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Write modules and metadata as an installer does for this ``pyproject.toml``; returns the environment to use."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
    for name, source in modules.items():
        (folder / name).write_text(source)
    return {"PYTHONPATH": str(folder)}
