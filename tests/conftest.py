"""What every test gets: an absolute time limit (pytest-timeout), a leak check, and loud skips."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

LONGEST_FIRST = ("server", "oracle", "doctor", "docs", "model", "chaos")
"""Folders of tests that wait for processes. Last, one worker would be left alone with the longest of them."""
ENABLE_REDIS = "apt-get install redis-server && make test-all"


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test that leaves a thread behind has left work behind.

    Trio keeps idle worker threads for a while; they wait for work and do none.
    """
    before = set(threading.enumerate())
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and not thread.name.startswith("Trio thread")
    ]
    for thread in left:
        thread.join(1)  # one that was just told to end
    left = [thread for thread in left if thread.is_alive() and not thread.name.startswith("Trio thread")]
    assert not left, f"threads left running: {left}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take long first; within them and among the others the order stays."""
    tests = Path(__file__).parent
    place = {tests / folder: number for number, folder in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: min((place.get(parent, len(place)) for parent in item.path.parents), default=0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped, each with the command that enables it."""
    skipped = terminalreporter.stats.get("skipped", [])
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"!! SKIPPED {report.nodeid}: {reason}", yellow=True, bold=True)
