"""`pydantic_ai.Agent` on asyncio, in a process of its own: ``python -m bench.agent_side SECONDS``.

The agent is built once and used for every run, which is kinder to it than a server could be: there, each run brings
its own tools and prompts.
"""

import sys
from collections.abc import AsyncIterable
from functools import partial
from typing import Any

import anyio
from pydantic_ai import Agent
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

from bench.model import PiecesModel
from bench.sampling import DELTAS, sample


async def run_once(agent: Agent[None, str], models: dict[int, PiecesModel], deltas: int) -> int:
    """One run with an event handler that counts."""
    events = 0

    async def handler(_context: RunContext[Any], stream: AsyncIterable[AgentStreamEvent]) -> None:
        nonlocal events
        async for _event in stream:
            events += 1

    await agent.run("Hello.", model=models[deltas], event_stream_handler=handler)
    return events


async def main(seconds: float) -> None:
    """Print one sample."""
    once = partial(run_once, Agent(), {deltas: PiecesModel(deltas) for deltas in DELTAS})
    await sample(once, seconds)


if __name__ == "__main__":
    anyio.run(main, float(sys.argv[1]), backend="asyncio")
