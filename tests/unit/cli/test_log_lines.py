"""Which lines a replica says on stderr, and that both logging systems say them in one form."""

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, structlog
from dify_agent.cli.logs import configure_logging
configure_logging()
log = structlog.get_logger()
{body}
"""


def said(body: str) -> list[dict[str, Any]]:
    """The lines, each as its object. In a process of its own: logging is configured once for all."""
    program = PROGRAM.format(body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "", "stdout is not for logs"
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.slow
def test_both_systems_say_it_in_one_form() -> None:
    ours, theirs = said("log.info('hello', run_id='1'); logging.getLogger('other').warning('from %s', 'lib')")
    assert (ours["event"], ours["run_id"], ours["level"]) == ("hello", "1", "info")
    assert (theirs["event"], theirs["level"]) == ("from lib", "warning")
    assert ours["timestamp"].endswith("Z")
    assert theirs["timestamp"].endswith("Z")


@pytest.mark.slow
def test_levels() -> None:
    assert said("log.debug('x'); logging.getLogger('other').info('y')") == []
    assert [line["event"] for line in said("log.info('x'); logging.getLogger('other').warning('y')")] == ["x", "y"]
