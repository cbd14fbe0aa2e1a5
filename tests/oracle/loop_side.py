"""Process 2: the loop on Trio. Scenarios come as JSON lines on stdin, records leave on stdout."""

import sys
from typing import Any

import trio
from pydantic import TypeAdapter

from tests.oracle.clock import trio_clock
from tests.oracle.driver import Player, Setup
from tests.oracle.layers import output_contract
from tests.oracle.lines import serve
from tests.oracle.scenario import OutputSpec, Scenario
from tests.oracle.scripted import output_type


def _contract(spec: OutputSpec) -> Any:
    if spec.kind == "contract":
        return output_contract(spec)
    from dify_agent.loop.port import OutputContract

    return OutputContract(
        json_schema={**spec.json_schema, "title": "final_output"},
        validator=TypeAdapter(output_type(spec, with_description=False)),
        description=spec.description,
        strict=spec.strict,
    )


async def perform(setup: Setup) -> Any:
    """One run of the loop."""
    from dify_agent.loop.port import Capture, LoopRequest
    from dify_agent.loop.run import run_agent_loop

    run = setup.run
    capture = Capture(messages=setup.messages, usage=setup.usage)
    request = LoopRequest(
        model=setup.model,
        history=setup.history,
        prompt=run.prompt,
        deferred_results=setup.results,
        instructions=[content for content in run.instructions if content.strip()],  # as the compositor does
        tools=setup.tools,
        output=None if setup.output is None else _contract(setup.output),
        allow_deferred=setup.allow_deferred,
        model_settings=run.settings,  # type: ignore[arg-type]
        request_limit=run.limit,
    )
    try:
        return await run_agent_loop(request, sink=setup.sink, capture=capture)
    finally:
        setup.messages = capture.messages
        setup.usage = capture.usage


def play(scenario: Scenario) -> list[dict[str, Any]]:
    """The scenario's records."""
    player = Player(scenario, perform)
    return trio.run(player.play, clock=trio_clock(real_time=scenario.real_time), strict_exception_groups=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--mutant":
        from tests.oracle.mutants import apply

        apply(sys.argv[2])
    serve(play)
