"""Layer types of installed packages: the worked example of docs/own-layers.md, and packages that are broken."""

import json
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, fences
from tests.server.clients import open_api
from tests.server.harness import launched, serving
from tests.server.packages import install_package

PAGE = ROOT / "docs" / "own-layers.md"
PROJECT = '[project]\nname = "broken"\nversion = "1"\n[project.entry-points."dify_agent.layers"]\n'


def state_of(terminal, name):
    assert terminal["type"] == "run_succeeded", terminal
    return next(each for each in terminal["data"]["session_snapshot"]["layers"] if each["name"] == name)


async def test_the_documented_example_works(store, tmp_path: Path):
    (pyproject,), (module,), (body,) = (fences(PAGE, language) for language in ("toml", "python", "json"))
    env = install_package(tmp_path, pyproject.text, {"acme_glossary.py": module.text})
    request = json.loads(body.text)
    with serving(store.url, env=env) as server:
        (line,) = [each for each in server.records() if each["event"] == "layer types of installed packages"]
        assert line["types"] == ["acme.glossary"]
        async with open_api(server) as api:
            first = (await api.run(request))[-1]
            assert state_of(first, "words")["runtime_state"] == {"looked_up": ["nursery"]}
            snapshot = first["data"]["session_snapshot"]
            second = (await api.run({**request, "session_snapshot": snapshot}))[-1]
            assert state_of(second, "words")["runtime_state"] == {"looked_up": ["nursery", "nursery"]}
            unknown = json.loads(body.text.replace('"term": "nursery"', '"term": "garden"'))
            events = await api.run(unknown)
            results = [each["data"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
            assert results[0]["part"]["content"] == "There is no term 'garden'."


@pytest.mark.parametrize(
    ("entry", "source", "problem"),
    [
        ('"acme.x" = "broken_layers:Missing"', "", "it does not import (AttributeError"),
        ('"acme.x" = "broken_layers:x"', "1 / 0", "it does not import (ZeroDivisionError: division by zero)"),
        ('"acme.x" = "broken_layers:x"', "x = 7", "it is neither a Layer class nor a LayerProvider, but 7"),
        (
            '"acme.x" = "broken_layers:X"',
            "from agenton_collections.layers.plain import PromptLayer as X",
            "its class says type_id = 'plain.prompt'",
        ),
        ('"dify.x" = "broken_layers:x"', "", "are the server's own"),
    ],
)
async def test_a_broken_package_stops_the_start(store, tmp_path: Path, entry, source, problem):
    env = install_package(tmp_path, PROJECT + entry, {"broken_layers.py": source})
    with launched(store.url, env=env) as server:
        assert await server.exit_status() == 1
        (line,) = [each for each in server.records() if each["event"] == "cannot serve"]
        assert problem in line["problem"]
        assert "of package 'broken'" in line["problem"]
        assert "exc_info" not in line
        assert "exception" not in line


async def test_two_packages_with_one_id_stop_the_start(store, tmp_path: Path):
    source = "from agenton_collections.layers.plain import PromptLayer\nclass X(PromptLayer):\n    type_id = 'acme.x'\n"
    first = install_package(tmp_path, PROJECT + '"acme.x" = "broken_layers:X"', {"broken_layers.py": source})
    install_package(tmp_path, PROJECT.replace("broken", "second") + '"acme.x" = "broken_layers:X"', {})
    with launched(store.url, env=first) as server:
        assert await server.exit_status() == 1
        assert any("another package registers the same id" in each.get("problem", "") for each in server.records())
