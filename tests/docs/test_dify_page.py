"""docs/dify.md: its tables have every member of the layers' configs, its endpoints are those that the code asks."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.docs.pages import ROOT, prose, table_under

from dify_agent.layers.dify_core_tools import DifyCoreToolConfig
from dify_agent.layers.dify_core_tools.layer import INVOKE_PATH
from dify_agent.layers.dify_plugin import DifyPluginLLMLayerConfig, DifyPluginToolConfig
from dify_agent.layers.dify_plugin.tools_client import TIMEOUT, UNREACHABLE
from dify_agent.layers.knowledge import DifyKnowledgeBaseLayerConfig, DifyKnowledgeSetConfig
from dify_agent.layers.knowledge.retrieval import RETRIEVE_PATH
from dify_agent.model.dify.gateway import GATEWAY_PATH

PAGE: Path = ROOT / "docs" / "dify.md"
CONFIGS = {
    "`dify.plugin.llm`": DifyPluginLLMLayerConfig,
    "`dify.plugin.tools`": DifyPluginToolConfig,
    "`dify.core.tools`": DifyCoreToolConfig,
    "`dify.knowledge_base`": DifyKnowledgeBaseLayerConfig,
}


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


def test_members_of_a_set_are_named() -> None:
    named = set(re.findall(r"`(\w+)`", prose(PAGE).split("A set has", 1)[1].split(".", 1)[0]))
    assert named == set(DifyKnowledgeSetConfig.model_fields)


def test_endpoints_and_reasons_are_the_codes() -> None:
    text = prose(PAGE)
    for path in (GATEWAY_PATH, f"/inner/api{INVOKE_PATH}", f"/inner/api{RETRIEVE_PATH}"):
        assert f"`POST {path}`" in text
    assert f"`{UNREACHABLE}`" in text
    assert f"`{TIMEOUT}`" in text
