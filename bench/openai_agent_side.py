"""`pydantic_ai.Agent` with its OpenAI adapter on asyncio, in a process of its own: ``python -m bench.openai_agent_side
URL SECONDS``.

Agent, models and client are made once: kinder than a server could be, see `bench.agent_side`.
"""

import sys
from collections.abc import AsyncIterable, Mapping
from functools import partial
from typing import Any

import anyio
from pydantic_ai import Agent
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, TextPartDelta
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import RunContext

from bench.gateway_text import PACES, PROMPT, check_run
from bench.sampling import sample_paces


async def run_once(agent: Agent[None, str], models: Mapping[str, OpenAIChatModel], model_name: str) -> None:
    """One run with an event handler that counts."""
    deltas = 0

    async def handler(_context: RunContext[Any], stream: AsyncIterable[AgentStreamEvent]) -> None:
        nonlocal deltas
        async for event in stream:
            deltas += isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta)

    result = await agent.run(PROMPT, model=models[model_name], event_stream_handler=handler)
    check_run(result.output, deltas)


async def main(url: str, seconds: float) -> None:
    """Print one sample."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="key")
    models = {name: OpenAIChatModel(name, provider=provider) for name in PACES}
    await sample_paces(partial(run_once, Agent(), models), seconds)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]), backend="asyncio")
