"""Config of the ask-human layer, and what importing its package costs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import dify_agent
from dify_agent.layers import ask_human
from dify_agent.layers.ask_human import (
    DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION,
    DIFY_ASK_HUMAN_LAYER_TYPE_ID,
    DifyAskHumanLayerConfig,
)

SRC = Path(dify_agent.__file__).parent.parent

EXPORTS = {
    "DIFY_ASK_HUMAN_LAYER_TYPE_ID",
    "DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION",
    "DifyAskHumanLayerConfig",
    "AskHumanAction",
    "AskHumanActionStyle",
    "AskHumanField",
    "AskHumanFieldType",
    "AskHumanFileField",
    "AskHumanFileListField",
    "AskHumanParagraphField",
    "AskHumanResultStatus",
    "AskHumanSelectField",
    "AskHumanSelectOption",
    "AskHumanSelectedAction",
    "AskHumanToolArgs",
    "AskHumanToolResult",
    "AskHumanUrgency",
}


def test_exports() -> None:
    assert set(ask_human.__all__) == EXPORTS
    assert all(hasattr(ask_human, name) for name in EXPORTS)
    assert DIFY_ASK_HUMAN_LAYER_TYPE_ID == "dify.ask_human"


def test_the_package_is_light_to_import() -> None:
    heavy = ("trio", "anyio", "pydantic_ai", "dify_agent.loop", "dify_agent.protocol", "dify_agent.model")
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); import dify_agent.layers.ask_human; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_defaults() -> None:
    assert DifyAskHumanLayerConfig().model_dump() == {
        "enabled": True,
        "tool_name": "ask_human",
        "tool_description": None,
        "max_fields": 8,
        "max_actions": 4,
        "allowed_field_types": ["paragraph", "select"],
        "allow_file_fields": False,
        "max_markdown_chars": 8000,
        "max_question_chars": 1000,
        "max_field_label_chars": 120,
        "max_action_label_chars": 80,
    }


LIMITS = [
    ("max_fields", 0, 16),
    ("max_actions", 1, 8),
    ("max_markdown_chars", 0, 20000),
    ("max_question_chars", 1, 4000),
    ("max_field_label_chars", 1, 200),
    ("max_action_label_chars", 1, 120),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_limits_have_bounds(name: str, least: int, most: int) -> None:
    for good in (least, most):
        assert getattr(DifyAskHumanLayerConfig.model_validate({name: good}), name) == good
    with pytest.raises(ValidationError, match=f"{name} must be <= {most}$|{name} must be <= {most} "):
        DifyAskHumanLayerConfig.model_validate({name: most + 1})
    with pytest.raises(ValidationError, match=f"greater than or equal to {least}"):
        DifyAskHumanLayerConfig.model_validate({name: least - 1})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"tool_name": ""}, "tool_name must be a valid tool identifier"),
        ({"tool_name": "1st"}, "tool_name must be a valid tool identifier"),
        ({"tool_name": "ask-human"}, "tool_name must be a valid tool identifier"),
        ({"tool_name": "ask\n"}, "tool_name must be a valid tool identifier"),
        ({"tool_name": "fräge"}, "tool_name must be a valid tool identifier"),
        ({"allowed_field_types": ["select", "select"]}, "allowed_field_types must not contain duplicates"),
        (
            {"allowed_field_types": ["file-list", "paragraph", "file"]},
            "allowed_field_types cannot include file field types when allow_file_fields is false: file, file-list",
        ),
        (
            {"allowed_field_types": ["file"]},
            "allowed_field_types cannot include file field types when allow_file_fields is false: file",
        ),
        ({"allowed_field_types": ["date"]}, "Input should be 'paragraph', 'select', 'file' or 'file-list'"),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_validation_texts(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DifyAskHumanLayerConfig.model_validate(config)
    [error] = caught.value.errors()
    assert error["msg"].removeprefix("Value error, ") == text


def test_file_types_can_be_allowed() -> None:
    types = ["file", "file-list"]
    config = DifyAskHumanLayerConfig.model_validate({"allowed_field_types": types, "allow_file_fields": True})
    assert config.allowed_field_types == types
    assert DifyAskHumanLayerConfig(allowed_field_types=[]).allowed_field_types == []


@pytest.mark.parametrize("blank", [None, "", " \n\t"])
def test_a_blank_description_is_the_default_one(blank: str | None) -> None:
    config = DifyAskHumanLayerConfig(tool_description=blank)
    assert config.tool_description is None
    assert config.effective_tool_description == DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION
    assert "Ask a human for missing information" in DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION


def test_a_description_is_kept_as_it_is() -> None:
    assert DifyAskHumanLayerConfig(tool_description=" Ask. ").effective_tool_description == " Ask. "
