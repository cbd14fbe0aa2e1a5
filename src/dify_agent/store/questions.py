"""Asking Redis: what every group of the store's operations is built from."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.executor import Argument, Call, Command, Executor, Item, Lane, Reply
from dify_agent.store.keys import Keys
from dify_agent.store.lua import Script

_SWEEP = 500
"""Runs per round trip in operations over many runs, so that none holds the server for long."""


class Questions:
    """Asks an executor, and gives what is written its TTL."""

    def __init__(self, executor: Executor, keys: Keys, *, retention_seconds: int) -> None:
        self._executor = executor
        self._keys = keys
        self._retention = retention_seconds

    async def _all(
        self, *items: Command | Call, lane: Lane = Lane.REQUESTS, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        # For operations that stand or fall as one: the first error is raised.
        replies = await self._executor.execute(items, lane=lane, block_seconds=block_seconds, in_order=in_order)
        return [sound(reply) for reply in replies]

    async def _answers(self, items: Sequence[Item], *, lane: Lane) -> Sequence[Reply]:
        # For operations whose parts stand alone: each has its reply or its error.
        if not items:
            return []
        try:
            return await self._executor.execute(items, lane=lane)
        except StoreUnavailableError as error:
            return [error] * len(items)

    async def _answers_by_run(
        self, run_ids: Sequence[str], ask: Callable[[str], Item], *, lane: Lane
    ) -> dict[str, Reply]:
        """What was answered for each of many runs; those whose server did not answer are left out.

        Raises:
            StoreUnavailableError: nothing was answered.
        """
        replies: list[Reply] = []
        for chunk in chunks(run_ids):
            replies += await self._answers([ask(run_id) for run_id in chunk], lane=lane)
        check_answered(replies)
        answers = zip(run_ids, replies, strict=True)
        return {run_id: reply for run_id, reply in answers if not isinstance(reply, StoreUnavailableError)}

    def _call(self, script: Script, run_id: str, *arguments: Argument) -> Call:
        return Call(script, self._keys.run(run_id), arguments)

    def _expire(self, key: str) -> Command:
        return Command(b"EXPIRE", (key, self._retention))


def sound(reply: Reply) -> Reply:
    """The reply, unless it is an error, which is raised."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def check_answered(replies: Sequence[Reply]) -> None:
    """Raise the first error when the store answered none of what it was asked."""
    if replies and all(isinstance(reply, StoreUnavailableError) for reply in replies):
        sound(replies[0])


def chunks(run_ids: Sequence[str]) -> Iterator[list[str]]:
    """As many as one round trip may concern."""
    rest = iter(run_ids)
    while chunk := list(islice(rest, _SWEEP)):
        yield chunk
