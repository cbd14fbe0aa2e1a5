"""docs/dify.md: its tables have every member of the layers' configs, its endpoints are those that the code asks."""

import json
import re
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.docs.pages import ROOT, fences, prose, table_under
from tests.docs.shell import run_commands

from dify_agent.layers.config import (
    DifyConfigFileConfig,
    DifyConfigLayerConfig,
    DifyConfigSkillConfig,
    DifyConfigVersionConfig,
)
from dify_agent.layers.dify_core_tools import DifyCoreToolConfig
from dify_agent.layers.dify_core_tools.layer import INVOKE_PATH
from dify_agent.layers.dify_plugin import DifyPluginLLMLayerConfig, DifyPluginToolConfig
from dify_agent.layers.dify_plugin.tools_client import TIMEOUT, UNREACHABLE
from dify_agent.layers.dify_plugin.tools_layer import MAX_FILES
from dify_agent.layers.inner_api import MAX_REPLY_BYTES
from dify_agent.layers.knowledge import DifyKnowledgeBaseLayerConfig, DifyKnowledgeSetConfig
from dify_agent.layers.knowledge.retrieval import MAX_RESULTS, RETRIEVE_PATH
from dify_agent.layers.outbound_call import MAX_REPLY_VALUES
from dify_agent.model.dify.gateway import GATEWAY_PATH
from dify_agent.model.dify.parts import MAX_ANSWER_BYTES
from dify_agent.protocol.schemas import RUN_EVENT_ADAPTER

PAGE: Path = ROOT / "docs" / "dify.md"
CONFIGS = {
    "`dify.plugin.llm`": DifyPluginLLMLayerConfig,
    "`dify.plugin.tools`": DifyPluginToolConfig,
    "`dify.core.tools`": DifyCoreToolConfig,
    "`dify.knowledge_base`": DifyKnowledgeBaseLayerConfig,
}


def test_bounds_are_told() -> None:
    assert f"One call takes at most {MAX_FILES} files." in prose(PAGE)
    of_a_reply = f"{MAX_REPLY_BYTES >> 20} MiB, {MAX_REPLY_VALUES:,} values or {MAX_RESULTS:,} passages"
    assert f"with more than {of_a_reply}" in prose(PAGE)
    assert f"is more than {MAX_ANSWER_BYTES >> 20} MiB" in prose(ROOT / "docs" / "protocol.md")


@pytest.mark.parametrize("heading", CONFIGS)
def test_tables_have_every_member(heading: str) -> None:
    config: type[BaseModel] = CONFIGS[heading]
    written: set[str] = set()
    for names, _, default, _ in table_under(PAGE, heading):
        fields = re.findall(r"`(\w+)`", names)
        written |= set(fields)
        for field in fields:
            assert default in ("", "required") or not config.model_fields[field].is_required(), field
            assert default != "required" or config.model_fields[field].is_required(), field
            if default.isdigit():
                assert config.model_fields[field].default == int(default)
    assert written == set(config.model_fields)


def test_the_table_of_the_config_layer_has_every_member() -> None:
    rows = list(table_under(ROOT / "docs" / "layers.md", "`dify.config`"))
    assert [name for names, *_ in rows for name in re.findall(r"`(\w+)`", names)] == list(
        DifyConfigLayerConfig.model_fields
    )
    kinds = dict(zip([row[0].strip("`") for row in rows], [row[1] for row in rows], strict=True))
    for field, part in (
        ("config_version", DifyConfigVersionConfig),
        ("skills", DifyConfigSkillConfig),
        ("files", DifyConfigFileConfig),
    ):
        assert set(part.model_fields) <= set(re.findall(r"`(\w+)`", kinds[field])), field


def test_members_of_a_set_are_named() -> None:
    named = set(re.findall(r"`(\w+)`", prose(PAGE).split("A set has", 1)[1].split(".", 1)[0]))
    assert named == set(DifyKnowledgeSetConfig.model_fields)


def test_endpoints_and_reasons_are_the_codes() -> None:
    text = prose(PAGE)
    for path in (GATEWAY_PATH, f"/inner/api{INVOKE_PATH}", f"/inner/api{RETRIEVE_PATH}"):
        assert f"`POST {path}`" in text
    assert f"`{UNREACHABLE}`" in text
    assert f"`{TIMEOUT}`" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl; apt-get install curl && make test")
def test_checks_with_the_fakes_end_as_the_page_says(tmp_path: Path) -> None:
    composition, script = [fence.text for fence in fences(PAGE, "json") if not fence.text.startswith('{"llm"')]
    (tmp_path / "composition.json").write_text(composition)
    (tmp_path / "script.json").write_text(script)
    commands = "\n".join(fence.text for fence in fences(PAGE, "bash"))
    printed = run_commands(commands, tmp_path, ports=["5001", "5060", "5061"])
    lines = [line.removeprefix("data: ") for line in printed.splitlines() if line.startswith("data: ")]
    events = [RUN_EVENT_ADAPTER.validate_json(line) for line in lines]
    plain, scripted, refused, cancelled = [
        event for event in events if event.type not in ("run_started", "pydantic_ai_event")
    ]
    assert plain.data.output.startswith("tok tok ")
    assert scripted.data.output == "Press the button."
    results = [event for event in events if getattr(event.data, "event_kind", "") == "function_tool_result"]
    assert {event.data.part.tool_name for event in results} == {"web_search", "current_time", "knowledge_base_search"}
    assert refused.data.reason == "upstream_http_error"
    assert "404" in refused.data.error
    setting = "DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL"
    assert setting.replace(", ", " and ") in refused.data.error
    log = [json.loads(line) for line in (tmp_path / "wrong.log").read_text().splitlines()]
    (warning,) = [record for record in log if record["event"] == "run failed"]
    assert (warning["level"], warning["setting"]) == ("warning", setting)
    assert cancelled.type == "run_cancelled"
    (seen, left) = [json.loads(line) for line in printed.splitlines() if line.startswith('{"requests"')]
    assert seen["requests"][0]["body"]["caller"]["tenant_id"] == "tenant-1"
    assert [request["path"] for request in left["requests"]] == [GATEWAY_PATH]
