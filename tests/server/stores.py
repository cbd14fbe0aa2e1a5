"""A Valkey that a test may kill, restart and freeze: its log of writes is on disk, its address stays the same."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

from dify_agent.store.embedded import valkey_binary

READY_SECONDS: Final = 10.0


class DurableStore:
    """Made by `durable_store`. Every method returns when the server is in the state it names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self._folder / "s")

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def witness(self) -> redis.Redis:
        """A client that looks at the server independently."""
        return redis.Redis(unix_socket_path=self.socket)

    def start(self) -> None:
        """Run the server on what its log of writes holds."""
        options = {
            "port": "0",
            "unixsocket": self.socket,
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        command = [valkey_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            try:
                with self.witness as client:
                    client.ping()
                return
            except redis.RedisError:
                time.sleep(0.01)
        raise AssertionError((self._folder / "log").read_text(errors="replace"))

    def kill(self) -> None:
        """As a power cut: the server is gone, its log of writes stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on as if nothing had happened."""
        self._signal(signal.SIGCONT)

    def fill(self) -> None:
        """Out of memory: it answers, and takes no write."""
        with self.witness as client:
            client.config_set("maxmemory", 1)

    def empty(self) -> None:
        """It has memory again."""
        with self.witness as client:
            client.config_set("maxmemory", 0)

    def demote(self) -> None:
        """As an old primary after a failover: it answers, and takes no write."""
        with self.witness as client:
            client.replicaof("127.0.0.1", 1)

    def promote(self) -> None:
        """A primary again."""
        with self.witness as client:
            client.replicaof("NO", "ONE")

    @contextmanager
    def outage(self, how: str) -> Iterator[None]:
        """It is ``killed``, ``frozen``, ``full`` or ``read-only`` meanwhile."""
        begin, end = {
            "killed": (self.kill, self.start),
            "frozen": (self.freeze, self.thaw),
            "full": (self.fill, self.empty),
            "read-only": (self.demote, self.promote),
        }[how]
        begin()
        try:
            yield
        finally:
            end()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextmanager
def durable_store() -> Iterator[DurableStore]:
    """A server in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="dify-agent-") as folder:
        store = DurableStore(Path(folder))
        store.start()
        try:
            yield store
        finally:
            store.kill()
