"""DTOs of plugin and core tools: defaults, refusals, and what importing them loads."""

import json
import subprocess
import sys
from enum import Enum
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from dify_agent.layers import config as config_layer
from dify_agent.layers import dify_core_tools, knowledge
from dify_agent.layers.dify_core_tools import DifyCoreToolConfig, DifyCoreToolsLayerConfig
from dify_agent.layers.dify_plugin import tools_config
from dify_agent.layers.dify_plugin.tools_config import (
    DifyPluginToolConfig,
    DifyPluginToolParameter,
    DifyPluginToolsLayerConfig,
)

TOOL = {"plugin_id": "a/b", "provider": "p", "tool_name": "t", "credential_type": "api-key"}
CORE = {"provider_type": "builtin", "provider_id": "time", "tool_name": "now"}
EMPTY_SCHEMA = {"type": "object", "properties": {}, "required": []}


def test_defaults():
    config = DifyPluginToolConfig(**TOOL)
    assert config.model_dump() == {
        **TOOL, "name": None, "description": None, "credentials": {}, "runtime_parameters": {}, "parameters": [],
        "parameters_json_schema": EMPTY_SCHEMA,
    }  # fmt: skip
    assert config.visible_name == "t"
    assert DifyPluginToolConfig(**TOOL, name="n").visible_name == "n"
    assert DifyPluginToolsLayerConfig().tools == []
    core = DifyCoreToolConfig(**CORE)
    assert core.model_dump() == {
        **CORE, "credential_id": None, "name": None, "description": None, "runtime_parameters": {}, "parameters": [],
        "parameters_json_schema": EMPTY_SCHEMA,
    }  # fmt: skip
    assert DifyCoreToolsLayerConfig().tools == []


@pytest.mark.parametrize(
    "change", [{"plugin_id": None}, {"credential_type": "basic"}, {"extra": 1}, {"credentials": {"k": []}}]
)
def test_refused_plugin_tools(change):
    with pytest.raises(ValidationError):
        DifyPluginToolConfig(**{**TOOL, **change})


@pytest.mark.parametrize("change", [{"provider_id": None}, {"provider_type": "dataset"}, {"credentials": {}}])
def test_refused_core_tools(change):
    with pytest.raises(ValidationError):
        DifyCoreToolConfig(**{**CORE, **change})


def test_layers_refuse_unknown_members():
    for layer in (DifyPluginToolsLayerConfig, DifyCoreToolsLayerConfig):
        with pytest.raises(ValidationError, match="Extra inputs"):
            layer(tools=[], more=1)


def test_a_bad_config_shows_no_credential():
    with pytest.raises(ValidationError) as refused:
        DifyPluginToolsLayerConfig(tools=[{**TOOL, "credentials": {"key": ["hush"]}}])
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(DifyPluginToolConfig(**TOOL, credentials={"key": "hush"}))


class TheirEnum(Enum):
    FORM = "form"
    FILES = "files"


def test_declarations_ignore_what_they_do_not_know():
    given = {"name": "n", "type": "select", "form": "llm", "human_description": {}, "options": [{"value": 3, "l": 1}]}
    declared = DifyPluginToolParameter.model_validate(given)
    assert [option.value for option in declared.options] == ["3"]
    assert (declared.required, declared.default, declared.llm_description, declared.input_schema) == (
        False, None, None, None,
    )  # fmt: skip


def test_declarations_can_be_objects_with_attributes():
    option = SimpleNamespace(value=TheirEnum.FORM, label="x")
    item = SimpleNamespace(name="n", type=TheirEnum.FILES, form=TheirEnum.FORM, required=True, options=[option])
    declared = DifyPluginToolParameter.model_validate(item)
    assert (declared.type, declared.form, declared.required) == ("files", "form", True)
    assert [option.value for option in declared.options] == ["form"]
    assert json.loads(declared.model_dump_json())["type"] == "files"


def test_config_layer_defaults_and_refusals():
    config = config_layer.DifyConfigLayerConfig(config_version={}, skills=[{"name": "s"}], files=[{"name": "f"}])
    assert config.model_dump() == {
        "agent_id": None,
        "config_version": {"id": None, "kind": "snapshot", "writable": False},
        "skills": [{"name": "s", "description": "", "size": None, "mime_type": None}],
        "files": [{"name": "f", "size": None, "mime_type": None}],
        "env_keys": [], "note": "", "mentioned_skill_names": [], "mentioned_file_names": [],
    }  # fmt: skip
    for bad in ({"x": 1}, {"config_version": {"kind": "published"}}, {"skills": [{"name": "s", "hash": "h"}]}):
        with pytest.raises(ValidationError):
            config_layer.DifyConfigLayerConfig.model_validate(bad)
    state = config_layer.DifyConfigRuntimeState()
    assert state.model_dump() == {
        "pulled_skill_outputs": {}, "pulled_file_outputs": {}, "config_context_json": "", "config_cli_help": {},
        "push_spec_semantics": "", "push_spec_json_schema": "", "push_spec_example": "",
    }  # fmt: skip
    with pytest.raises(ValidationError):
        config_layer.DifyConfigRuntimeState.model_validate({"more": 1})


@pytest.mark.parametrize("module", [config_layer, dify_core_tools, knowledge, tools_config])
def test_exports_exist_and_hold_the_type_id(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert [name for name in module.__all__ if name.startswith("DIFY_") and name.endswith("_LAYER_TYPE_ID")]


def test_type_ids():
    assert tools_config.DIFY_PLUGIN_TOOLS_LAYER_TYPE_ID == "dify.plugin.tools"
    assert dify_core_tools.DIFY_CORE_TOOLS_LAYER_TYPE_ID == "dify.core.tools"
    assert knowledge.DIFY_KNOWLEDGE_BASE_LAYER_TYPE_ID == "dify.knowledge_base"
    assert config_layer.DIFY_CONFIG_LAYER_TYPE_ID == "dify.config"


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["dify_plugin.tools_config", "dify_core_tools", "knowledge", "config"]
)  # a caller has neither the server's libraries nor a reason to load Pydantic AI
def test_importing_the_dtos_is_light(module):
    script = (
        "import json, sys; sys.modules['trio'] = sys.modules['httpx2'] = None; "
        f"import dify_agent.layers.{module}; "
        "print(json.dumps([name for name, module in sys.modules.items() if module is not None]))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert f"dify_agent.layers.{module}" in loaded
    assert not loaded & {"dify_agent.settings", "dify_agent.backends", "hypercorn", "coredis"}
