"""``dev --reload``: a child replica, replaced at each change.

The child says on a pipe which port it listens on. So its successors take the same port, and a first start that fails
is told from a replica that a change has broken.
"""

import os
import subprocess
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from dify_agent.main import ExitStatus

_LONGEST_REPORT: Final = 16
_SIGNALLED: Final = 128
"""Shells' status of a process that a signal has ended, with the signal's number added."""

_log = structlog.get_logger()


@dataclass
class _Child:
    process: trio.Process
    told: bool = False
    """To stop; its end is then no news."""


class ReloadedReplica:
    """Keeps one child running. Lives as long as `run`."""

    def __init__(self, command: Callable[[int, int], list[str]], environment: Mapping[str, str], port: int) -> None:
        """``command`` gives the child's command line for a port and the descriptor of the pipe."""
        self._command: Final = command
        self._environment: Final = environment
        self._port = port
        self._child: _Child | None = None
        self._has_listened = False
        self._status: int = ExitStatus.DRAINED

    async def run(self, changes: AsyncIterable[object], signals: AsyncIterator[int], *, stop_seconds: float) -> int:
        """Replace the child at each change, until a signal or the end of the changes; then stop it.

        A child that ends by itself is replaced at the next change; only one that ends before any has listened ends
        this too.

        Args:
            changes: what to restart at.
            signals: the first ends it.
            stop_seconds: how long the last child's shutdown is waited for.

        Returns:
            0, or the status of a first start that failed.
        """
        async with trio.open_nursery() as nursery:

            async def stop_at_signal() -> None:
                await anext(signals)
                nursery.cancel_scope.cancel(reason="told to stop")

            nursery.start_soon(stop_at_signal)
            try:
                await nursery.start(self._follow, nursery.cancel_scope)
                async for _change in changes:
                    _log.info("source changed, restarting")
                    await self._stop()
                    await nursery.start(self._follow, nursery.cancel_scope)
                nursery.cancel_scope.cancel(reason="no more changes")
            finally:
                with trio.move_on_after(stop_seconds, shield=True):
                    await self._stop()
        return self._status

    async def _follow(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        """One child from its start to its end; cancels ``scope`` when nothing is left to wait for."""
        reading, writing = os.pipe()
        async with trio.lowlevel.FdStream(reading) as report:
            try:
                # In a session of its own: Ctrl-C is for this process, which tells the child once. Twice would mean:
                # at once.
                process = await trio.lowlevel.open_process(
                    self._command(self._port, writing),
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[writing],
                )
            finally:
                os.close(writing)
            child = self._child = _Child(process)
            task_status.started()
            if (port := await _reported_port(report)) is not None:
                self._port, self._has_listened = port, True
        status = await process.wait()
        if child.told:
            return
        if self._has_listened:
            _log.warning("replica ended, waiting for a change", status=status)
        else:
            self._status = status if status >= 0 else _SIGNALLED - status
            scope.cancel(reason="the first start failed")

    async def _stop(self) -> None:
        if (child := self._child) is None:
            return
        child.told = True
        if child.process.poll() is None:
            child.process.terminate()
        await child.process.wait()


def report_port(descriptor: int, port: int) -> None:
    """The child's side: say which port it listens on, once. A parent that is gone is no failure of the child's."""
    with suppress(BrokenPipeError), os.fdopen(descriptor, "w") as report:
        report.write(f"{port}\n")


async def _reported_port(report: trio.abc.ReceiveStream) -> int | None:
    """The port, or None when the child ended without having listened."""
    line = await report.receive_some(_LONGEST_REPORT)
    return int(line) if line else None
