"""Servers with a layer type that runs scripts: the package of `tests.server.sandbox_layer`, and its folder."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from tests.server.bodies import layer
from tests.server.harness import until
from tests.server.packages import install_package

PROJECT: Final = """
[project]
name = "acme-sandbox"
version = "1"
[project.entry-points."dify_agent.layers"]
"acme.sandbox" = "sandbox_layer:AcmeSandboxLayer"
"""


@dataclass(frozen=True)
class SandboxFolder:
    """What the server's sandbox works in. Made by `install_sandbox`."""

    folder: Path
    environment: dict[str, str]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls of ``dify-agent`` so far: ``arguments``, ``pid``, ``stub`` (its variables)."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def called(self, count: int) -> None:
        await until(lambda: len(self.calls) >= count, f"{count} calls of dify-agent")

    def forget(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)

    def running(self) -> list[int]:
        """The calls whose process lives."""
        return [call["pid"] for call in self.calls if _lives(call["pid"])]


def install_sandbox(folder: Path) -> SandboxFolder:
    """Write the package and the command into a fresh folder."""
    module, cli = (Path(__file__).with_name(name) for name in ("sandbox_layer.py", "sandbox_cli.py"))
    package = folder / "package"
    package.mkdir()
    (folder / "work").mkdir()
    command = folder / "bin" / "dify-agent"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{cli}" "$@"\n')
    command.chmod(0o755)
    environment = install_package(package, PROJECT, {module.name: module.read_text()})
    return SandboxFolder(folder, {**environment, "ACME_SANDBOX": str(folder)})


def sandboxed(*, shell: dict[str, Any] | None = None, **config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two layers: a sandbox with the config ``shell``, and `dify.config`, which depends on it."""
    bound = {**layer("config", "dify.config", **config), "deps": {"shell": "shell"}}
    return layer("shell", "acme.sandbox", **(shell or {})), bound


def _lives(pid: int) -> bool:
    try:
        # A killed child of a killed shell stays a zombie where the first process of a container waits for nobody.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
