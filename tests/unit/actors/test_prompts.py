"""Prompts: blankness by layers 4, what can be decided from a request alone, and the forms the loop gets."""

import json
from typing import Any

import pytest
from pydantic_ai.messages import ImageUrl, UserContent
from tests.unit.actors.world import history, model, request, text, tools

from agenton.layers import LayerConfig
from agenton_collections.layers.plain import PromptLayerConfig
from dify_agent.actors.prompts import has_blank_prompt, is_blank, render_instructions, user_input

LLM = model(text())


def prompt(config: Any, name: str = "prompt") -> dict[str, Any]:
    return {"name": name, "type": "plain.prompt", "config": config}


@pytest.mark.parametrize(
    ("items", "blank"),
    [
        ([], True),
        ([""], True),
        (["   "], True),
        (["", " \n\t\u3000"], True),
        (["x"], False),
        (["", "x"], False),
        (["\x00"], False),
        ([ImageUrl("https://example.org/a.png")], False),
        (["", ImageUrl("https://example.org/a.png")], False),
    ],
)
def test_is_blank(items: list[UserContent], blank: bool) -> None:
    assert is_blank(items) is blank


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("layers", "blank"),
    [
        ((LLM,), True),
        ((prompt({}), LLM), True),
        ((prompt(None), LLM), True),
        ((prompt({"user": []}), LLM), True),
        ((prompt({"user": "  "}), LLM), True),
        ((prompt({"user": ["", "\n"]}), LLM), True),
        ((prompt({"prefix": "system only"}), LLM), True),
        ((prompt(json.dumps({"user": " "})), LLM), True),
        ((prompt(PromptLayerConfig(user="")), LLM), True),
        ((prompt({"user": ""}), history(), tools({"name": "t", "result": 1}), LLM), True),
        ((prompt({"user": "x"}), LLM), False),
        ((prompt({"user": ["", "x"]}), LLM), False),
        ((prompt({"user": ""}), prompt({"user": "x"}, "second"), LLM), False),
        ((prompt('{"user":"x"}'), LLM), False),
        ((prompt(PromptLayerConfig(user=["x"])), LLM), False),
        # Undecidable here: the run finds out.
        ((prompt({"user": 7}), LLM), False),
        ((prompt({"user": [7]}), LLM), False),
        ((prompt({"user": None}), LLM), False),
        ((prompt("no json"), LLM), False),
        ((prompt("[]"), LLM), False),
        ((prompt(DEEP), LLM), False),
        ((prompt({"user": ""}), {"name": "k", "type": "dify.knowledge_base"}, LLM), False),
        # A cleanup run has no prompt.
        ((prompt({"user": ""}),), False),
    ],
)
def test_has_blank_prompt(layers: tuple[dict[str, Any], ...], blank: bool) -> None:
    assert has_blank_prompt(request(*layers)) is blank


@pytest.mark.parametrize("results", [{}, {"calls": {"1": "yes"}}])
def test_a_resume_needs_no_prompt(results: dict[str, Any]) -> None:
    assert has_blank_prompt(request(LLM, deferred_tool_results=results)) is False


def test_a_config_object_of_another_class_is_read_by_its_members() -> None:
    class Other(LayerConfig):
        user: str = "hello"

    assert has_blank_prompt(request(prompt(Other()), LLM)) is False


def test_user_input() -> None:
    image = ImageUrl("https://example.org/a.png")
    assert user_input(["one"]) == "one"
    assert user_input(["one", ""]) == ["one", ""]
    assert user_input([image]) == [image]


async def test_render_instructions() -> None:
    async def late() -> str:
        return "late  "

    functions = [lambda: " kept inside \n", lambda: "", lambda: " \n", lambda: None, late]
    assert await render_instructions(functions) == [" kept inside", "late"]
