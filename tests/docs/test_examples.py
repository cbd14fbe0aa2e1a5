"""The examples of lifecycle.md and layers.md, played against a server, and the error texts of their tables.

A comment before a fence says what it is: ``run <name>`` a request, or with ``like <run>`` members that replace those of
that run's request; ``after <run>`` that the snapshot shown is the one that run left; ``end <name>`` what the run was
answered: its last event, or the body of the refusal. A Python fence builds its ``request`` from the ``composition`` of
the run it comes after.

Pages shorten what is long: the messages of a history are ``["…"]``, or the members that matter; ``usage`` is left out.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from tests.docs.faults import (
    LIMITED,
    REFUSED,
    SAY,
    failing_requests,
    pattern,
    refused_questions,
    refused_requests,
    resumes_that_fail,
    tables,
)
from tests.docs.pages import ROOT
from tests.server.bodies import calling, layer, run_of
from tests.server.clients import Api, open_api
from tests.server.harness import Server, serving
from tests.server.sandboxes import install_sandbox

from agenton.compositor import CompositorSessionSnapshot
from dify_agent.actors.composition import plan_run
from dify_agent.actors.prompts import render_instructions
from dify_agent.layers.registry import create_layer_providers
from dify_agent.model.provider import open_model_registry
from dify_agent.protocol import CreateRunRequest, RunComposition
from dify_agent.store.embedded import running_server, valkey_binary

PAGES: Final = [ROOT / "docs" / "lifecycle.md", ROOT / "docs" / "layers.md"]
SHORT: Final = ["…"]
_MARKED: Final = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(json|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING: Final = frozenset({"id", "run_id", "created_at", "timestamp", "conversation_id"})


@dataclass(frozen=True)
class Example:
    """A fence with its mark."""

    mark: str
    language: str
    text: str

    @property
    def kind(self) -> str:
        return self.mark.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.mark.split()[1]

    def option(self, word: str) -> str | None:
        """The run named behind ``word``."""
        words = self.mark.split()
        return words[words.index(word) + 1] if word in words else None


@dataclass
class Played:
    """What happened to each example, by name."""

    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def snapshot(self, name: str) -> dict[str, Any]:
        return dict(self.answers[name]["data"]["session_snapshot"])


EXAMPLES: Final = [Example(*found) for page in PAGES for found in _MARKED.findall(page.read_text())]
RUNS: Final = [example for example in EXAMPLES if example.kind == "run"]
ENDS: Final = [example for example in EXAMPLES if example.kind == "end"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a package that brings the sandbox of an example."""
    sandbox = install_sandbox(tmp_path_factory.mktemp("sandbox"))
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with serving(process.url, env=sandbox.environment) as started:
            yield started


@pytest.fixture(scope="module")
def played(server: Server) -> Played:
    """Every run of both pages, in their order."""
    played = Played()

    async def play() -> None:
        async with open_api(server) as api:
            for example in RUNS:
                body = _body(example, played)
                played.bodies[example.name] = body
                played.answers[example.name] = await _answer(api, body)

    trio.run(play)
    return played


def _body(example: Example, played: Played) -> dict[str, Any]:
    """The request, with the real snapshot in place of the one shown."""
    before = example.option("after")
    if example.language == "python":
        assert before is not None
        return _built(example.text, played.bodies[before], played.snapshot(before))
    body = dict(json.loads(example.text))
    if (model := example.option("like")) is not None:
        body = played.bodies[model] | body
    if before is not None:
        shown, real = body["session_snapshot"], played.snapshot(before)
        assert _normal(shown) == _normal(_shortened(real, shown)), f"{example.name}: not the snapshot of {before}"
        body["session_snapshot"] = real
    return body


def _built(source: str, previous: dict[str, Any], snapshot: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {
        "composition": RunComposition.model_validate(previous["composition"]),
        "previous_snapshot": CompositorSessionSnapshot.model_validate(snapshot),
    }
    exec(compile(source, "example", "exec"), names)
    request = names["request"]
    assert isinstance(request, CreateRunRequest)
    return request.model_dump(mode="json")


async def _answer(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """The last event of the run, or the body of the refusal."""
    response = await api.client.post("/runs", json=body)
    if response.status_code == REFUSED:
        return dict(response.json())
    assert response.status_code == 202, response.text
    return (await api.finished(response.json()["run_id"]))[-1]


def _shortened(real: Any, shown: Any) -> Any:
    """The real value, as short as the one shown."""
    if shown == SHORT and real:
        return SHORT
    if isinstance(real, dict) and isinstance(shown, dict):
        inside_message = "kind" in shown or "part_kind" in shown
        left_out = set(real) - set(shown) if inside_message else {"usage"} - set(shown)
        return {key: _shortened(value, shown.get(key)) for key, value in real.items() if key not in left_out}
    if isinstance(real, list) and isinstance(shown, list) and len(real) == len(shown):
        return [_shortened(*pair) for pair in zip(real, shown, strict=True)]
    return real


def _normal(value: Any) -> Any:
    """Without what differs from run to run. A layer or an action keeps its id: those are no texts of a run."""
    if isinstance(value, dict):
        varying = _VARYING if "run_id" in value or "part_kind" in value else frozenset()
        return {key: "varies" if key in varying else _normal(inner) for key, inner in value.items()}
    return [_normal(inner) for inner in value] if isinstance(value, list) else value


def test_every_example_is_marked_and_every_end_has_its_run() -> None:
    assert [example.text for example in EXAMPLES if example.kind not in ("run", "end")] == []
    names = [example.name for example in RUNS]
    assert len(set(names)) == len(names)
    assert {example.name for example in ENDS} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("example", ENDS, ids=lambda example: example.name)
def test_the_server_answers_what_the_page_shows(example: Example, played: Played) -> None:
    shown = json.loads(example.text)
    assert _normal(_shortened(played.answers[example.name], shown)) == _normal(shown)


@pytest.mark.slow
def test_examples_without_a_shown_end_succeed(played: Played) -> None:
    quiet = {name: answer for name, answer in played.answers.items() if name not in {end.name for end in ENDS}}
    assert {name: answer for name, answer in quiet.items() if answer.get("type") != "run_succeeded"} == {}


@pytest.mark.slow
def test_an_explicit_default_is_the_default(played: Played) -> None:
    assert played.bodies["explicit"]["on_exit"] == {"default": "suspend", "layers": {}}
    assert _states(played.snapshot("explicit")) == _states(played.snapshot("first"))


@pytest.mark.slow
def test_the_python_example_closes_the_layer_it_names(played: Played) -> None:
    states = _states(played.snapshot("dto"))
    assert states.pop("temporary_context") == "closed"
    assert set(states.values()) == {"suspended"}


@pytest.mark.slow
async def test_a_session_goes_on_without_its_closed_layer(played: Played, server: Server) -> None:
    name = "temporary_context"
    body, snapshot = played.bodies["override"], played.snapshot("override")
    without = {"layers": [each for each in body["composition"]["layers"] if each["name"] != name]}
    trimmed = {"layers": [each for each in snapshot["layers"] if each["name"] != name]}
    fresh = {"name": name, "lifecycle_state": "new", "runtime_state": {}}
    renewed = {"layers": [fresh if each["name"] == name else each for each in snapshot["layers"]]}
    async with open_api(server) as api:
        closed = await _answer(api, body | {"session_snapshot": snapshot})
        assert closed["data"]["error"] == f"Layer '{name}' is closed; CLOSED snapshots cannot be entered."
        dropped = await _answer(api, {"composition": without, "session_snapshot": trimmed})
        assert dropped["type"] == "run_succeeded"
        again = await _answer(api, body | {"session_snapshot": renewed, "on_exit": {}})
        assert _states(again["data"]["session_snapshot"])[name] == "suspended"


@pytest.mark.slow
async def test_a_deleted_session_does_not_resume(played: Played, server: Server) -> None:
    async with open_api(server) as api:
        again = await _answer(api, played.bodies["cleanup"] | {"session_snapshot": played.snapshot("cleanup")})
    assert again["data"]["error"] == "Layer 'prompt' is closed; CLOSED snapshots cannot be entered."


@pytest.mark.slow
async def test_a_failed_run_resumes_with_what_had_arrived(played: Played, server: Server) -> None:
    body = played.bodies["failed"] | {"session_snapshot": played.snapshot("failed")}
    body["composition"] = {"layers": [*body["composition"]["layers"][:-1], layer("llm", "scripted.model", turns=[SAY])]}
    async with open_api(server) as api:
        answer = await _answer(api, body)
    messages = answer["data"]["session_snapshot"]["layers"][1]["runtime_state"]["messages"]
    assert [part["content"] for message in messages for part in message["parts"]] == [
        "What is a nursery?",
        "A home A home ",
        "What is a nursery?",
        "Hello.",
    ]


@pytest.mark.slow
async def test_questions_left_open_are_closed_at_the_next_prompt(server: Server) -> None:
    asking = run_of({"tool_calls": calling("ask_human", question="Which?")["tool_calls"] * 2})
    onward = run_of(SAY)
    for body in (asking, onward):
        body["composition"]["layers"].insert(0, layer("ask_human", "dify.ask_human"))
    async with open_api(server) as api:
        failed = await _answer(api, asking)
        answer = await _answer(api, onward | {"session_snapshot": failed["data"]["session_snapshot"]})
    messages = answer["data"]["session_snapshot"]["layers"][2]["runtime_state"]["messages"]
    results = [part["content"] for each in messages for part in each["parts"] if part["part_kind"] == "tool-return"]
    assert results == ["The tool call was interrupted before a result was produced."] * 2
    assert results[0] in PAGES[0].read_text()


@pytest.mark.slow
async def test_instructions_have_the_order_that_the_page_says(played: Played) -> None:
    request = CreateRunRequest.model_validate(played.bodies["prompts"])
    async with open_model_registry() as models:
        plan = plan_run(request, create_layer_providers(models=models, scripted_layers=True))
        async with plan.compositor.enter(configs=plan.configs) as run:
            texts = await render_instructions(run.prompts)
    assert ", ".join(f"“{text}”" for text in texts) in PAGES[1].read_text()


@pytest.mark.slow
async def test_failures_are_the_tables(played: Played, server: Server) -> None:
    """Each request fails as one row says, and each row has a request that fails so."""
    rows = [row for page in PAGES for row in tables(page, "Fault", "Text", "Snapshot")]
    met: set[str] = set()
    async with open_api(server) as api:
        for body in [*failing_requests(), *resumes_that_fail(played.bodies, played.snapshot)]:
            answer = await _answer(api, body)
            assert answer.get("type") == "run_failed", (body, answer)
            data = answer["data"]
            assert (data["error_type"], data["reason"]) == (None, None)
            left = "null" if data["session_snapshot"] is None else "present"
            fitting = {text for _, text, snapshot in rows if pattern(text).search(data["error"]) and snapshot == left}
            assert fitting, data["error"]
            met |= fitting
    assert {text for _, text, _ in rows} - met == set()


@pytest.mark.slow
async def test_refusals_are_the_table(server: Server) -> None:
    rows = tables(PAGES[0], "Fault", "Text")
    async with open_api(server) as api:
        answers = [await _answer(api, body) for body in refused_requests()]
    details = [json.dumps(answer["detail"], ensure_ascii=False) for answer in answers]
    assert len(details) == len(rows)
    for (_, text), detail in zip(rows, details, strict=True):
        assert pattern(text).search(detail), detail


@pytest.mark.slow
async def test_questions_are_refused_as_the_table_says(server: Server) -> None:
    rows = tables(PAGES[1], "A question with", "What the model reads")
    questions = list(refused_questions())
    assert len(questions) == len(rows)
    async with open_api(server) as api:
        for (_, text), question in zip(rows, questions, strict=True):
            body = run_of(calling("ask_human", **question), SAY)
            body["composition"]["layers"].insert(0, layer("ask_human", "dify.ask_human", **LIMITED))
            events = await api.run(body)
            told = [each["data"]["part"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
            assert pattern(text).search(json.dumps(told[0]["content"], ensure_ascii=False)), (text, told)
            assert events[-1]["type"] == "run_succeeded"


def _states(snapshot: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["lifecycle_state"] for each in snapshot["layers"]}
