"""The server as an operator runs it: `dify-agent serve` in a process of its own, on a real Valkey.

`serving` starts one and stops it by SIGTERM; it fails the test when the process does not end with status 0, or when its
log holds an error that the test did not announce.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import redis
import trio

START_SECONDS: Final = 60.0
"""A cold start takes about a second; a loaded machine more."""
STOP_SECONDS: Final = 30.0
BOUND_SECONDS: Final = 20.0
"""No single wait of a test is longer."""

SETTLED_SECONDS: Final = 0.5

MeasureT = TypeVar("MeasureT")

_DEFAULTS: Final = {
    "scripted_layers": 1,
    "drain_listen_seconds": 0,
    "shutdown_grace_seconds": 0,
    "run_retention_seconds": 600,
}
_ERROR_LEVELS: Final = ("error", "critical")

recent_servers: "list[Server]" = []
"""What a failing test prints: the servers that live, or lived while it ran."""


@dataclass(frozen=True)
class StoreServer:
    """The Valkey of this test process, and an independent client that looks at it."""

    url: str
    witness: redis.Redis


class Server:
    """One replica. Made by `serving`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_file: Path, prefix: str) -> None:
        self.process = process
        self.prefix = prefix
        self.port = 0
        self._log_file = log_file
        self._kept_log: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything the process has said on stderr so far."""
        return self._kept_log if self._kept_log is not None else self._log_file.read_text(errors="replace")

    def keep_log(self) -> None:
        """The folder of the log goes away; what was said stays readable."""
        self._kept_log = self.log

    def records(self) -> list[dict[str, Any]]:
        """The lines of the log. A line that is no JSON is one that did not go through logging: a bug by itself."""
        return [json.loads(line) for line in self.log.splitlines()]

    def wait_listening(self) -> None:
        """Return when the log names the port."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.log.splitlines():
                if '"listening"' in line:
                    self.port = int(json.loads(line)["addresses"][0].rpartition(":")[2])
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"the server did not start (status {self.process.poll()}):\n{self.log}")

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_status(self, within: float = STOP_SECONDS) -> int:
        """Wait for the end of the process."""
        await until(lambda: self.process.poll() is not None, "the process ends", within)
        return self.process.returncode

    def stop(self) -> int:
        """SIGTERM, and the status. Blocks: nothing in this process may be needed for the drain."""
        if self.process.poll() is None:
            self.tell(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def check_log(self, announced: Sequence[str] = ()) -> None:
        """Fail on an error in the log, unless its event contains one of the announced texts."""
        for record in self.records():
            if record["level"] in _ERROR_LEVELS and not any(text in record["event"] for text in announced):
                raise AssertionError(f"the server logged an error: {json.dumps(record, indent=1)}")


@contextmanager
def launched(
    redis_url: str,
    *,
    prefix: str | None = None,
    env: Mapping[str, str] | None = None,
    descriptors: int | None = None,
    arguments: Sequence[str] = (),
    **settings: object,
) -> Iterator[Server]:
    """Start the process and give it at once; kill it at the end if it still lives. Keywords are settings.

    ``descriptors`` is how many it may have open; by default as many as this process.
    """
    prefix = prefix or f"t-{uuid.uuid4().hex}"
    values = {**_DEFAULTS, **settings, "redis_url": redis_url, "redis_prefix": prefix}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    environment |= {f"DIFY_AGENT_{name.upper()}": str(value) for name, value in values.items()}
    environment |= env or {}
    command = [sys.executable, "-m", "dify_agent.cli", "serve", "--port", "0", *arguments]
    if descriptors is not None:
        command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors), *command]
    with tempfile.TemporaryDirectory(prefix="dify-agent-test-") as folder:
        log_file = Path(folder) / "stderr"
        with log_file.open("wb") as log:
            # The folder is the working directory too: no .env of a developer is read.
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        server = Server(process, log_file, prefix)
        recent_servers.append(server)
        try:
            yield server
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            server.keep_log()


@contextmanager
def serving(
    redis_url: str,
    *,
    prefix: str | None = None,
    env: Mapping[str, str] | None = None,
    announced: Sequence[str] = (),
    descriptors: int | None = None,
    arguments: Sequence[str] = (),
    **settings: object,
) -> Iterator[Server]:
    """A replica that accepts requests; stopped by SIGTERM, which must end it with status 0 and a clean log."""
    with launched(
        redis_url, prefix=prefix, env=env, descriptors=descriptors, arguments=arguments, **settings
    ) as server:
        server.wait_listening()
        yield server
        assert server.stop() == 0
        server.check_log(announced)


async def until(condition: Callable[[], bool], what: str, within: float = BOUND_SECONDS) -> None:
    """Look again and again, within a bound: another process's state has no event to wait for."""
    with trio.move_on_after(within):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)
        return
    raise AssertionError(f"not within {within:g} s: {what}")


def stored_records(store: StoreServer, prefix: str) -> list[dict[str, Any]]:
    """Every run's record under a prefix, as an independent client reads it."""
    keys = list(store.witness.scan_iter(match=f"{prefix}:runs:*:record", count=1000))
    return [json.loads(text) for text in store.witness.mget(keys) if text is not None] if keys else []


async def settled(measure: Callable[[], MeasureT]) -> MeasureT:
    """A measure when it has not changed for a while."""
    last, since = measure(), trio.current_time()
    with trio.fail_after(BOUND_SECONDS):
        while trio.current_time() - since < SETTLED_SECONDS:
            await trio.sleep(0.02)
            if (now := measure()) != last:
                last, since = now, trio.current_time()
    return last
