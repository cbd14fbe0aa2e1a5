"""What a run is asked for and cannot have, and what a later run takes up again: the contract over HTTP."""

import copy
from typing import Any

import pytest
from tests.server.bodies import layer, run_of, text_run, tool_run
from tests.server.clients import Api
from tests.server.harness import StoreServer, stored_records

CLEANUP = {"layers": [layer("prompt", "plain.prompt", user="Hello."), layer("history", "pydantic_ai.history")]}


def with_layers(*layers: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"composition": {"layers": list(layers)}, **members}


def states(terminal: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["lifecycle_state"] for each in terminal["data"]["session_snapshot"]["layers"]}


def messages(terminal: dict[str, Any]) -> list[dict[str, Any]]:
    layers = {each["name"]: each for each in terminal["data"]["session_snapshot"]["layers"]}
    return list(layers["history"]["runtime_state"]["messages"])


async def snapshot_of(api: Api, **members: Any) -> dict[str, Any]:
    terminal = (await api.run(text_run(prompt="First question.", **members)))[-1]
    assert terminal["type"] == "run_succeeded", terminal
    return dict(terminal["data"]["session_snapshot"])


PROMPT = layer("prompt", "plain.prompt", user="Hello.")
MODEL = layer("llm", "scripted.model", turns=[{"text": "hi"}])
FRESH_MODEL = {"name": "llm", "lifecycle_state": "new", "runtime_state": {}}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (with_layers(PROMPT, layer("x", "no.such"), MODEL), "\"Layer type id 'no.such' is not registered.\""),
        (with_layers(PROMPT), "Missing required 'llm' layer."),
        (with_layers(), "Missing required 'llm' layer."),
        (
            with_layers(PROMPT, MODEL, on_exit={"layers": {"zz": "delete", "aa": "suspend", "llm": "delete"}}),
            "on_exit.layers references unknown layer ids: aa, zz.",
        ),
        (with_layers(PROMPT, PROMPT, MODEL), "Duplicate layer name 'prompt'."),
        (with_layers(PROMPT, {**MODEL, "name": ""}), "Layer node name must not be empty."),
        (
            with_layers(PROMPT, layer("past", "pydantic_ai.history"), MODEL),
            "Layer type 'pydantic_ai.history' must use reserved layer name 'history', got 'past'.",
        ),
        (
            {"composition": {"schema_version": 2, "layers": [PROMPT, MODEL]}},
            "Unsupported compositor config schema_version: 2.",
        ),
        (
            with_layers(PROMPT, MODEL, session_snapshot={"layers": [FRESH_MODEL]}),
            "CompositorSessionSnapshot layer names must match compositor layers in order. "
            "Expected [prompt, llm], got [llm].",
        ),
        (
            with_layers(PROMPT, MODEL, session_snapshot={"schema_version": 9, "layers": []}),
            "Unsupported compositor session snapshot schema_version: 9.",
        ),
    ],
)
async def test_what_cannot_be_entered_fails_without_a_snapshot(api: Api, body, error):
    """Protocol 3.2, P1 to P4: accepted, started, failed; the text is part of the contract."""
    events = await api.run(body)
    assert [event["type"] for event in events] == ["run_started", "run_failed"]
    data = events[-1]["data"]
    assert data["error"] == error
    assert (data["error_type"], data["reason"], data["session_snapshot"]) == (None, None, None)


async def test_a_bad_layer_config_fails_the_run(api: Api):
    events = await api.run(with_layers(layer("prompt", "plain.prompt", user=7), MODEL))
    assert events[-1]["type"] == "run_failed"
    assert "PromptLayerConfig" in events[-1]["data"]["error"]


@pytest.mark.parametrize("prompt", ["", "   ", ["", " \n\t"], []])
async def test_a_blank_prompt_is_refused_and_nothing_is_stored(store: StoreServer, server, api: Api, prompt):
    """D1."""
    before = len(stored_records(store, server.prefix))
    response = await api.client.post("/runs", json=with_layers(layer("prompt", "plain.prompt", user=prompt), MODEL))
    assert response.status_code == 422
    assert response.json() == {"detail": "run.user_prompts must not be empty"}
    assert len(stored_records(store, server.prefix)) == before


async def test_one_visible_character_in_any_layer_is_a_prompt(api: Api):
    blank = layer("blank", "plain.prompt", user=["", "  "])
    assert (await api.run(with_layers(blank, PROMPT, MODEL)))[-1]["type"] == "run_succeeded"


async def test_exit_intents_show_in_the_snapshot(api: Api):
    """C14, Q26; layers 3.4: they hold on failure as well."""
    on_exit = {"default": "suspend", "layers": {"prompt": "delete", "llm": "delete"}}
    expected = {"prompt": "closed", "history": "suspended", "llm": "closed"}
    assert states((await api.run(text_run(on_exit=on_exit)))[-1]) == expected
    failed = (await api.run(run_of({"error": "no"}, on_exit=on_exit)))[-1]
    assert failed["type"] == "run_failed"
    assert states(failed) == expected


async def test_a_session_goes_on_with_its_history(api: Api):
    snapshot = await snapshot_of(api)
    terminal = (await api.run(text_run("Second answer.", prompt="Second question.", session_snapshot=snapshot)))[-1]
    assert terminal["data"]["output"] == "Second answer."
    assert [message["kind"] for message in messages(terminal)] == ["request", "response"] * 2
    assert messages(terminal)[:2] == snapshot["layers"][1]["runtime_state"]["messages"]
    assert {message["instructions"] for message in messages(terminal) if message["kind"] == "request"} == {None}


async def test_the_history_of_a_failed_run_goes_on(api: Api):
    failed = (await api.run(run_of({"error": "overloaded", "after_chunks": 2}, prompt="First question.")))[-1]
    assert failed["type"] == "run_failed"
    assert failed["data"]["error"] == "overloaded"
    snapshot = failed["data"]["session_snapshot"]
    terminal = (await api.run(text_run(prompt="Second question.", session_snapshot=snapshot)))[-1]
    assert terminal["type"] == "run_succeeded", terminal
    texts = [part["content"] for message in messages(terminal) for part in message["parts"]]
    assert "First question." in texts
    assert "Second question." in texts


async def test_a_closed_layer_cannot_be_entered_again(api: Api):
    snapshot = await snapshot_of(api, on_exit={"layers": {"prompt": "delete"}})
    events = await api.run(text_run(session_snapshot=snapshot))
    assert events[-1]["type"] == "run_failed"
    assert events[-1]["data"]["error"] == "Layer 'prompt' is closed; CLOSED snapshots cannot be entered."


@pytest.mark.parametrize("state", ["active", "open"])
async def test_impossible_snapshot_states_are_refused(api: Api, state):
    snapshot = copy.deepcopy(await snapshot_of(api))
    snapshot["layers"][0]["lifecycle_state"] = state
    response = await api.client.post("/runs", json=text_run(session_snapshot=snapshot))
    assert response.status_code == 422


@pytest.mark.parametrize("trimmed", [False, True], ids=["whole-snapshot", "trimmed-snapshot"])
async def test_a_cleanup_run_leaves_every_layer(api: Api, trimmed):
    """D2: no model layer, the last snapshot, exit with delete."""
    snapshot = await snapshot_of(api)
    if trimmed:
        snapshot["layers"] = [each for each in snapshot["layers"] if each["name"] != "llm"]
    body = {"composition": CLEANUP, "session_snapshot": snapshot, "on_exit": {"default": "delete"}}
    events = await api.run(body)
    assert [event["type"] for event in events] == ["run_started", "run_succeeded"]
    data = events[-1]["data"]
    assert list(data) == ["session_snapshot", "output"]
    assert data["output"] is None
    assert states(events[-1]) == {"prompt": "closed", "history": "closed"}


async def test_a_cleanup_run_takes_no_tool_results(api: Api):
    body = {"composition": CLEANUP, "session_snapshot": await snapshot_of(api), "deferred_tool_results": {}}
    assert (await api.run(body))[-1]["data"]["error"] == "Deferred tool results require the reserved 'llm' layer."


async def test_a_failing_tool_fails_the_run_with_its_text(api: Api):
    events = await api.run(tool_run(error="the disk is full"))
    assert events[-1]["type"] == "run_failed"
    assert events[-1]["data"]["error"] == "the disk is full"
    assert states(events[-1]) == dict.fromkeys(("prompt", "history", "tools", "llm"), "suspended")


async def test_the_reserved_model_slot_must_hold_a_model(api: Api):
    events = await api.run(with_layers(PROMPT, layer("llm", "plain.prompt", user="x")))
    assert events[-1]["type"] == "run_failed"
    assert "Layer 'llm' must be" in events[-1]["data"]["error"]
    assert events[-1]["data"]["session_snapshot"] is not None
