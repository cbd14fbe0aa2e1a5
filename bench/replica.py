"""A replica to measure: `dify-agent serve` as its users start it, on a Valkey that is another process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import trio

from dify_agent.store.embedded import embedded_valkey

START_SECONDS = 30.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.005
PREFIX = "bench"
SETTINGS = {"scripted_layers": 1, "drain_listen_seconds": 0, "shutdown_grace_seconds": 0, "redis_prefix": PREFIX}


@dataclass(frozen=True)
class Replica:
    """A server that accepts requests. Made by `replica`."""

    url: str
    store_url: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, its threads and the kernel's part included, its children's not."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_kib(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss) / 1024


@asynccontextmanager
async def replica(**settings: object) -> AsyncIterator[Replica]:
    """Start store and server, with default settings but for those a drain without waiting needs; stop both.

    Raises:
        RuntimeError: the server did not start, or did not end well; the text holds its log.
    """
    async with embedded_valkey() as store_url, replica_on(store_url, **settings) as server:
        yield server


@asynccontextmanager
async def replica_on(store_url: str, **settings: object) -> AsyncIterator[Replica]:
    """`replica` on a store that is there already.

    Raises:
        RuntimeError: the server did not start, or did not end well; the text holds its log.
    """
    settings = {**SETTINGS, **settings, "redis_url": store_url}
    with tempfile.TemporaryDirectory(prefix="dify-agent-bench-") as name, _process(Path(name), settings) as server:
        log = Path(name) / "log"
        url = await _listening(server, log)
        yield Replica(url, store_url, psutil.Process(server.pid))
        server.terminate()
        # Blocks, and may: nothing in this process is needed for the drain.
        if server.wait(STOP_SECONDS):
            raise RuntimeError(f"the server ended with status {server.returncode}:\n{_said(log)}")


@contextmanager
def _process(folder: Path, settings: Mapping[str, object]) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    for setting, value in settings.items():
        environment[f"DIFY_AGENT_{setting.upper()}"] = str(value)
    command = [sys.executable, "-m", "dify_agent.cli", "serve", "--port", "0"]
    with (folder / "log").open("wb") as log:
        # The folder is the working directory too: no .env of a developer is read.
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield server
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()


async def _listening(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """The server's URL, once its log names the port."""
    with trio.move_on_after(START_SECONDS):
        while server.poll() is None:
            if (address := _address(log)) is not None:
                return f"http://{address}"
            await trio.sleep(POLL_SECONDS)
    raise RuntimeError(f"the server did not start:\n{_said(log)}")


def _address(log: Path) -> str | None:
    lines = [line for line in _said(log).splitlines() if '"listening"' in line]
    return str(json.loads(lines[0])["addresses"][0]) if lines else None


def _said(log: Path) -> str:
    return log.read_text(errors="replace")
