"""A task that stays keeps nothing of the one that started it."""

from contextvars import ContextVar, copy_context

import trio

from dify_agent.concurrency.contexts import forget_starter

_REQUEST: ContextVar[str] = ContextVar("request")


async def _look(found: list[str | None], *, forget: bool) -> None:
    if forget:
        forget_starter()
    await trio.lowlevel.checkpoint()
    found.append(_REQUEST.get(None))
    async with trio.open_nursery() as nursery:

        async def child() -> None:
            found.append(_REQUEST.get(None))

        nursery.start_soon(child)


async def test_the_starters_variables_are_gone_from_the_task_and_its_children() -> None:
    _REQUEST.set("body and token")
    kept: list[str | None] = []
    forgotten: list[str | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _look(kept, forget=False))
        nursery.start_soon(lambda: _look(forgotten, forget=True))
    assert (kept, forgotten) == (["body and token"] * 2, [None] * 2)
    assert copy_context()[_REQUEST] == "body and token"
