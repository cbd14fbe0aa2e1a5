"""`dev --reload`: which children are started, with which port, and what each one's end means."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import capture_logs

import dify_agent
from dify_agent.cli.reloading import ReloadedReplica
from dify_agent.cli.running import _child_environment
from dify_agent.settings import ServerSettings

SECONDS = 20
PORT = 4711

CHILD = """
import os, pathlib, signal, sys
port, report, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
with (folder / "starts").open("a") as starts:
    starts.write(f"{port}\\n")
what = (folder / "what").read_text()
if what == "fail":
    sys.exit(3)
if what == "be killed":
    os.kill(os.getpid(), signal.SIGKILL)
os.write(report, b"%d\\n" % (port or 4711))
if what == "end":
    sys.exit(5)
(folder / "written").write_text(str(os.getpid()))
(folder / "written").rename(folder / "pid")
signal.pause()
"""


class Stage:
    """A folder that says what the next child does, and a replica that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.change, self.changes = trio.open_memory_channel[None](0)
        self.tell, self.signals = trio.open_memory_channel[int](1)
        self.status: int | None = None
        self.ended = trio.Event()

    def next_child(self, what: str) -> None:
        (self.folder / "what").write_text(what)

    @property
    def starts(self) -> list[int]:
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def run(self) -> None:
        def command(port: int, report: int) -> list[str]:
            return [sys.executable, "-S", "-c", CHILD, str(port), str(report), str(self.folder)]

        replica = ReloadedReplica(command, dict(os.environ), 0)
        self.status = await replica.run(self.changes, self.signals, stop_seconds=SECONDS)
        self.ended.set()


async def until(condition: Callable[[], bool]) -> None:
    """Another process's state has no event to wait for."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.005)


@asynccontextmanager
async def stage(folder: Path, what: str):
    it = Stage(folder)
    it.next_child(what)
    with trio.fail_after(SECONDS), it.change, it.changes, it.tell, it.signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.run)
            yield it
            await it.ended.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("what", "status"), [("fail", 3), ("be killed", 128 + signal.SIGKILL)])
async def test_a_first_start_that_fails_ends_it_with_its_status(tmp_path: Path, what: str, status: int) -> None:
    with capture_logs() as logs:
        async with stage(tmp_path, what) as it:
            await it.ended.wait()
    assert (it.status, it.starts, logs) == (status, [0], [])


@pytest.mark.slow
async def test_successors_take_the_first_ones_port(tmp_path: Path) -> None:
    async with stage(tmp_path, "listen") as it:
        for number in range(1, 4):
            await until(lambda number=number: len(it.starts) == number and (tmp_path / "pid").exists())
            (tmp_path / "pid").unlink()
            if number < 3:
                await it.change.send(None)
        await it.tell.send(signal.SIGTERM)
    assert (it.status, it.starts) == (0, [0, PORT, PORT])


@pytest.mark.slow
@pytest.mark.parametrize(("later", "status"), [("end", 5), ("fail", 3)])
async def test_one_that_ends_by_itself_is_told_and_replaced_at_the_next_change(
    tmp_path: Path, later: str, status: int
) -> None:
    with capture_logs() as logs:
        async with stage(tmp_path, "listen") as it:
            await until((tmp_path / "pid").exists)
            it.next_child(later)
            await it.change.send(None)
            await until(lambda: any(entry["event"].startswith("replica ended") for entry in logs))
            (tmp_path / "pid").unlink()
            it.next_child("listen")
            await it.change.send(None)
            await until((tmp_path / "pid").exists)
            await it.tell.send(signal.SIGINT)
    assert (it.status, it.starts) == (0, [0, PORT, PORT])
    (ended,) = [entry for entry in logs if entry["event"] != "source changed, restarting"]
    assert (ended["event"], ended["status"]) == ("replica ended, waiting for a change", status)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["signal", "no more changes"])
async def test_no_child_is_left(tmp_path: Path, why: str) -> None:
    async with stage(tmp_path, "listen") as it:
        await until((tmp_path / "pid").exists)
        await it.tell.send(signal.SIGTERM) if why == "signal" else it.change.close()
    assert it.status == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_signal_during_the_first_start_is_no_failure(tmp_path: Path) -> None:
    async with stage(tmp_path, "listen") as it:
        it.tell.send_nowait(signal.SIGTERM)
    assert it.status == 0


@pytest.mark.parametrize(("given", "grace"), [(None, "1.0"), ("7", "7"), ("", "1.0")])
def test_the_grace_is_short_unless_one_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, grace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIFY_AGENT_SHUTDOWN_GRACE_SECONDS", raising=False)
    if given is not None:
        monkeypatch.setenv("DIFY_AGENT_SHUTDOWN_GRACE_SECONDS", given)
    environment = _child_environment(ServerSettings.for_development(redis_url="unix:///s"))
    assert environment["DIFY_AGENT_SHUTDOWN_GRACE_SECONDS"] == grace
    assert environment["DIFY_AGENT_REDIS_URL"] == "unix:///s"


def test_a_grace_of_a_file_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIFY_AGENT_SHUTDOWN_GRACE_SECONDS", raising=False)
    (tmp_path / ".env").write_text("DIFY_AGENT_SHUTDOWN_GRACE_SECONDS=7\n")
    assert "DIFY_AGENT_SHUTDOWN_GRACE_SECONDS" not in _child_environment(ServerSettings.for_development())


@pytest.mark.slow
@pytest.mark.full
async def test_the_real_thing_survives_a_broken_source(tmp_path: Path) -> None:
    """On a copy of the source: the server listens, a change breaks it, another mends it, on the same port."""
    source = tmp_path / "src"
    shutil.copytree(Path(dify_agent.__file__).parents[1], source, ignore=shutil.ignore_patterns("__pycache__"))
    log = tmp_path / "stderr"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    environment["PYTHONPATH"] = str(source)
    with log.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "dify_agent", "dev", "--reload", "--port", "0"],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )

    def said(event: str) -> list[dict[str, object]]:
        lines = (line for line in log.read_text().splitlines() if line.startswith("{"))
        return [record for record in map(json.loads, lines) if record["event"] == event]

    try:
        with trio.fail_after(60):
            await until(lambda: bool(said("listening")) or process.poll() is not None)
            changed = source / "dify_agent" / "main.py"
            sound = changed.read_text()
            changed.write_text(sound + "\nraise SystemExit(9)\n")
            await until(lambda: bool(said("replica ended, waiting for a change")))
            changed.write_text(sound)
            await until(lambda: len(said("listening")) == 2)
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
    finally:
        if process.poll() is None:
            process.kill()
        with trio.move_on_after(SECONDS, shield=True):
            await process.wait()
    assert process.returncode == 0, log.read_text()
    assert said("replica ended, waiting for a change")[0]["status"] == 9
    first, second = said("listening")
    assert first["addresses"] == second["addresses"]


def test_logs_are_captured_here() -> None:
    """What the tests above rest on: nobody has cached a logger in this process."""
    with capture_logs() as logs:
        structlog.get_logger().info("x")
    assert [entry["event"] for entry in logs] == ["x"]
