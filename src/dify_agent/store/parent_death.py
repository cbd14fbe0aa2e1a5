"""Starts a program that must not outlive its parent: ``python -I -S parent_death.py <how> <parent pid> <argv...>``.

It imports the standard library only, so that it starts in milliseconds. Linux: the kernel sends SIGKILL when the
*thread* that started this process ends; hence the parent starts it from its event loop's thread, never from a worker
thread (which is where ``trio.lowlevel.open_process`` would). Elsewhere: this process stays, reads its standard input,
which the parent holds open and never writes to, and kills the program when it ends.
"""

import ctypes
import os
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def follow_by_signal(parent: int, command: list[str]) -> None:
    """Become ``command``, killed by the kernel with the parent. Linux only."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request was made
        sys.exit(1)
    os.execv(command[0], command)


def follow_by_pipe(command: list[str]) -> int:
    """Run ``command`` until it ends or standard input does; its exit status."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch() -> None:
        sys.stdin.buffer.read()
        process.kill()

    threading.Thread(target=watch, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    how, parent_pid, *argv = sys.argv[1:]
    if how == "signal":
        follow_by_signal(int(parent_pid), argv)
    else:
        sys.exit(follow_by_pipe(argv))
