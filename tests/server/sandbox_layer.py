"""The layer type ``acme.sandbox``: a sandbox that is none, ``/bin/sh`` on the server's own machine. For tests.

The file is the module of a package that a test installs for the server. The variable ``ACME_SANDBOX`` names a folder
whose ``bin`` has a ``dify-agent``.
"""

import os
import signal
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import trio
from pydantic import Field

from agenton.layers import LayerConfig, NoLayerDeps
from dify_agent.layers.sandbox import AgentStubUnavailableError, SandboxFileError, SandboxLayer, ScriptResult

STOP_SECONDS = 5
STDERR_TAIL = 2048
READ_BYTES = 65536


class AcmeSandboxConfig(LayerConfig):
    """``env`` is added to the environment of each script; ``max_seconds`` shortens its time. ``uploads`` are the files
    that can be uploaded, by path, and what the upload of each prints."""

    env: dict[str, str] = Field(default_factory=dict)
    stub: bool = True
    max_seconds: float | None = None
    uploads: dict[str, dict[str, Any]] = Field(default_factory=dict)


class _Job:
    """One script, its processes a group of their own; ends with the block it is used in."""

    def __init__(self, process: trio.Process, limit: int) -> None:
        self.process = process
        self.limit = limit
        self.stdout = bytearray()
        self.stderr = bytearray()

    async def finish(self) -> bool:
        """Read to the end; False when it prints more than it may."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_stderr)
            within = await self._read_stdout()
            if within:
                await self.process.wait()
            else:
                nursery.cancel_scope.cancel(reason="the script prints too much")
        return within

    async def _read_stdout(self) -> bool:
        assert self.process.stdout is not None
        async for chunk in self.process.stdout:
            self.stdout += chunk
            if len(self.stdout) > self.limit:
                del self.stdout[self.limit :]
                return False
        return True

    async def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.stderr += chunk
            del self.stderr[:-READ_BYTES]

    async def stop(self) -> None:
        """Kill what is left of the group and wait for it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await self.process.wait()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    await pipe.aclose()


class AcmeSandboxLayer(SandboxLayer[NoLayerDeps, None, AcmeSandboxConfig]):
    """Runs scripts in ``work`` of the folder, with a token that is new for each."""

    type_id: ClassVar[str | None] = "acme.sandbox"

    @classmethod
    def from_config(cls, config: AcmeSandboxConfig) -> Self:
        return cls()

    async def run_script(self, script: str, *, timeout_seconds: float, max_stdout_bytes: int) -> ScriptResult:
        if not self.config.stub:
            raise AgentStubUnavailableError
        home = Path(os.environ["ACME_SANDBOX"])
        token = f"secret-{uuid.uuid4().hex}"
        env = {
            "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "ACME_SANDBOX": str(home),
            **self.config.env,
            "DIFY_AGENT_STUB_API_BASE_URL": "http://stub.test/agent-stub",
            "DIFY_AGENT_STUB_AUTH_JWE": token,
        }
        job = _Job(
            await trio.lowlevel.open_process(
                ["/bin/sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=home / "work",
                env=env,
                start_new_session=True,
            ),
            max_stdout_bytes,
        )
        within = True
        try:
            with trio.move_on_after(min(timeout_seconds, self.config.max_seconds or timeout_seconds)) as bound:
                within = await job.finish()
        finally:
            await job.stop()
        stopped = "timeout" if bound.cancelled_caught else None if within else "output_limit"
        return ScriptResult(
            exit_code=None if stopped else job.process.returncode,
            stdout=job.stdout.decode(errors="replace"),
            incomplete=stopped,
            stderr_tail=job.stderr.decode(errors="replace").replace(token, "***")[-STDERR_TAIL:],
        )

    async def upload_file(self, path: str) -> dict[str, Any]:
        if path not in self.config.uploads:
            raise SandboxFileError(f"no such file: {path}")
        return self.config.uploads[path]
