"""`dify.config` on the real server: an installed package's sandbox runs ``/bin/sh`` and a ``dify-agent`` that plays
the one of a real sandbox. What the model reads is seen in what the fake Dify API is asked."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.server.bodies import layer
from tests.server.clients import Api, open_api
from tests.server.dify_bodies import CONTEXT, dify_run
from tests.server.dify_fakes import MODEL_PATH, FakeDify, fake_dify
from tests.server.harness import Server, StoreServer, serving, until
from tests.server.sandboxes import SandboxFolder, install_sandbox, sandboxed

MENTIONS = {"mentioned_skill_names": ["tidy", "sweep"], "mentioned_file_names": ["a b.pdf"]}
SKILLS = ["config", "skills", "pull", "--json", "tidy", "sweep"]
FILES = ["config", "files", "pull", "--json", "a b.pdf"]
LLM = layer("llm", "scripted.model", turns=[{"text": "Hello."}])


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    with fake_dify() as fakes:
        yield fakes


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> SandboxFolder:
    return install_sandbox(tmp_path_factory.mktemp("sandbox"))


@pytest.fixture
def folder(installed: SandboxFolder) -> Iterator[SandboxFolder]:
    """Nothing that a run starts in the sandbox outlives it."""
    installed.forget()
    yield installed
    assert installed.running() == []


@pytest.fixture(scope="module")
def server(store: StoreServer, dify: FakeDify, installed: SandboxFolder) -> Iterator[Server]:
    with serving(store.url, env={**dify.environment, **installed.environment}) as started:
        yield started


def scripted(*layers: dict[str, Any], llm: bool = True, **members: Any) -> dict[str, Any]:
    composed = [
        layer("prompt", "plain.prompt", user="Hello."),
        layer("execution_context", "dify.execution_context", **CONTEXT),
        *layers,
        *([LLM] if llm else []),
    ]
    return {"composition": {"layers": composed}, **members}


def arguments(folder: SandboxFolder) -> list[list[str]]:
    return [call["arguments"] for call in folder.calls]


def ended(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    assert events[-1]["type"] == kind, events[-1]
    return dict(events[-1]["data"])


def failure(events: list[dict[str, Any]], reason: str | None = None) -> str:
    """The text of a run that failed at its entry."""
    assert [event["type"] for event in events] == ["run_started", "run_failed"]
    data = ended(events, "run_failed")
    assert (data["error_type"], data["reason"], data["session_snapshot"]) == (None, reason, None)
    return str(data["error"])


def state_of(data: dict[str, Any]) -> dict[str, Any]:
    [state] = [each["runtime_state"] for each in data["session_snapshot"]["layers"] if each["name"] == "config"]
    return dict(state)


def system_text(dify: FakeDify) -> str:
    """What the last model request says first."""
    first = dify.bodies(MODEL_PATH)[-1]["target"]["prompt_messages"][0]
    assert first["role"] == "system"
    return str(first["content"])


async def test_the_model_reads_what_was_pulled(api: Api, dify: FakeDify, folder: SandboxFolder) -> None:
    await dify.play(llm=[{"steps": [{"text": "Done."}]}])
    config = {**MENTIONS, "skills": [{"name": "tidy", "size": 3}], "env_keys": ["KEY"], "note": "Be neat."}
    data = ended(await api.run(dify_run(*sandboxed(**config))), "run_succeeded")
    assert arguments(folder) == [SKILLS, FILES]
    tokens = {call["stub"]["DIFY_AGENT_STUB_AUTH_JWE"] for call in folder.calls}
    assert len(tokens) == 2
    text = system_text(dify)
    parts = [
        "Be brief.",
        "$ dify-agent config skills pull tidy\n/sandbox/.dify_conf/skills/tidy\n# tidy\nDo it.",
        "$ dify-agent config skills pull sweep\n/sandbox/.dify_conf/skills/sweep\n# sweep\nDo it.",
        "$ dify-agent config files pull 'a b.pdf'\n/sandbox/.dify_conf/files/a b.pdf",
        '{"skills":[{"name":"tidy","description":"","size":3}],"files":[],"env_keys":["KEY"],"note":"Be neat."}',
        "The config cannot be changed in this run.",
        "dify-agent config manifest",
        "public_download_url",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "config files push" not in text
    assert not any(token in text or token in json.dumps(data) for token in tokens)


async def test_a_resumed_run_pulls_nothing_and_says_the_same(api: Api, dify: FakeDify, folder: SandboxFolder) -> None:
    await dify.play(llm=[{"steps": [{"text": "One."}]}, {"steps": [{"text": "Two."}]}])
    body = dify_run(*sandboxed(**MENTIONS, config_version={"kind": "build_draft", "writable": True}))
    first = ended(await api.run(body), "run_succeeded")
    said = system_text(dify)
    assert "dify-agent config files push" in said
    folder.forget()
    changed = dify_run(*sandboxed(mentioned_skill_names=["other"]), session_snapshot=first["session_snapshot"])
    second = ended(await api.run(changed), "run_succeeded")
    assert folder.calls == []
    assert state_of(second) == state_of(first)
    assert state_of(first)["pulled_file_outputs"] == {"a b.pdf": "/sandbox/.dify_conf/files/a b.pdf"}
    assert len(dify.to(MODEL_PATH)) == 2
    assert system_text(dify) == said


async def test_a_cleanup_run_pulls_nothing(api: Api, folder: SandboxFolder) -> None:
    first = ended(await api.run(scripted(*sandboxed(**MENTIONS))), "run_succeeded")
    folder.forget()
    cleanup = scripted(
        *sandboxed(**MENTIONS), llm=False, session_snapshot=first["session_snapshot"], on_exit={"default": "delete"}
    )
    ended(await api.run(cleanup), "run_succeeded")
    assert folder.calls == []


async def test_nothing_mentioned_runs_nothing(api: Api, folder: SandboxFolder) -> None:
    ended(await api.run(scripted(*sandboxed(skills=[{"name": "tidy"}]))), "run_succeeded")
    assert folder.calls == []


PULL_SKILLS = (
    "The skill 'tidy' and 1 more could not be pulled into the sandbox: "
    "`dify-agent config skills pull --json tidy sweep` "
)
PULL_FILES = "The file 'a b.pdf' could not be pulled into the sandbox: `dify-agent config files pull --json 'a b.pdf'` "
FAULTS = [
    ("fail", "ended with status 1: dify-agent: ***: {kind} are not for you"),
    ("silent", "printed nothing"),
    ("garbage", "printed no JSON (expected value at line 1 column 1)"),
    ("huge", "printed more than 1048576 bytes"),
    ("missing", "printed JSON that is no object with a list 'items'"),
    ("unasked", "printed no item for the {one}"),
    ("hang", "did not end within 60 seconds"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
@pytest.mark.parametrize("kind", ["skills", "files"])
async def test_a_pull_that_goes_wrong_fails_the_run(
    api: Api, server: Server, folder: SandboxFolder, kind: str, fault: tuple[str, str]
) -> None:
    how, problem = fault
    shell = {"env": {f"ACME_{kind.upper()}": how}, "max_seconds": 3 if how == "hang" else 30}
    events = await api.run(scripted(*sandboxed(shell=shell, **MENTIONS)))
    beginning = PULL_SKILLS if kind == "skills" else PULL_FILES
    assert failure(events) == beginning + problem.format(
        kind=kind, one="skill 'tidy'" if kind == "skills" else "file 'a b.pdf'"
    )
    assert arguments(folder) == ([SKILLS] if kind == "skills" else [SKILLS, FILES])
    for call in folder.calls:
        token = call["stub"]["DIFY_AGENT_STUB_AUTH_JWE"]
        assert token not in json.dumps(events)
        assert token not in server.log


async def test_the_command_is_not_installed(api: Api, folder: SandboxFolder) -> None:
    body = scripted(*sandboxed(shell={"env": {"PATH": "/nowhere"}}, **MENTIONS))
    text = failure(await api.run(body))
    assert text.startswith(f"{PULL_SKILLS}ended with status 127: ")
    assert folder.calls == []


async def test_no_agent_stub(api: Api, folder: SandboxFolder) -> None:
    text = failure(await api.run(scripted(*sandboxed(shell={"stub": False}, **MENTIONS))))
    assert text == "Agent Stub environment injection is not available for this shell session."
    ended(await api.run(scripted(*sandboxed(shell={"stub": False}))), "run_succeeded")
    assert folder.calls == []


HOSTILE = ["it's", '"q" $HOME', "$(touch pwned)", "`touch pwned`", "; touch pwned", "*", "~", "ж=!", "a & touch pwned"]


async def test_hostile_names_reach_the_command_as_they_are(api: Api, folder: SandboxFolder) -> None:
    data = ended(await api.run(scripted(*sandboxed(mentioned_file_names=HOSTILE * 2))), "run_succeeded")
    assert arguments(folder) == [["config", "files", "pull", "--json", *HOSTILE]]
    assert list(state_of(data)["pulled_file_outputs"]) == HOSTILE
    assert list((folder.folder / "work").iterdir()) == []


@pytest.mark.parametrize("name", ["--to=/etc", "-", "../x", "a\nb", "a\0b", ""])
async def test_names_that_are_refused(api: Api, folder: SandboxFolder, name: str) -> None:
    text = failure(await api.run(scripted(*sandboxed(mentioned_file_names=["good", name]))))
    assert text.startswith(f"The file {name!r} cannot be pulled: ")
    assert folder.calls == []


@pytest.mark.parametrize(("kind", "calls"), [("skills", 1), ("files", 2)])
async def test_a_cancel_stops_the_command(api: Api, folder: SandboxFolder, kind: str, calls: int) -> None:
    run_id = await api.create(scripted(*sandboxed(shell={"env": {f"ACME_{kind.upper()}": "hang"}}, **MENTIONS)))
    await folder.called(calls)
    assert len(folder.running()) == 1
    with trio.fail_after(5):
        await api.cancel(run_id, message="no more")
        events = await api.finished(run_id)
    data = ended(events, "run_cancelled")
    assert (data["message"], data["session_snapshot"]) == ("no more", None)
    await until(lambda: folder.running() == [], "the command ends")
    assert len(folder.calls) == calls


async def test_the_bound_of_the_entry_stops_the_command(store: StoreServer, folder: SandboxFolder) -> None:
    with serving(store.url, env=folder.environment, enter_timeout_seconds=3) as server:
        async with open_api(server) as api:
            shells = [{"env": {name: "hang"}} for name in ("ACME_SKILLS", "ACME_FILES")]
            runs = [await api.create(scripted(*sandboxed(shell=shell, **MENTIONS))) for shell in shells]
            texts = {failure(await api.finished(run_id), reason="phase_timeout") for run_id in runs}
    assert texts == {"The run's entry did not end within 3 seconds (DIFY_AGENT_ENTER_TIMEOUT_SECONDS)."}
    assert len(folder.calls) >= 2


async def test_the_end_of_the_process_stops_the_command(store: StoreServer, folder: SandboxFolder) -> None:
    with serving(store.url, env=folder.environment) as server:
        async with open_api(server) as api:
            await api.create(scripted(*sandboxed(shell={"env": {"ACME_SKILLS": "hang"}}, **MENTIONS)))
            await folder.called(1)
        assert len(folder.running()) == 1
    assert folder.running() == []


async def test_it_needs_a_sandbox(api: Api, folder: SandboxFolder) -> None:
    shell, config = sandboxed(**MENTIONS)
    unbound = {name: value for name, value in config.items() if name != "deps"}
    required = "Dependency 'shell' is required for layer 'DifyConfigLayer' but not provided."
    assert failure(await api.run(scripted(unbound))) == required
    assert failure(await api.run(scripted(shell, unbound))) == required
    text = failure(await api.run(scripted(config)))
    assert text == "Layer 'config' depends on undefined layer names: shell."
    text = failure(await api.run(scripted({**config, "deps": {"shell": "prompt"}})))
    assert text == "Dependency 'shell' should be of type 'SandboxLayer', but got type 'PromptLayer'."
    text = failure(await api.run(scripted(config, shell)))
    assert text == "Layer 'config' dependencies must target preceding layer nodes in compositor order: shell->shell."
    assert folder.calls == []


async def test_a_bad_config_runs_nothing(api: Api, folder: SandboxFolder) -> None:
    text = failure(await api.run(scripted(*sandboxed(**MENTIONS, unknown=1))))
    assert text.startswith("1 validation error for DifyConfigLayerConfig")
    assert folder.calls == []


async def test_runs_side_by_side_keep_apart(api: Api, folder: SandboxFolder) -> None:
    names = [f"file-{number}" for number in range(4)]
    found: dict[str, list[str]] = {}

    async def run(name: str) -> None:
        data = ended(await api.run(scripted(*sandboxed(mentioned_file_names=[name]))), "run_succeeded")
        found[name] = list(state_of(data)["pulled_file_outputs"])

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(run, name)
    assert found == {name: [name] for name in names}
    assert sorted(shlex.join(call[4:]) for call in arguments(folder)) == names
