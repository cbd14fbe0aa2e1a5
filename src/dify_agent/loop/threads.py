"""Sync tools in worker threads, under the process-wide limit, with a bounded wait when their run is cancelled."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio
from outcome import Error, Outcome, acapture, capture


class ThreadCall:
    """One call of a sync function in a worker thread.

    A thread cannot be stopped. A cancelled call waits ``grace`` seconds for it, so that most work ends inside its
    run, then leaves it behind; one that never got a thread waits for nothing. The limiter's place stays taken until
    the thread is really done.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._started = False
        self._outcome: Outcome[Any] | None = None
        self._done = trio.Event()

    @property
    def finished(self) -> bool:
        """Whether the function has returned or raised."""
        return self._outcome is not None

    def result(self) -> Any:
        """What the function returned.

        Raises:
            Exception: what it raised.
        """
        assert self._outcome is not None, "the thread has not finished"
        return self._outcome.unwrap()

    async def run(self, *, limiter: trio.CapacityLimiter | None, grace: float) -> Any:
        """Call the function and return its result.

        Raises:
            trio.Cancelled: the caller was cancelled; `finished` says whether the thread ended within ``grace`` seconds.
            Exception: what the function raised.
        """
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            self._started = True
            self._outcome = capture(self._function)
            # The run of the event loop may be over when an abandoned thread ends.
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._done.set)

        waited = await acapture(partial(trio.to_thread.run_sync, work, abandon_on_cancel=True, limiter=limiter))
        # A call that was still waiting for a thread has nothing to wait for.
        if self._started and isinstance(waited, Error) and isinstance(waited.error, trio.Cancelled):
            with trio.move_on_after(grace, shield=True):
                await self._done.wait()
        waited.unwrap()
        return self.result()
