"""A batch of function calls: executed together, reported as they finish, stored in the order of the calls."""

from collections.abc import Iterable, Sequence

import trio
from pydantic_ai.messages import FunctionToolResultEvent, ModelRequestPart, UserPromptPart

from dify_agent.concurrency.groups import first_error, leaves
from dify_agent.loop.calls import Answered, Broken, Outcome, Ready, execute
from dify_agent.loop.state import Run


async def run_batch(run: Run, batch: Sequence[Ready], parts: list[ModelRequestPart]) -> list[Outcome]:
    """Execute a batch and append its results to ``parts``, at every ending.

    A sequential tool is a barrier: the calls before it finish first, it runs alone, then the rest.

    Returns:
        The outcome of each call, in call order.

    Raises:
        Exception: the first error in call order of those that were there first; the other calls are cancelled, and what
            they finished is kept.
        trio.Cancelled: also when a tool swallowed it; what such a tool returned is kept.
    """
    outcomes: dict[int, Outcome] = {}
    try:
        for segment in _segments(batch):
            await _Segment(run, batch, segment, outcomes).run()
    finally:
        _store(outcomes, parts)
    return [outcomes[index] for index in range(len(batch))]


def _segments(batch: Sequence[Ready]) -> Iterable[list[int]]:
    current: list[int] = []
    for index, ready in enumerate(batch):
        if ready.entry is not None and ready.entry.definition.sequential:
            if current:
                yield current
            yield [index]
            current = []
        else:
            current.append(index)
    if current:
        yield current


def _store(outcomes: dict[int, Outcome], parts: list[ModelRequestPart]) -> None:
    """Results in call order, then what tools added for the model: providers want all results together."""
    extras: list[ModelRequestPart] = []
    for index in sorted(outcomes):
        outcome = outcomes[index]
        if isinstance(outcome, Answered):
            parts.append(outcome.part)
            if outcome.extra:
                extras.append(UserPromptPart(outcome.extra))
    parts.extend(extras)


class _Segment:
    """Calls that run at the same time, one task each. Only the loop's task emits; tool tasks leave their outcome."""

    def __init__(self, run: Run, batch: Sequence[Ready], indices: list[int], outcomes: dict[int, Outcome]) -> None:
        self._run = run
        self._batch = batch
        self._indices = indices
        self._outcomes = outcomes
        self._unreported: list[int] = []
        self._bell = trio.Event()
        self._slots = trio.Semaphore(run.request.tool_concurrency)

    async def run(self) -> None:
        failure: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    if len(self._indices) <= self._run.request.tool_concurrency:
                        await self._start(nursery)
                    else:
                        nursery.start_soon(self._start, nursery)
                    await self._report()
                except Exception as error:  # noqa: BLE001 - raised below, outside the nursery, so that it is not a group
                    failure = error
                    nursery.cancel_scope.cancel(reason="a call of the batch failed")
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        if failure is not None:
            raise failure
        # A tool may have swallowed a cancel that came while the last result was reported.
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _start(self, nursery: trio.Nursery) -> None:
        """Start the tasks in call order, each when there is a slot for it.

        One task starts them all and gives way after each: Trio picks the order of what starts, or gets a slot, at the
        same moment by chance.
        """
        for index in self._indices:
            known = self._batch[index].outcome
            if known is not None:
                self._finish(index, known)
        for index in self._indices:
            if self._batch[index].outcome is None:
                await self._slots.acquire()
                nursery.start_soon(self._call, index)
                await trio.lowlevel.checkpoint()
        # One more turn for the last task, so that tools that do not wait are reported in call order.
        await trio.lowlevel.checkpoint()

    async def _report(self) -> None:
        """Emit results as they become ready; those of one wake-up in call order."""
        waiting = len(self._indices)
        while waiting:
            await self._bell.wait()
            self._bell = trio.Event()
            ready, self._unreported = sorted(self._unreported), []
            waiting -= len(ready)
            for index in ready:
                outcome = self._outcomes[index]
                if isinstance(outcome, Broken):
                    raise outcome.error
                if isinstance(outcome, Answered):
                    await self._run.emit(FunctionToolResultEvent(outcome.part, content=outcome.extra))

    async def _call(self, index: int) -> None:
        ready = self._batch[index]
        try:
            outcome = await execute(self._run, ready)
        except trio.Cancelled:
            if ready.outcome is not None:
                self._finish(index, ready.outcome)
            raise
        except BaseExceptionGroup as group:
            # A tool's own nursery was cancelled, and something failed in its clean-up: the cancel is what counts.
            raise next(leaf for leaf in leaves(group) if not isinstance(leaf, Exception)) from None
        finally:
            self._slots.release()
        self._finish(index, outcome)

    def _finish(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        self._unreported.append(index)
        self._bell.set()
