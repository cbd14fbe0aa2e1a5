"""Runs that wait for Dify, each in another phase, all at the same time."""

from typing import Any, Final

from tests.server.clients import Api
from tests.server.dify_bodies import core_tools, dify_run, knowledge, plugin_tools
from tests.server.dify_fakes import FakeDify
from tests.server.dify_scripts import DONE, call
from tests.server.harness import until

from dify_agent.testing import Outcome, RecordedRequest

SILENT_MODEL: Final = "a model that says nothing"
TALKING_MODEL: Final = "a model in the middle of its text"
PLUGIN_TOOL: Final = "a plugin tool"
CORE_TOOL: Final = "a core tool"
SEARCH: Final = "a search of the model"
FIRST_SEARCH: Final = "a search before the first prompt"

PHASES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    SILENT_MODEL: (),
    TALKING_MODEL: (),
    PLUGIN_TOOL: (plugin_tools("web_search"),),
    CORE_TOOL: (core_tools("current_time"),),
    SEARCH: (knowledge(mode="generated_query"),),
    FIRST_SEARCH: (knowledge(mode="user_query", value="a"),),
}
"""What is waited for, which is also the model's name, and the layers of such a run."""

_CALLS: Final = {
    PLUGIN_TOOL: call("web_search", query="a"),
    CORE_TOOL: call("current_time", query="a"),
    SEARCH: call("knowledge_base_search", set_name="manual", query="a"),
}


def script(model: dict[str, Any], talking: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What the silent model, the talking model, and all that is no model do in their phase."""
    calling = [{"model": name, "steps": [{"tool_calls": [each]}, DONE]} for name, each in _CALLS.items()]
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
