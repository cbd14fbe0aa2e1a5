"""How many items a list of a config may have."""

from typing import Any

import pytest
from pydantic import ValidationError

from agenton.layers import LayerConfig
from agenton_collections.layers.plain import PromptLayerConfig
from dify_agent.layers.scripted_tools import ScriptedToolsLayerConfig
from dify_agent.layers.user_prompt import DifyUserPromptLayerConfig


def texts(count: int) -> list[str]:
    return ["x"] * count


def files(count: int) -> list[dict[str, str]]:
    return [{"delivery": "download", "type": "document", "transfer_method": "tool_file", "reference": "r"}] * count


def tools(count: int) -> list[dict[str, str]]:
    return [{"name": f"t{number}"} for number in range(count)]


@pytest.mark.parametrize(
    ("config", "member", "items", "bound", "others"),
    [
        *[(PromptLayerConfig, member, texts, 10_000, {}) for member in ("prefix", "user", "suffix")],
        (DifyUserPromptLayerConfig, "files", files, 1000, {"text": "x"}),
        (ScriptedToolsLayerConfig, "tools", tools, 1000, {}),
    ],
)
def test_lists_are_bounded(
    config: type[LayerConfig], member: str, items: Any, bound: int, others: dict[str, Any]
) -> None:
    accepted = config.model_validate({member: items(bound), **others})
    assert len(getattr(accepted, member)) == bound
    with pytest.raises(ValidationError) as caught:
        config.model_validate({member: items(bound + 1), **others})
    assert any(error["type"] == "too_long" and error["loc"][0] == member for error in caught.value.errors())


def test_a_prompt_of_one_text_has_no_such_bound() -> None:
    assert PromptLayerConfig(user="x" * 10_001).user == "x" * 10_001
