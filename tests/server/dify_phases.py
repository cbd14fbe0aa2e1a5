"""Runs that wait for Dify, each in another phase, all at the same time."""

from typing import Any, Final

from tests.server.clients import Api
from tests.server.dify_bodies import dify_run
from tests.server.dify_fakes import FakeDify
from tests.server.dify_faults import CORE_TOOL, FIRST_SEARCH, PLUGIN_TOOL, SEARCH
from tests.server.dify_scripts import DONE
from tests.server.harness import until

from dify_agent.testing import Outcome, RecordedRequest

SILENT_MODEL: Final = "a model that says nothing"
TALKING_MODEL: Final = "a model in the middle of its text"

_NO_MODEL: Final = (PLUGIN_TOOL, CORE_TOOL, SEARCH, FIRST_SEARCH)
PHASES: Final = {SILENT_MODEL: (), TALKING_MODEL: (), **{asked.name: asked.layers for asked in _NO_MODEL}}
"""What is waited for, which is also the model's name, and the layers of such a run."""


def script(model: dict[str, Any], talking: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What the silent model, the talking model, and all that is no model do in their phase."""
    calling = [
        {"model": asked.name, "steps": [{"tool_calls": [asked.call]}, DONE]} for asked in _NO_MODEL if asked.call
    ]
    models = [{"model": SILENT_MODEL, "steps": [model]}, {"model": TALKING_MODEL, "steps": [talking]}, *calling]
    return {
        "llm": [*models, {"steps": [DONE]}],
        "tools": [{"steps": [other]}],
        "core_tools": [{"steps": [other]}],
        "knowledge": [{"steps": [other]}],
    }


WAITING_FOR_EVER: Final = script({"end": "silent"}, {"chunks": 3, "end": "hang"}, {"end": "silent"})
WAITING_A_WHILE: Final = script(
    {"first_delay_ms": 700}, {"chunks": 7, "delay_ms": 100}, {"first_delay_ms": 700}
)  # fmt: skip


def in_phase(dify: FakeDify) -> list[RecordedRequest]:
    """The requests that runs wait for, whatever has become of them; not the model calls that led there or follow."""
    waited_for = (SILENT_MODEL, TALKING_MODEL)
    return [each for each in dify.to("/") if _model(each) in (None, *waited_for)]


def _model(request: RecordedRequest) -> str | None:
    """Whom a model call is for."""
    body = request.body
    model = body.get("target", body.get("data", {})).get("model")
    return None if model is None else str(model)


async def start(api: Api, dify: FakeDify) -> dict[str, str]:
    """A run per phase, and its id; returns when all are in their phase."""
    run_ids = {phase: await api.create(dify_run(*layers, llm={"model": phase})) for phase, layers in PHASES.items()}
    await until(lambda: len(in_phase(dify)) == len(PHASES), "every run is in its phase")
    await api.events_until(run_ids[TALKING_MODEL], "part_start")
    assert {each.outcome for each in in_phase(dify)} <= {Outcome.OPEN, Outcome.ANSWERED}
    return run_ids


async def all_left(dify: FakeDify) -> None:
    """Return when the server has let go of everything that was waited for."""
    await until(lambda: {each.outcome for each in in_phase(dify)} == {Outcome.LEFT}, "the server leaves", 3)
