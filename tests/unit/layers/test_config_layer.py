"""`dify.config`: what is pulled, what can go wrong with it, and what the model reads (integrations 7)."""

import json
import shlex
from typing import ClassVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton.layers import NoLayerDeps, PlainLayer
from agenton_collections.layers.plain import PromptLayer
from agenton_collections.transformers.pydantic_ai import PYDANTIC_AI_TRANSFORMERS
from dify_agent.actors.failures import MAX_ERROR_CHARACTERS, describe_failure
from dify_agent.actors.prompts import has_blank_prompt, render_instructions
from dify_agent.errors import RunFailedError
from dify_agent.layers.config import DifyConfigRuntimeState
from dify_agent.layers.config.help import FILE_HELP, MUTATION_HELP, READ_HELP
from dify_agent.layers.config.layer import DifyConfigLayer
from dify_agent.layers.config.pulls import MAX_PULL_BYTES, PULL_SECONDS, ConfigPullError
from dify_agent.layers.sandbox import AgentStubUnavailableError, SandboxLayer, ScriptResult
from dify_agent.protocol import CreateRunRequest

SKILL = {"name": "tidy", "archive_path": "/w/tidy.zip", "directory_path": "/w/tidy", "skill_md": "# Tidy\nSweep.\n"}
FILE = {"name": "a b.pdf", "path": "/w/a b.pdf"}
MENTIONS = {"mentioned_skill_names": ["tidy"], "mentioned_file_names": ["a b.pdf"]}
PULL_SKILL = "set -eu\ndify-agent config skills pull --json tidy\n"
PULL_FILE = "set -eu\ndify-agent config files pull --json 'a b.pdf'\n"


class Sandbox(SandboxLayer[NoLayerDeps, None]):
    """Gives its answers one after the other: a result, an error to raise, or None to wait for ever."""

    type_id: ClassVar[str | None] = "test.shell"

    def __init__(self, answers):
        self.answers = list(answers)
        self.scripts = []

    async def run_script(self, script, *, timeout_seconds, max_stdout_bytes):
        assert (timeout_seconds, max_stdout_bytes) == (60.0, 1024 * 1024)
        self.scripts.append(script)
        answer = self.answers.pop(0)
        if answer is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def upload_file(self, path):
        raise AssertionError("not to be asked")


def printed(*items, **result):
    return ScriptResult(**{"exit_code": 0, "stdout": json.dumps({"items": list(items)}), **result})


class Session:
    """Runs of one session, each with a sandbox of its own; keeps the last snapshot."""

    def __init__(self, config, *, deps=None):
        self.config = config
        self.deps = {"shell": "shell"} if deps is None else deps
        self.snapshot = None

    async def run(self, *answers, shell=None):
        """Enter once: the sandbox, the state, the system prompts."""
        sandbox = Sandbox(answers)
        made = shell or LayerProvider.from_factory(layer_type=Sandbox, create=lambda _: sandbox)
        nodes = [
            LayerNode("shell", made),
            LayerNode("prompt", PromptLayer),
            LayerNode("it", DifyConfigLayer, deps=self.deps),
        ]
        configs = {"prompt": {"prefix": "Before.", "suffix": "After."}, "it": self.config}
        compositor = Compositor(nodes, **PYDANTIC_AI_TRANSFORMERS)
        self.sandbox = sandbox
        async with compositor.enter(configs=configs, session_snapshot=self.snapshot) as run:
            run.suspend_on_exit()
            state = run.get_layer("it", DifyConfigLayer).runtime_state.model_copy(deep=True)
            texts = await render_instructions(run.prompts)
            assert list(run.user_prompts) == list(run.tools) == []
        self.snapshot = json.loads(run.session_snapshot.model_dump_json())
        return sandbox, state, texts


async def fails(config, *answers, **session):
    """The text with which the entry fails, and the scripts that were run."""
    it = Session(config, **session)
    with pytest.raises(ConfigPullError) as caught:
        await it.run(*answers)
    failed = describe_failure(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, RunFailedError)
    assert (failed.reason, failed.error_type) == (None, None)
    assert len(failed.error) < MAX_ERROR_CHARACTERS / 4
    return failed.error, it.sandbox.scripts


async def test_skills_then_files_in_one_job_each():
    config = {"mentioned_skill_names": ["tidy", "other"], "mentioned_file_names": ["a b.pdf", "c"]}
    other = {**SKILL, "name": "other", "directory_path": "/w/other", "skill_md": ""}
    unasked = {"name": "unasked"}
    sandbox, state, _ = await Session(config).run(
        printed(other, unasked, "odd", SKILL), printed(FILE, {"name": "c", "path": "/w/c"})
    )
    assert sandbox.scripts == [
        "set -eu\ndify-agent config skills pull --json tidy other\n",
        "set -eu\ndify-agent config files pull --json 'a b.pdf' c\n",
    ]
    assert state.pulled_skill_outputs == {"tidy": "/w/tidy\n# Tidy\nSweep.\n", "other": "/w/other\n"}
    assert state.pulled_file_outputs == {"a b.pdf": "/w/a b.pdf", "c": "/w/c"}
    assert list(state.pulled_skill_outputs) == ["tidy", "other"]


async def test_a_name_that_is_mentioned_twice_is_pulled_once():
    sandbox, state, _ = await Session({"mentioned_skill_names": ["tidy", "tidy"]}).run(printed(SKILL))
    assert sandbox.scripts == [PULL_SKILL]
    assert list(state.pulled_skill_outputs) == ["tidy"]


async def test_what_the_model_reads():
    _, state, texts = await Session(MENTIONS).run(printed(SKILL), printed(FILE))
    assert [texts[0], texts[-1]] == ["Before.", "After."]
    _, loaded, config, _ = texts
    assert loaded.endswith(
        "\n\n$ dify-agent config skills pull tidy\n/w/tidy\n# Tidy\nSweep."
        "\n\n$ dify-agent config files pull 'a b.pdf'\n/w/a b.pdf"
    )
    assert state.config_context_json in config.splitlines()
    assert "public_download_url" in config.splitlines()[-1]


async def test_an_empty_config_pulls_nothing_and_says_nothing_was_loaded():
    sandbox, state, texts = await Session({}).run()
    assert sandbox.scripts == []
    assert json.loads(state.config_context_json) == {"skills": [], "files": [], "env_keys": [], "note": ""}
    assert (state.pulled_skill_outputs, state.pulled_file_outputs) == ({}, {})
    assert [texts[0], texts[2]] == ["Before.", "After."]
    assert len(texts) == 3


async def test_the_config_is_shown_without_mentions_and_nulls():
    shown = {
        "agent_id": "agent-1",
        "config_version": {"kind": "draft", "writable": False},
        "skills": [{"name": "tidy", "description": "", "size": 0}, {"name": "ж", "description": "d"}],
        "files": [{"name": "f", "mime_type": "text/plain"}],
        "env_keys": ["KEY"],
        "note": "line\n«two»",
    }
    given = {**shown, **MENTIONS, "config_version": {"id": None, "kind": "draft"}}
    _, state, texts = await Session(given).run(printed(SKILL), printed(FILE))
    assert json.loads(state.config_context_json) == shown
    assert "«two»" in state.config_context_json
    assert '"ж"' in texts[2]


@pytest.mark.parametrize(
    ("version", "writable"),
    [
        (None, False),
        ({"kind": "snapshot"}, False),
        ({"kind": "build_draft"}, False),
        ({"kind": "build_draft", "writable": True}, True),
        ({"kind": "draft", "writable": True}, True),
    ],
)
async def test_only_a_writable_version_gets_the_commands_that_change_it(version, writable):
    _, state, texts = await Session({"config_version": version}).run()
    expected = [*READ_HELP, *(MUTATION_HELP if writable else {}), *FILE_HELP]
    assert list(state.config_cli_help) == expected
    assert all(text.startswith(f"dify-agent {command} ") or text.startswith(f"dify-agent {command}\n")
               for command, text in state.config_cli_help.items())  # fmt: skip
    assert all(text in texts[1] for text in state.config_cli_help.values())
    assert ("config skills push" in texts[1]) is writable
    assert ("cannot be changed in this run" in texts[1]) is not writable
    assert ("build_draft;" in texts[1]) is writable


def test_the_commands_are_those_of_the_specification():
    assert [*READ_HELP] == [
        "config", "config manifest", "config skills pull", "config files pull", "config note pull",
    ]  # fmt: skip
    assert {*MUTATION_HELP} == {
        "config note push", "config env push", "config files push", "config files delete", "config skills push",
        "config skills delete",
    }  # fmt: skip
    assert [*FILE_HELP] == ["file upload", "file download", "file public-url"]


async def test_a_resumed_run_recomputes_nothing():
    session = Session({**MENTIONS, "note": "first", "config_version": {"writable": True}})
    _, state, texts = await session.run(printed(SKILL), printed(FILE))
    [_, _, entry] = session.snapshot["layers"]
    assert entry["runtime_state"] == state.model_dump(mode="json")
    assert {name for name, value in entry["runtime_state"].items() if value == ""} == {
        "push_spec_semantics", "push_spec_json_schema", "push_spec_example",
    }  # fmt: skip
    before = session.snapshot
    session.config = {"mentioned_skill_names": ["another"], "note": "second"}
    sandbox, again, same = await session.run()
    assert sandbox.scripts == []
    assert (again, same) == (state, texts)
    assert session.snapshot == before


async def test_an_older_snapshot_is_read_as_it_is():
    session = Session({})
    await session.run()
    [_, _, entry] = session.snapshot["layers"]
    entry["runtime_state"] = {
        "pulled_skill_outputs": {"old": "said"}, "config_context_json": '{"old":1}',
        "config_cli_help": {"config": "Old help."}, "push_spec_example": "kept",
    }  # fmt: skip
    _, state, texts = await session.run()
    assert state.push_spec_example == "kept"
    assert texts[1].endswith("$ dify-agent config skills pull old\nsaid")
    assert '{"old":1}' in texts[2]
    assert "Old help." in texts[2]


async def test_a_state_that_nothing_was_put_into_says_nothing():
    session = Session({})
    await session.run()
    session.snapshot["layers"][2]["runtime_state"] = {}
    assert (await session.run())[2] == ["Before.", "After."]


async def test_a_new_entry_in_a_snapshot_is_filled_anew():
    session = Session(MENTIONS)
    await session.run(printed(SKILL), printed(FILE))
    entry = session.snapshot["layers"][2]
    entry["lifecycle_state"] = "new"
    entry["runtime_state"] |= {"pulled_skill_outputs": {"stale": "x"}, "push_spec_example": "stale"}
    sandbox, state, _ = await session.run(printed(SKILL), printed(FILE))
    assert sandbox.scripts == [PULL_SKILL, PULL_FILE]
    assert list(state.pulled_skill_outputs) == ["tidy"]
    assert state.push_spec_example == ""


def skill(**change):
    return printed({**SKILL, **change})


BAD_SKILLS = [
    (printed(exit_code=1, stderr_tail="dify-agent: not\n there\n"), "ended with status 1: dify-agent: not there"),
    (printed(SKILL, exit_code=None), "ended without a status"),
    (printed(SKILL, exit_code=None, incomplete="timeout"), "did not end within 60 seconds"),
    (printed(SKILL, exit_code=137, incomplete="timeout", stderr_tail="slow"), "did not end within 60 seconds: slow"),
    (printed(SKILL, incomplete="output_limit"), "printed more than 1048576 bytes"),
    (printed(stdout=""), "printed nothing"),
    (printed(stdout=" \n\t"), "printed nothing"),
    (printed(stdout="garbage"), "printed no JSON (expected value at line 1 column 1)"),
    (printed(stdout='{"items": [') , "printed no JSON"),
    (printed(stdout="[" * (MAX_PULL_BYTES // 2)), "printed no JSON"),
    (printed(stdout='{"items":[{"name":"tidy","directory_path":"/w","skill_md":"\\ud800"}]}'), "printed no JSON"),
    (printed(stdout="[]"), "printed JSON that is no object with a list 'items'"),
    (printed(stdout="7"), "printed JSON that is no object with a list 'items'"),
    (printed(stdout='{"items": null}'), "printed JSON that is no object with a list 'items'"),
    (printed(stdout='{"items": {}}'), "printed JSON that is no object with a list 'items'"),
    (printed(), "printed no item for the skill 'tidy'"),
    (printed(None, "tidy", {"name": 1}, {"name": "Tidy"}), "printed no item for the skill 'tidy'"),
    (skill(directory_path=""), "printed the skill 'tidy' without a directory_path"),
    (skill(directory_path=None), "printed the skill 'tidy' without a directory_path"),
    (skill(directory_path=7), "printed the skill 'tidy' without a directory_path"),
    (skill(skill_md=None), "printed the skill 'tidy' without the text of its SKILL.md"),
    (skill(skill_md=["x"]), "printed the skill 'tidy' without the text of its SKILL.md"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "problem"), BAD_SKILLS)
async def test_a_skill_that_was_not_pulled_fails_the_entry(answer, problem):
    text, scripts = await fails(MENTIONS, answer)
    assert problem in text
    assert text.startswith(
        "The skill 'tidy' could not be pulled into the sandbox: `dify-agent config skills pull --json tidy` "
    )
    assert scripts == [PULL_SKILL], "files are not pulled after skills have failed"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (printed({**FILE, "path": ""}), "printed the file 'a b.pdf' without a path"),
        (printed({**FILE, "path": None}), "printed the file 'a b.pdf' without a path"),
        (printed({"name": "a b.pdf"}), "printed the file 'a b.pdf' without a path"),
        (printed(), "printed no item for the file 'a b.pdf'"),
        (printed(FILE, exit_code=1), "ended with status 1"),
        (printed(FILE, exit_code=None, incomplete="timeout"), "did not end within 60 seconds"),
        (printed(FILE, incomplete="output_limit"), "printed more than"),
    ],
)
async def test_a_file_that_was_not_pulled_fails_the_entry(answer, problem):
    text, scripts = await fails(MENTIONS, printed(SKILL), answer)
    assert problem in text
    assert text.startswith(
        "The file 'a b.pdf' could not be pulled into the sandbox: `dify-agent config files pull --json 'a b.pdf'` "
    )
    assert scripts == [PULL_SKILL, PULL_FILE]


async def test_one_of_several_that_is_missing_fails_the_entry():
    text, _ = await fails({"mentioned_skill_names": ["tidy", "gone", "x"]}, printed(SKILL))
    assert text.startswith("The skill 'tidy' and 2 more could not be pulled")
    assert text.endswith("printed no item for the skill 'gone'")


HOSTILE = [
    "a b", "it's", "a-b", '"', "$(touch x)", "`id`", "; rm -rf ~", "a&&b", "*", "~", "#x", "$HOME", "ж" * 127,
    "x" * 255, "=", "!",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_one_word_of_the_command(name):
    item = {**FILE, "name": name}
    sandbox, state, texts = await Session({"mentioned_file_names": [name]}).run(printed(item))
    [script] = sandbox.scripts
    assert shlex.split(script) == ["set", "-eu", "dify-agent", "config", "files", "pull", "--json", name]
    assert script.count("\n") == 2
    assert state.pulled_file_outputs == {name: "/w/a b.pdf"}
    assert f"$ dify-agent config files pull {shlex.quote(name)}\n" in texts[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("-rf", "would be an option of the command"),
        ("--to=/etc", "would be an option of the command"),
        ("--", "would be an option of the command"),
        ("", "it has no name"),
        (" ", "it has no name"),
        (".", "neither '.' nor '..'"),
        ("..", "neither '.' nor '..'"),
        ("../../etc/passwd", "no '/'"),
        ("a\\b", "no '\\'"),
        ("a\nb", "no control character"),
        ("a\x00b", "no control character"),
    ],
)
@pytest.mark.parametrize("field", ["mentioned_skill_names", "mentioned_file_names"])
async def test_a_name_that_no_asset_can_have_is_refused_before_anything_runs(field, name, problem):
    text, scripts = await fails({field: ["good", name]})
    assert problem in text
    assert scripts == []
    assert "\n" not in text
    assert "\x00" not in text


async def test_huge_names_and_outputs_leave_a_short_text():
    names = [f"{'n' * 250}{number}" for number in range(200)]
    text, scripts = await fails(
        {"mentioned_file_names": names}, printed(exit_code=1, stderr_tail="x" * 100_000 + " the end")
    )
    assert text.endswith("the end")
    assert "199 more" in text
    assert len(scripts[0]) > 50_000
    assert len(text) < 1200


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["n" * 300_000], "a name has at most 255 bytes"),
        (["ok", "ж" * 128], "a name has at most 255 bytes"),
        ([f"file-{number}" for number in range(100_000)], "more than 65536 bytes. Mention fewer files."),
        (["'" * 255 + str(number) for number in range(10, 100)], "a name has at most 255 bytes"),
        (["'" * 250 + str(number) for number in range(100)], "more than 65536 bytes. Mention fewer files."),
    ],
)
async def test_what_no_command_line_can_hold_is_not_tried(names, problem):
    text, scripts = await fails({"mentioned_file_names": names})
    assert problem in text
    assert scripts == []
    assert len(text) < 400


async def test_a_large_output_within_the_bound_is_kept_whole():
    large = "x" * (MAX_PULL_BYTES - 200)
    session = Session({"mentioned_skill_names": ["tidy"]})
    _, state, texts = await session.run(skill(skill_md=large))
    assert state.pulled_skill_outputs["tidy"] == f"/w/tidy\n{large}"
    assert large in texts[1]
    assert (await session.run())[2] == texts


TOKEN = "eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0..c2VjcmV0LXBhcnQ.dG9wLXNlY3JldA.dGFn"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"dify-agent: token {TOKEN} refused", "dify-agent: token *** refused"),
        (
            'Get "https://files.test/files/1/x.pdf?timestamp=1&sign=c2VjcmV0": refused',
            'Get "https://files.test/files/1/x.pdf?***": refused',
        ),
        (f"y {TOKEN}{' ' * 2000}x", "status 1: x"),
        ("es.example/f?timestamp=1&sign=c2VjcmV0 failed with 403", "status 1: es.example/f?*** failed with 403"),
        ("stamp=1&nonce=a&Sign=c2VjcmV0 failed", "status 1: stamp=1&*** failed"),
        ('/f?sign=c2VjcmV0": no\n', 'status 1: /f?***": no'),
        (f"c2VjcmV0\nfailed\n{' ' * 2000}", "status 1: failed"),
        (f"VjcmV0LXBhcnQ.dG9wLXNlY3JldA\trefused {'é' * 500}", f"refused {'é' * 500}"),
        ("line\n" * 500, "line " * 119 + "line"),
        ("c2VjcmV0" * 300, "ended with status 1"),
    ],
)
async def test_tokens_and_signed_urls_are_not_told(said, shown):
    text, _ = await fails(MENTIONS, printed(exit_code=1, stderr_tail=said))
    assert "c2VjcmV0" not in text
    assert "dG9wLXNlY3JldA" not in text
    assert text.endswith(shown)


async def test_the_output_of_a_failed_command_is_not_told():
    text, _ = await fails(MENTIONS, printed(stdout='{"secret": "hunter2"', exit_code=0))
    assert "hunter2" not in text
    text, _ = await fails(MENTIONS, printed(stdout="hunter2", exit_code=3))
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "error", [AgentStubUnavailableError(), RunFailedError("gone", reason="binding_lost"), RuntimeError("no shell")]
)
async def test_what_the_sandbox_raises_leaves_as_it_is(error):
    with pytest.raises(type(error)) as caught:
        await Session(MENTIONS).run(error)
    assert caught.value is error


def test_the_text_without_an_agent_stub():
    assert str(AgentStubUnavailableError()) == (
        "Agent Stub environment injection is not available for this shell session."
    )


@pytest.mark.parametrize("before", [[], [printed(SKILL)]], ids=["skills", "files"])
async def test_cancelled_in_the_middle_of_a_pull(before):
    session = Session(MENTIONS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run, *before, None)
        await wait_all_tasks_blocked()
        assert len(session.sandbox.scripts) == len(before) + 1
        nursery.cancel_scope.cancel(reason="the test cancels")
    assert nursery.cancel_scope.cancelled_caught
    assert session.snapshot is None


async def test_a_failed_entry_leaves_the_state_as_it_was(monkeypatch):
    made = []
    monkeypatch.setattr(DifyConfigLayer, "bind_deps", lambda self, deps: made.append(self) or _bind(self, deps))
    _bind = PlainLayer.bind_deps
    await fails(MENTIONS, printed(SKILL), printed())
    assert made[0].runtime_state == DifyConfigRuntimeState()


def test_it_brings_no_user_prompt():
    """So that a run without one is refused before it is stored."""
    layers = [
        {"name": "shell", "type": "dify.execution_context"},  # stands for any type that brings none either
        {"name": "config", "type": "dify.config", "deps": {"shell": "shell"}},
        {"name": "llm", "type": "scripted.model"},
    ]
    request = CreateRunRequest.model_validate({"composition": {"layers": layers}})
    assert has_blank_prompt(request)


async def test_it_needs_a_sandbox():
    with pytest.raises(
        ValueError, match=r"Dependency 'shell' is required for layer 'DifyConfigLayer' but not provided\."
    ):
        await Session({}, deps={}).run()
    with pytest.raises(
        TypeError, match="Dependency 'shell' should be of type 'SandboxLayer', but got type 'PromptLayer'"
    ):
        await Session({}).run(shell=LayerProvider.from_layer_type(PromptLayer))


def test_the_bounds_are_the_specifications():
    assert (PULL_SECONDS, MAX_PULL_BYTES) == (60, 1 << 20)
