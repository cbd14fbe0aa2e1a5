"""A loop that is wrong on purpose: one request, no tools, no capture of a cut stream. The suite must notice."""

from contextlib import aclosing
from typing import Any

import trio
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from tests.oracle.clock import trio_clock
from tests.oracle.driver import Player, Setup
from tests.oracle.lines import serve
from tests.oracle.scenario import Scenario


async def perform(setup: Setup) -> Any:
    """Ask the model once and return its text."""
    setup.messages.append(ModelRequest(parts=[UserPromptPart(str(setup.run.prompt))]))
    async with setup.model.request_stream(setup.messages, None, ModelRequestParameters()) as stream:
        async with aclosing(stream.__aiter__()) as events:  # type: ignore[type-var]
            async for event in events:
                await setup.sink(event)
        response = stream.get()
    setup.messages.append(response)
    return response.text


def play(scenario: Scenario) -> list[dict[str, Any]]:
    """The scenario's records."""
    return trio.run(Player(scenario, perform).play, clock=trio_clock(real_time=scenario.real_time))


if __name__ == "__main__":
    serve(play)
