"""A document's shell commands, run as they are written but for programs and ports."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

SECONDS = 60
PROGRAMS = f"{Path(sys.executable).parent}{os.sep}"


def free_ports(count: int) -> list[int]:
    """So many, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


def run_commands(script: str, folder: Path, *, ports: Sequence[str]) -> str:
    """What the commands print, run in this folder; each of the ports is replaced by a free one.

    Nothing that they started is left running.
    """
    free = {written: str(port) for written, port in zip(ports, free_ports(len(ports)), strict=True)}
    script = re.sub(rf"\b({'|'.join(ports)})\b", lambda found: free[found[0]], script)
    script = script.replace(".venv/bin/", PROGRAMS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"  # pages say python3
    environment |= {"PATH": path, "no_proxy": "127.0.0.1", "DIFY_AGENT_DRAIN_LISTEN_SECONDS": "0"}
    with (folder / "printed").open("wb") as printed:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):  # the script has ended all that it started
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = (folder / "printed").read_text()
    assert status == 0, text
    return text
