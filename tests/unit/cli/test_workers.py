"""The parent of `serve --workers`: what it does when its children end, or cannot be started.

Real processes, but small ones. With real replicas: tests/server/test_workers.py.
"""

import itertools
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from structlog.typing import EventDict

from dify_agent.cli.workers import BUDGET, Inherited, Workers
from dify_agent.metrics import SHARED_FOLDER
from dify_agent.supervisor.specs import RestartBudget

SECONDS = 20
QUICK = RestartBudget(restarts=10, seconds=60, first_pause_seconds=0.001, most_pause_seconds=0.01)
"""The budget of workers, without its pauses."""

CHILD = """
import os, pathlib, signal, sys
number, report = map(int, sys.argv[1].split(":")[:2])
folder = pathlib.Path(sys.argv[2])
kind = folder / f"kind-{number}"
kind = kind.read_text() if kind.exists() else "listen"

def told(signal_number, _frame):
    with (folder / f"told-{number}").open("a") as file:
        file.write(signal.Signals(signal_number).name + "\\n")
    if kind != "drain" or signal_number == signal.SIGINT:
        os._exit(0)

for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(signal_number, told)
with (folder / f"starts-{number}").open("a") as starts:
    first = not starts.tell()
    starts.write(f"{os.getpid()}\\n")
if kind == "fail" or kind == "fail once" and first:
    sys.exit(1)
if kind == "killed once" and first or kind == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
os.write(report, b"1\\n")
if kind == "end":
    sys.exit(5)
while True:
    signal.pause()
"""


class Stage:
    """A folder that says what each child does, and the parent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tell, self.signals = trio.open_memory_channel[int](1)
        self.status: int | None = None
        self.logs: list[EventDict] = []

    def kind(self, number: int, what: str) -> None:
        (self.folder / f"kind-{number}").write_text(what)

    def starts(self, number: int) -> list[int]:
        path = self.folder / f"starts-{number}"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def told(self, number: int) -> list[str]:
        """The signals that it was sent, by name."""
        path = self.folder / f"told-{number}"
        return path.read_text().splitlines() if path.exists() else []

    def was_told(self, number: int) -> bool:
        return bool(self.told(number))

    def said(self, event: str) -> list[EventDict]:
        return [entry for entry in self.logs if entry["event"] == event]


async def until(condition) -> None:
    with trio.fail_after(SECONDS):
        while not condition():  # noqa: ASYNC110  Another process has no event.
            await trio.sleep(0.005)


@asynccontextmanager
async def parent(it: Stage, count: int, budget: RestartBudget = QUICK) -> AsyncIterator[None]:
    def command(inherited: Inherited) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", CHILD, str(inherited), str(it.folder)]

    environment = {**os.environ, SHARED_FOLDER: str(it.folder)}
    with socket.socket() as sock, capture_logs() as it.logs:
        sock.bind(("127.0.0.1", 0))
        workers = Workers(count, [sock], environment, stop_seconds=0.5, command=command, budget=budget)

        async def run() -> None:
            it.status = await workers.run(it.signals)

        with trio.fail_after(SECONDS), it.tell, it.signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                yield


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many more; below 0: none, whatever is closed meanwhile."""
    used = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if number not in used)
    limit = next(itertools.islice(free, count, None)) if count >= 0 else 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as entries:
        numbers = {int(entry.name) for entry in entries}
    return {number for number in numbers if os.path.lexists(f"/proc/self/fd/{number}")}


def test_ten_times_within_a_minute_are_not_too_many() -> None:
    assert (BUDGET.restarts, BUDGET.seconds) == (QUICK.restarts, QUICK.seconds) == (10, 60)


@pytest.mark.slow
async def test_one_that_ends_more_than_ten_times_stops_all_with_status_70(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    it.kind(1, "end")
    async with parent(it, 2):
        pass
    assert it.status == 70
    assert len(it.starts(1)) == 11
    assert len(it.starts(2)) == 1
    assert it.was_told(2)
    (told,) = [entry for entry in it.logs if entry["log_level"] == "critical"]
    assert told["event"] == "a worker ends again and again, all are stopped"
    assert (told["worker"], told["status"]) == (1, 5)
    assert told["problem"].startswith("it ended more than 10 times within 60 s")
    assert len(it.said("worker ended, replacing it")) == 10


@pytest.mark.slow
async def test_the_first_that_says_it_cannot_start_stops_all(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    it.kind(1, "fail")
    async with parent(it, 3):
        pass
    assert it.status == 1
    assert (len(it.starts(1)), it.starts(2), it.starts(3)) == (1, [], [])
    assert it.said("a worker does not start, all are stopped")[0]["worker"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "status"), [(1, "killed once", 137), (2, "killed once", 137), (2, "fail once", 1)]
)
async def test_one_that_dies_in_its_first_start_is_replaced(
    tmp_path: Path, number: int, kind: str, status: int
) -> None:
    """The out-of-memory killer strikes when it likes, and whatever keeps one from starting beside others may pass."""
    it = Stage(tmp_path)
    it.kind(number, kind)
    async with parent(it, 2):
        await until(lambda: it.said("listening"))
        assert (len(it.starts(number)), len(it.starts(3 - number))) == (2, 1)
        await it.tell.send(signal.SIGTERM)
    assert it.status == 0
    (ended,) = it.said("worker ended, replacing it")
    assert (ended["worker"], ended["status"]) == (number, status)


@pytest.mark.slow
async def test_gauges_that_cannot_be_removed_do_not_count_as_a_failed_start(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    it.kind(1, "end")
    (tmp_path / "gauge_livesum_1.db").mkdir()
    async with parent(it, 2):
        pass
    assert it.status == 70
    assert not it.said("worker not started")
    assert it.said("gauges of an ended worker stay in /metrics")[0]["worker"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind"), [(1, "killed"), (2, "killed"), (2, "fail")])
async def test_one_that_never_gets_through_its_start_stops_all_with_status_70(
    tmp_path: Path, number: int, kind: str
) -> None:
    it = Stage(tmp_path)
    it.kind(number, kind)
    async with parent(it, 2):
        pass
    assert it.status == 70
    assert len(it.starts(number)) == 11
    assert not it.said("listening")
    assert it.said("a worker ends again and again, all are stopped")[0]["worker"] == number
    assert it.told(1) == (["SIGTERM"] if number == 2 else [])


@pytest.mark.slow
async def test_the_first_signal_behind_the_parents_own_decision_is_not_the_workers_second(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    it.kind(1, "end")
    it.kind(2, "drain")
    async with parent(it, 2):
        await until(lambda: it.told(2))
        await it.tell.send(signal.SIGTERM)  # what a service manager sends, not knowing that they drain already
        await until(lambda: it.said("stopping"))
        os.kill(it.starts(2)[0], 0)  # it goes on draining
        await it.tell.send(signal.SIGINT)  # the operator insists
    assert it.told(2) == ["SIGTERM", "SIGINT"]
    assert it.status == 70


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
@pytest.mark.parametrize("left", [-3, 0, 2], ids=["no pipe", "one pipe", "no process"])
async def test_one_that_cannot_be_started_again_is_tried_again_and_the_others_go_on(tmp_path: Path, left: int) -> None:
    it = Stage(tmp_path)
    async with parent(it, 2, RestartBudget(restarts=10, seconds=60, first_pause_seconds=0.05)):
        await until(lambda: it.said("listening"))
        before, (victim,), (other,) = open_descriptors(), it.starts(1), it.starts(2)
        with descriptors_left(left):  # and three that the dead one's were
            os.kill(victim, signal.SIGKILL)
            await until(lambda: len(it.said("worker not started")) == 2)
            os.kill(other, 0)
        await until(lambda: len(it.starts(1)) == 2 and len(open_descriptors()) == len(before))
        await it.tell.send(signal.SIGTERM)
    assert it.status == 0
    assert it.was_told(1)
    assert it.was_told(2)
    assert len(it.starts(2)) == 1
    assert {entry["problem"] for entry in it.said("worker not started")} == {"Too many open files"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
async def test_the_first_that_cannot_be_started_stops_all(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    with descriptors_left(3):
        async with parent(it, 2):
            pass
    assert it.status == 1
    assert it.starts(2) == []
    assert [entry["event"] for entry in it.logs] == ["worker not started", "a worker does not start, all are stopped"]


@pytest.mark.slow
async def test_a_process_without_a_further_thread_is_one_without_a_further_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads count as processes do; a limit on them does not bind root, so it is played."""
    it, opened, failures = Stage(tmp_path), trio.lowlevel.open_process, 3

    async def open_process(*arguments, **options):
        nonlocal failures
        if it.starts(2) and failures:
            failures -= 1
            raise RuntimeError("can't start new thread")
        return await opened(*arguments, **options)

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    async with parent(it, 2):
        await until(lambda: it.said("listening"))
        os.kill(it.starts(1)[0], signal.SIGKILL)
        await until(lambda: len(it.starts(1)) == 2)
        await it.tell.send(signal.SIGTERM)
    assert it.status == 0
    assert len(it.said("worker not started")) == 3


@pytest.mark.slow
async def test_a_hangup_is_passed_on(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    async with parent(it, 2):
        await until(lambda: it.said("listening"))
        await it.tell.send(signal.SIGHUP)
    assert it.status == 0
    assert it.was_told(1)
    assert it.was_told(2)
    assert it.said("stopping")[0]["why"] == "SIGHUP"


@pytest.mark.slow
async def test_gauges_of_a_dead_process_go_and_its_counters_stay(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    async with parent(it, 2):
        await until(lambda: it.said("listening"))
        kinds = ("gauge_livesum", "counter", "histogram")
        for number in (1, 2):
            for kind in kinds:
                (tmp_path / f"{kind}_{number}.db").touch()
        os.kill(it.starts(1)[0], signal.SIGKILL)
        await until(lambda: len(it.starts(1)) == 2)
        left = {name for name in os.listdir(tmp_path) if name.endswith(".db")}
        assert left == {f"{kind}_{number}.db" for kind in kinds for number in (1, 2)} - {"gauge_livesum_1.db"}
        await it.tell.send(signal.SIGTERM)
    assert it.status == 0
