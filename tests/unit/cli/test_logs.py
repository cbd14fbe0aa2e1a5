"""Logs carry tracebacks, and never what the frames held: that would be request headers, and tokens with them."""

import json
import subprocess
import sys

import pytest

FAILING = """
import logging, sys, structlog
from dify_agent.cli.logs import configure_logging
sys.stderr.isatty = lambda: {terminal}
configure_logging()
def handler(authorization):
    raise ValueError("no luck")
for logger in (structlog.get_logger(), logging.getLogger("dify_agent.http")):
    try:
        handler("Bearer s3cr3t-" + "token")
    except ValueError:
        logger.exception("a handler failed")
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_tracebacks_have_no_locals(terminal: bool) -> None:
    script = FAILING.format(terminal=terminal)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.count("no luck") >= 2
    assert "in handler" in run.stderr or '"handler"' in run.stderr
    assert "s3cr3t-token" not in run.stderr


def test_elsewhere_than_on_a_terminal_each_line_is_json() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAILING.format(terminal=False)], capture_output=True, text=True, check=True
    )
    records = [json.loads(line) for line in run.stderr.splitlines()]
    assert [record["event"] for record in records] == ["a handler failed", "a handler failed"]
    assert {record["level"] for record in records} == {"error"}
