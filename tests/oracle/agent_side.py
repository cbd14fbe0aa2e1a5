"""Process 1: ``pydantic_ai.Agent`` on asyncio. Scenarios come as JSON lines on stdin, records leave on stdout."""

import functools
from collections.abc import AsyncIterable
from typing import Any

import anyio
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.output import ToolOutput
from pydantic_ai.tools import DeferredToolRequests, RunContext
from pydantic_ai.usage import UsageLimits

from tests.oracle.clock import asyncio_options
from tests.oracle.driver import Player, Setup
from tests.oracle.layers import contract_type, output_contract
from tests.oracle.lines import serve
from tests.oracle.scenario import OutputSpec, Scenario
from tests.oracle.scripted import output_type


def _shown_type(spec: OutputSpec) -> Any:
    return contract_type(output_contract(spec)) if spec.kind == "contract" else output_type(spec, with_description=True)


def _output_types(setup: Setup) -> list[Any]:
    types: list[Any] = [str]
    if setup.output is not None:
        shown = _shown_type(setup.output)
        types = [ToolOutput(shown, name="final_output", strict=setup.output.strict)]
    return [*types, DeferredToolRequests] if setup.allow_deferred else types


def _fragment(content: str) -> Any:
    async def fragment() -> str:  # a sync one would be run in a thread
        await anyio.lowlevel.checkpoint()
        return content

    return fragment


async def perform(setup: Setup) -> Any:
    """One run of an `Agent` built for it."""
    run = setup.run
    agent: Any = Agent(
        setup.model,
        tools=setup.tools,
        output_type=_output_types(setup),
        instructions=[_fragment(content) for content in run.instructions],
    )

    async def handler(_context: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            await setup.sink(event)

    with capture_run_messages() as messages:
        try:
            result = await agent.run(
                run.prompt,
                message_history=setup.history,
                deferred_tool_results=setup.results,
                model_settings=run.settings,
                usage=setup.usage,
                usage_limits=UsageLimits(request_limit=run.limit),
                event_stream_handler=handler,
            )
        finally:
            setup.messages = messages
    return result.output


def play(scenario: Scenario) -> list[dict[str, Any]]:
    """The scenario's records."""
    player = functools.partial(Player(scenario, perform).play)
    return anyio.run(player, backend_options=asyncio_options(real_time=scenario.real_time))


if __name__ == "__main__":
    serve(play)
