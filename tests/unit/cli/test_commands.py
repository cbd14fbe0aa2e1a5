"""The command line itself."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from dify_agent.cli.commands import app


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout) == (0, version("dify-agent-trio") + "\n")


def test_without_a_command_it_shows_help() -> None:
    done = CliRunner().invoke(app, [])
    assert "serve" in done.output
    assert "--report-fd" not in CliRunner().invoke(app, ["dev", "--help"]).output


@pytest.mark.parametrize("arguments", [["sreve"], ["serve", "--port", "x"], ["serve", "--port", "65536"]])
def test_a_wrong_command_line_is_status_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("module", ["dify_agent", "dify_agent.cli"])
def test_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == version("dify-agent-trio")
