"""The order in which slots are entered and left, and which error wins.

Everything here awaits plainly, including while an error or a cancellation is on its way out: the caller of
``Compositor.enter`` owns the shield around these awaits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Literal, Self

from agenton.compositor.run import LayerRunSlot
from agenton.layers.base import ExitIntent, LifecycleState


def check_enterable(slots: Mapping[str, LayerRunSlot]) -> None:
    """Refuse slots whose state cannot be entered.

    Raises:
        RuntimeError: a slot is active or closed.
    """
    for name, slot in slots.items():
        if slot.lifecycle_state is LifecycleState.ACTIVE:
            raise RuntimeError(f"Layer '{name}' is already active; ACTIVE snapshots are not allowed.")
        if slot.lifecycle_state is LifecycleState.CLOSED:
            raise RuntimeError(f"Layer '{name}' is closed; CLOSED snapshots cannot be entered.")


async def enter_slots(slots: Sequence[LayerRunSlot], on_unwind: Callable[[], None] | None) -> None:
    """Enter ``slots`` in order; on failure leave the entered ones again, and raise.

    Raises:
        BaseException: the error of entry, or the first error of the clean-up, chained from that of entry.
    """
    with Collected() as outcome:
        await _enter_all(slots)
    if outcome.error is None:
        return
    cleanup_error = await leave_slots(slots, outcome.error, on_unwind)
    if cleanup_error is not None and cleanup_error.__cause__ is None:
        cleanup_error.__cause__ = outcome.error
    outcome.supersede(cleanup_error)
    outcome.reraise()


async def leave_slots(
    slots: Sequence[LayerRunSlot], inner_error: BaseException | None, on_unwind: Callable[[], None] | None
) -> BaseException | None:
    """Leave whatever of ``slots`` has been entered, in reverse, and return the first error of doing so.

    ``inner_error`` is what comes from inside, of the body or of entry. Every step runs whatever the others raised;
    the returned error has ``inner_error`` in its context chain.
    """
    passage = _Passage(inner_error)
    passage.announce(on_unwind)
    for slot in reversed(slots):
        await passage.leave(slot)
    if passage.first_error is not None and inner_error is not None:
        _attach_context(passage.first_error, inner_error)
    return passage.first_error


class Collected:
    """Keeps the error of its block instead of letting it out, whatever its class.

    Every step of the way out has to run, and a cancellation is no exception to that. The error is not dropped:
    whoever collects it raises it in the end, or the one that came before it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Literal[True]:
        self.error = exc
        return True

    def supersede(self, error: BaseException | None) -> None:
        """Let ``error``, if there is one, take the place of the collected error."""
        if error is not None:
            self.error = error

    def reraise(self) -> None:
        """Raise the collected error, if there is one, with the context it has got, and forget it.

        A plain raise would set ``__context__`` to whatever is being handled here; ``contextlib.ExitStack`` repairs
        it in the same way. Forgetting breaks the reference cycle through the frames of the traceback.
        """
        error, self.error = self.error, None
        if error is None:
            return
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context
            del error, context


class _Passage:
    """One way out through the slots: the error that travels outwards, and the first error of the exit itself."""

    def __init__(self, travelling: BaseException | None) -> None:
        self.travelling = travelling
        self.first_error: BaseException | None = None

    def announce(self, on_unwind: Callable[[], None] | None) -> None:
        with Collected() as outcome:
            if on_unwind is not None:
                on_unwind()
        self._note(outcome.error)

    async def leave(self, slot: LayerRunSlot) -> None:
        """Run the slot's exit hook, if it became active, and exit its resource context, if that was entered."""
        hook_error = None
        if slot.lifecycle_state is LifecycleState.ACTIVE:
            hook_error = await self._run_exit_hook(slot)
        context = slot.active_resource_context
        if context is None:
            return
        slot.active_resource_context = None
        # An inner layer's hook error is not handed on: outer contexts see the body's error or a resource's.
        given = self.travelling if hook_error is None else hook_error
        with Collected() as outcome:
            await _exit_context(context, given)
        if outcome.error is not None and not _is_same(outcome.error, given):
            self._note(outcome.error)
            self.travelling = outcome.error

    async def _run_exit_hook(self, slot: LayerRunSlot) -> BaseException | None:
        if slot.exit_intent is ExitIntent.SUSPEND:
            hook, final_state = slot.layer.on_context_suspend, LifecycleState.SUSPENDED
        else:
            hook, final_state = slot.layer.on_context_delete, LifecycleState.CLOSED
        with Collected() as outcome:
            await hook()
        slot.lifecycle_state = final_state
        self._note(outcome.error)
        return outcome.error

    def _note(self, error: BaseException | None) -> None:
        if self.first_error is None:
            self.first_error = error


async def _enter_all(slots: Sequence[LayerRunSlot]) -> None:
    for slot in slots:
        context = slot.layer.resource_context()
        await context.__aenter__()
        slot.active_resource_context = context
        slot.exit_intent = ExitIntent.DELETE
        if slot.lifecycle_state is LifecycleState.NEW:
            await slot.layer.on_context_create()
        else:
            await slot.layer.on_context_resume()
        slot.lifecycle_state = LifecycleState.ACTIVE


async def _exit_context(context: AbstractAsyncContextManager[object], given: BaseException | None) -> None:
    if given is None:
        await context.__aexit__(None, None, None)
    else:
        await context.__aexit__(type(given), given, given.__traceback__)


def _is_same(raised: BaseException, given: BaseException | None) -> bool:
    """Whether a context raised what it was given: the object itself, or task groups around nothing but it."""
    while isinstance(raised, BaseExceptionGroup) and raised is not given and len(raised.exceptions) == 1:
        raised = raised.exceptions[0]
    return raised is given


def _context_chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__context__


def _attach_context(error: BaseException, inner: BaseException) -> None:
    """Put ``inner`` at the end of ``error``'s context chain, unless one already leads to the other."""
    chain = list(_context_chain(error))
    if any(link is inner for link in chain) or any(link is error for link in _context_chain(inner)):
        return
    chain[-1].__context__ = inner
