"""docs/fakes.md: its tables are the models', its scripts can be played."""

import json
import re

import pytest
from tests.docs.pages import ROOT, fences, prose, table_under

from dify_agent.cli.commands import DEFAULT_FAKES_STATE_BYTES
from dify_agent.testing import Outcome, Script
from dify_agent.testing.files import DOWNLOAD_REQUEST, UPLOAD, UPLOAD_REQUEST
from dify_agent.testing.frames import llm_frames, tool_frames
from dify_agent.testing.kept import ENTRY_BYTES, STATE_BYTES
from dify_agent.testing.record import KEPT_BYTES, KEPT_REQUESTS, Recorder
from dify_agent.testing.script import (
    Blob,
    CountBy,
    Ending,
    EnvelopeError,
    HttpError,
    JsonStep,
    LlmStep,
    Step,
    StreamStep,
    ToolCall,
    ToolMessage,
    ToolStep,
)
from dify_agent.testing.signing import ACCESS_SECONDS

PAGE = ROOT / "docs" / "fakes.md"
SCRIPTS = [Script.model_validate_json(fence.text) for fence in fences(PAGE, "json")]


def own_members(step: type[Step]) -> set[str]:
    """Those that its bases do not have."""
    (base,) = step.__bases__
    return set(step.model_fields) - set(getattr(base, "model_fields", {}))


@pytest.mark.parametrize(
    ("heading", "step"),
    [
        ("Every step", Step),
        ("Steps that stream", StreamStep),
        ("Steps of `llm`", LlmStep),
        ("Steps of `tools`", ToolStep),
    ],
)
def test_tables_have_every_member(heading: str, step: type[Step]) -> None:
    rows = list(table_under(PAGE, heading))
    assert {name.strip("`") for name, *_ in rows} == own_members(step)
    for name, default, _ in rows:
        value = step.model_fields[name.strip("`")].default
        if isinstance(value, int | str | None) and (step, name) != (ToolStep, "`text`"):
            assert default.strip("`") == (str(value) if isinstance(value, str) else json.dumps(value))


def test_json_steps_have_every_member() -> None:
    rows = {names: set(re.findall(r"`(\w+)`", text)) for names, text in _json_rows()}
    for kind, rules in (("core_tools", "CoreToolStep"), ("knowledge", "KnowledgeStep"), ("files", "FileStep")):
        step = next(each for each in JsonStep.__subclasses__() if each.__name__ == rules)
        assert own_members(step) <= rows[f"`{kind}`"]
    assert own_members(JsonStep) == rows["all three"]


def _json_rows() -> list[list[str]]:
    return list(table_under(PAGE, "Steps of `core_tools`, `knowledge` and `files`"))


@pytest.mark.parametrize("model", [HttpError, EnvelopeError, ToolCall, ToolMessage, Blob])
def test_smaller_parts_are_named(model: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert set(model.model_fields) <= named


def test_rules_and_words_are_named() -> None:
    text = PAGE.read_text()
    for rules, field in Script.model_fields.items():
        assert f"| `{rules}` |" in text
        (rule, _) = field.annotation.__args__
        assert {name for name in rule.model_fields if f"`{name}`" not in text} <= {"steps", "cycle"}
    for word in (*Ending, *Outcome, *CountBy):
        assert f"| `{word}` |" in text


def test_what_a_request_has_is_told() -> None:
    shown = Recorder().add("GET", "/", {}, b"").as_json()
    after = prose(PAGE).split("A request has ", 1)[1].split("Kept are", 1)[0]
    assert set(re.findall(r"`(\w+)`", after)) == set(shown)
    assert f"newest {KEPT_REQUESTS:,}" in prose(PAGE)
    assert f"{KEPT_BYTES // 2**20} MiB" in prose(PAGE)


def test_bounds_of_what_is_stored_are_told() -> None:
    text = prose(PAGE)
    assert DEFAULT_FAKES_STATE_BYTES == STATE_BYTES
    assert f"| `--state-bytes` | `{STATE_BYTES}` |" in text
    assert f"{STATE_BYTES // 2**20} MiB) with {ENTRY_BYTES} bytes" in text
    assert f"{ACCESS_SECONDS} s" in text


def test_endpoints_of_the_agent_stub_are_named() -> None:
    text = prose(PAGE)
    for path in (UPLOAD_REQUEST, DOWNLOAD_REQUEST, UPLOAD):
        assert f"| `POST {path}` |" in text


def test_scripts_can_be_played() -> None:
    assert len(SCRIPTS) >= 3
    for script in SCRIPTS:
        for rule in script.llm:
            for step in rule.steps:
                assert all(llm_frames(step, model="m", messages=[], prompt="p", number=1, success=""))
        for tool_rule in script.tools:
            for tool_step in tool_rule.steps:
                assert any(tool_frames(tool_step))
