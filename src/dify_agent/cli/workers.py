"""``serve --workers N``: several replicas behind one listening socket, each a child process of its own.

The parent binds the socket and keeps it, so that a connection is never refused while any worker lives, and replaces a
worker that ends; the runs of that one are judged by the others like those of any lost replica. The parent serves
nothing itself.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

import structlog
import trio

from dify_agent.main import ExitStatus, authority
from dify_agent.metrics import SHARED_FOLDER, forget_gauges
from dify_agent.supervisor.specs import RestartBudget, RestartCounter

BUDGET: Final = RestartBudget(restarts=10, seconds=60.0, first_pause_seconds=0.1, most_pause_seconds=5.0)
"""Of one worker. One that ends more often will not get better: the others drain, and somebody starts them again."""
KILL_SECONDS: Final = 3.0
"""After its own watchdog a worker is given so much longer; then it is killed."""
_LONGEST_REPORT: Final = 16
_SIGNALLED: Final = 128

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a worker gets from its parent, on its command line: its number and descriptors."""

    number: int
    listening: tuple[int, ...]
    report: int
    """Written once, when the worker accepts connections."""
    lifeline: int
    """Ends when the parent is gone."""

    def __str__(self) -> str:
        return ":".join(map(str, (self.number, self.report, self.lifeline, *self.listening)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes."""
        number, report, lifeline, *listening = map(int, text.split(":"))
        return cls(number, tuple(listening), report, lifeline)

    def sockets(self) -> list[socket.socket]:
        """The shared listening sockets."""
        return [socket.socket(fileno=descriptor) for descriptor in self.listening]

    async def follow_parent(self, stop: trio.Event) -> None:
        """Set ``stop`` when the parent is gone: nobody would stop this worker any more."""
        async with trio.lowlevel.FdStream(self.lifeline) as lifeline:
            await lifeline.receive_some(1)
        _log.error("the parent of this worker is gone, draining")
        stop.set()


def worker_command(inherited: Inherited) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "dify_agent", "serve", "--inherit", str(inherited)]


class Workers:
    """Keeps a number of worker processes running. Lives as long as `run`."""

    def __init__(
        self,
        count: int,
        sockets: Sequence[socket.socket],
        environment: Mapping[str, str],
        *,
        stop_seconds: float,
        command: Callable[[Inherited], list[str]] = worker_command,
        budget: RestartBudget = BUDGET,
    ) -> None:
        """
        Args:
            count: how many.
            sockets: bound; what they share.
            environment: of each; names the folder of the metrics.
            stop_seconds: what a worker's own watchdog gives it.
            command: gives a worker's command line.
            budget: of each.
        """
        self._count: Final = count
        self._command: Final = command
        self._budget: Final = budget
        self._sockets: Final = sockets
        self._listening: Final = tuple(sock.fileno() for sock in sockets)
        self._environment: Final = environment
        self._stop_seconds: Final = stop_seconds
        self._running: dict[int, trio.Process] = {}
        self._has_served = False
        """Whether any worker has ever accepted connections: what keeps a later one from starting may pass."""
        self._stopping = trio.Event()
        self._patience = trio.CancelScope()
        """Around the workers; its deadline is set when they are told to stop."""
        self._status: int = ExitStatus.DRAINED

    async def run(self, signals: AsyncIterator[int]) -> int:
        """Start the workers, replace those that end, stop all at the first signal; further ones are passed on.

        When all are being stopped already, because one of them was given up, the first signal only finds that so:
        passed on it would be each worker's second, which ends it at once, with the runs that it is draining.

        Returns:
            0 when all have drained, else the first other status of a worker.
        """
        for sock in self._sockets:
            sock.listen(1024)
        async with trio.open_nursery() as root:
            root.start_soon(self._pass_signals_on, signals)
            try:
                with self._patience:
                    await self._keep_all()
            finally:
                spent = self._patience.cancelled_caught
                self._stop()
                with trio.move_on_after(0 if spent else self._stop_seconds + KILL_SECONDS, shield=True):
                    for process in list(self._running.values()):
                        await process.wait()
                self._kill()
            root.cancel_scope.cancel(reason="no worker is left")
        return self._status

    async def _keep_all(self) -> None:
        async with trio.open_nursery() as workers:
            # The first alone: what keeps it from starting would keep the others, and is told once.
            await workers.start(self._keep, 1)
            async with trio.open_nursery() as starting:
                for number in range(2, self._count + 1):
                    if not self._stopping.is_set():
                        starting.start_soon(workers.start, self._keep, number)
            if not self._stopping.is_set():
                addresses = [authority(*sock.getsockname()[:2]) for sock in self._sockets]
                _log.info("listening", addresses=addresses, workers=self._count)

    async def _keep(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        """One worker and its successors. Started when one of them accepts connections, or none ever will."""
        counter = RestartCounter(self._budget)
        listened = False
        while not self._stopping.is_set():
            try:
                status, has_listened = await self._live(number, None if listened else task_status)
            except OSError as error:  # no process, thread or descriptor left on this machine, which may pass
                _log.error("worker not started", worker=number, problem=error.strerror)
                status, has_listened = ExitStatus.START_FAILED, False
            listened |= has_listened
            if self._stopping.is_set():
                if has_listened or status != _SIGNALLED + signal.SIGTERM:  # else it was told before it could know how
                    self._note(status)
            else:
                await self._pause_or_give_up(number, status, counter)
        if not listened:
            task_status.started()

    async def _pause_or_give_up(self, number: int, status: int, counter: RestartCounter) -> None:
        """Behind the end of a worker that nobody told to end. One that said why it cannot start, before any other has,
        will not do better; one that a signal ended may."""
        cannot_start = status == ExitStatus.START_FAILED and not self._has_served
        pause = None if cannot_start else counter.next_pause(trio.current_time())
        if pause is None:
            self._give_up(number, status, at_start=cannot_start)
            return
        _log.error("worker ended, replacing it", worker=number, status=status, pause_seconds=pause)
        with trio.move_on_after(pause):
            await self._stopping.wait()

    def _give_up(self, number: int, status: int, *, at_start: bool) -> None:
        """What one worker cannot do the others soon cannot either; and a service manager sees a status."""
        budget = self._budget
        why = "does not start" if at_start else "ends again and again"
        often = f"it ended more than {budget.restarts} times within {budget.seconds:g} s; "
        problem = ("" if at_start else often) + "what ended it is told by the lines before, under its number"
        _log.critical(f"a worker {why}, all are stopped", worker=number, status=status, problem=problem)
        self._note(status if at_start else ExitStatus.BUDGET_SPENT)
        self._stop()

    async def _live(self, number: int, task_status: trio.TaskStatus[None] | None) -> tuple[int, bool]:
        """One process from its start to its end: its status, and whether it has ever accepted connections.

        Raises:
            OSError: it cannot be started.
        """
        with ExitStack() as given:  # the ends that the process gets
            report, report_in = os.pipe()
            given.callback(os.close, report_in)
            async with trio.lowlevel.FdStream(report) as reports:
                lifeline_out, lifeline = os.pipe()
                given.callback(os.close, lifeline_out)
                async with trio.lowlevel.FdStream(lifeline):
                    process = await self._spawn(Inherited(number, self._listening, report_in, lifeline_out))
                    given.close()
                    self._running[number] = process
                    if self._stopping.is_set():
                        process.terminate()
                    has_listened = bool(await reports.receive_some(_LONGEST_REPORT))
                    self._has_served |= has_listened
                    if has_listened and task_status is not None:
                        task_status.started()
                    status = await process.wait()
        del self._running[number]
        self._forget_gauges(number)
        return status if status >= 0 else _SIGNALLED - status, has_listened

    def _forget_gauges(self, number: int) -> None:
        try:
            forget_gauges(self._environment[SHARED_FOLDER], number)
        except OSError as error:  # not the worker's end, and no reason to think that it had not started
            _log.warning("gauges of an ended worker stay in /metrics", worker=number, problem=error.strerror)

    async def _spawn(self, inherited: Inherited) -> trio.Process:
        try:
            return await trio.lowlevel.open_process(
                self._command(inherited),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent, which passes it on once
                pass_fds=[*inherited.listening, inherited.report, inherited.lifeline],
            )
        except RuntimeError as error:  # no thread for it, which counts as a process
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error

    async def _pass_signals_on(self, signals: AsyncIterator[int]) -> None:
        is_first = True
        async for number in signals:
            _log.info("stopping", why=signal.Signals(number).name, workers=len(self._running))
            if not self._stopping.is_set():
                self._stop(number)
            elif not is_first:
                self._tell(number)
            is_first = False

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Tell every worker, once; the socket stays with them for as long as they listen."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._patience.deadline = trio.current_time() + self._stop_seconds + KILL_SECONDS
        for sock in self._sockets:
            sock.close()
        self._tell(number)

    def _tell(self, number: int) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(number)

    def _kill(self) -> None:
        """Nothing may be left behind."""
        for number, process in self._running.items():
            if process.poll() is None:
                _log.error("worker does not end, it is killed", worker=number)
                self._note(ExitStatus.WATCHDOG)
                process.kill()

    def _note(self, status: int) -> None:
        self._status = self._status or status
