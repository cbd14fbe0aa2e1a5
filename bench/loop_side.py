"""Our loop on Trio, in a process of its own: ``python -m bench.loop_side pieces|lean SECONDS``."""

import sys
from collections.abc import Callable
from functools import partial

import trio
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.models import Model

from bench.model import PIECE, PiecesModel
from bench.sampling import DELTAS, sample
from dify_agent.loop.port import Capture, LoopRequest
from dify_agent.loop.run import run_agent_loop
from dify_agent.model.script import ScriptedTurn
from dify_agent.model.scripted import ScriptedModel

MakeModel = Callable[[int], Model]


def _pieces() -> MakeModel:
    """The model that `Agent` is given."""
    models = {deltas: PiecesModel(deltas) for deltas in DELTAS}
    return models.__getitem__


def _lean() -> MakeModel:
    """The model behind `scripted.model`, which counts the requests of its run and so is a new one each time."""
    turns = {deltas: [ScriptedTurn(chunks=deltas, chunk=PIECE)] for deltas in DELTAS}
    return lambda deltas: ScriptedModel(turns[deltas])


MODELS = {"pieces": _pieces, "lean": _lean}


async def run_once(make_model: MakeModel, deltas: int) -> int:
    """One run with a sink that counts."""
    events = 0

    async def sink(_event: AgentStreamEvent) -> None:  # noqa: ASYNC124 - sinks are async
        nonlocal events
        events += 1

    await run_agent_loop(LoopRequest(model=make_model(deltas), prompt="Hello."), sink=sink, capture=Capture())
    return events


if __name__ == "__main__":
    trio.run(sample, partial(run_once, MODELS[sys.argv[1]]()), float(sys.argv[2]))
