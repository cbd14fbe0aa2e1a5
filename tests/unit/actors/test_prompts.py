"""Prompts: blankness by layers 4, what can be decided from a request alone, and the forms the loop gets."""

import json
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_ai.messages import ImageUrl, UserContent
from tests.unit.actors.world import history, model, request, text, tools

from agenton.compositor import LayerProvider
from agenton.layers import LayerConfig
from agenton_collections.layers.plain import PromptLayer, PromptLayerConfig
from dify_agent.actors.composition import plan_run
from dify_agent.actors.prompts import has_blank_prompt, is_blank, render_instructions, user_input
from dify_agent.errors import AgentRunValidationError
from dify_agent.layers.execution_context.layer import DifyExecutionContextLayer
from dify_agent.layers.scripted_model.layer import ScriptedModelLayer
from dify_agent.layers.user_prompt import DifyUserPromptLayerConfig
from dify_agent.layers.user_prompt.layer import DifyUserPromptLayer
from dify_agent.protocol.schemas import CreateRunRequest

LLM = model(text())
CONTEXT = {
    "name": "execution_context",
    "type": "dify.execution_context",
    "config": {"tenant_id": "t1", "agent_mode": "agent_app", "invoke_from": "service-api"},
}
SILENT = (CONTEXT, {"name": "output", "type": "dify.output"}, {"name": "ask_human", "type": "dify.ask_human"})
IMAGE = {"filename": "a.png", "mime_type": "image/png", "format": "png", "url": "https://example.org/a.png"}
DOWNLOAD = {"delivery": "download", "type": "document", "transfer_method": "tool_file", "reference": "r"}


def prompt(config: Any, name: str = "prompt") -> dict[str, Any]:
    return {"name": name, "type": "plain.prompt", "config": config}


def user_prompt(config: Any, name: str = "user_prompt") -> dict[str, Any]:
    return {"name": name, "type": "dify.user_prompt", "config": config}


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
        ((user_prompt({"text": " \n"}), LLM), True),
        ((user_prompt({"text": " ", "files": []}), prompt({}), LLM), True),
        ((user_prompt('{"text":"\\t"}'), LLM), True),
        ((user_prompt(DifyUserPromptLayerConfig(text=" ")), LLM), True),
        ((prompt({"user": ""}), *SILENT, LLM), True),
        ((user_prompt({"text": "x"}), LLM), False),
        ((user_prompt({"text": " "}), prompt({"user": "x"}), LLM), False),
        ((user_prompt({"text": " ", "files": [IMAGE]}), LLM), False),
        ((user_prompt({"text": " ", "files": [DOWNLOAD]}), LLM), False),
        ((user_prompt(DifyUserPromptLayerConfig(text=" ", files=[IMAGE])), LLM), False),
        ((user_prompt({"text": "x"}), *SILENT, LLM), False),
        # Undecidable here: the run finds out.
        ((prompt({"user": "", "users": "x"}), LLM), False),
        ((prompt({"user": "", "prefix": 1}), LLM), False),
        ((prompt('{"user":"","suffix":NaN}'), LLM), False),
        ((prompt("null"), LLM), False),
        ((prompt(b"\xff"), LLM), False),
        ((user_prompt(None), LLM), False),
        ((user_prompt({}), LLM), False),
        ((user_prompt({"text": ""}), LLM), False),
        ((user_prompt({"text": [" "]}), LLM), False),
        ((user_prompt({"text": " ", "files": None}), LLM), False),
        ((user_prompt({"text": " ", "files": {}}), LLM), False),
        ((user_prompt({"text": " ", "files": [{}]}), LLM), False),
        ((user_prompt({"text": " ", "user": ""}), LLM), False),
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


PROVIDERS = tuple(
    map(
        LayerProvider.from_layer_type,
        (PromptLayer, DifyUserPromptLayer, DifyExecutionContextLayer, ScriptedModelLayer),
    )
)
PROMPTS = [
    *(
        ("plain.prompt", config)
        for config in (
            None, {}, {"user": ""}, {"user": ["", "\u2003"]}, {"user": ["", "x"]}, {"user": "\u200b"}, {"user": []},
            {"user": "", "prefix": "p", "suffix": ["s"]}, {"user": "", "prefix": None}, {"user": "", "extra": "x"},
            {"user": [" ", 7]}, {"user": None}, [], 7, "", "null", '"x"', '{"user":" "}', '{"user":"x","user":" "}',
            '{"user":" ","user":"x"}', '{"user":"","suffix":NaN}', '{"user":"\\ud800"}', '{"user":" "} x', DEEP,
            b'{"user":" "}', '{"user":" "}'.encode("utf-16"), PromptLayerConfig(user=" "), PromptLayerConfig(user="x"),
        )
    ),
    *(
        ("dify.user_prompt", config)
        for config in (
            None, {}, {"text": ""}, {"text": " "}, {"text": "x"}, {"text": None}, {"text": " ", "files": None},
            {"text": " ", "files": []}, {"text": " ", "files": [IMAGE]}, {"text": " ", "files": [DOWNLOAD]},
            {"text": " ", "files": [{**IMAGE, "url": "ftp://example.org"}]}, {"text": " ", "files": [1]},
            {"text": " ", "detail": "low"}, {"text": " ", "user": "x"}, '{"text":" "}', '{"text":"x","files":[]}',
            '{"text":" ","files":[],"files":[{}]}', "[]", DifyUserPromptLayerConfig(text=" "),
            DifyUserPromptLayerConfig(text=" ", files=[DOWNLOAD]), PromptLayerConfig(user=" "),
        )
    ),
]  # fmt: skip


async def found_by_the_run(asked: CreateRunRequest) -> str:
    """What the run itself would say of these layers: refused, blank or accepted."""
    try:
        plan = plan_run(asked, PROVIDERS)
        async with plan.compositor.enter(configs=plan.configs) as run:
            return "blank" if is_blank(list(run.user_prompts)) else "accepted"
    except (AgentRunValidationError, ValidationError):
        return "refused"


def composed(*prompts: tuple[str, Any]) -> CreateRunRequest:
    layers = [{"name": f"p{index}", "type": kind, "config": config} for index, (kind, config) in enumerate(prompts)]
    return request(*layers, CONTEXT, LLM)


@pytest.mark.parametrize("first", PROMPTS, ids=lambda pair: f"{pair[0]} {pair[1]!r:.40}")
async def test_the_decision_agrees_with_what_the_run_finds(first: tuple[str, Any]) -> None:
    for prompts in ((first,), *((first, second) for second in PROMPTS)):
        asked = composed(*prompts)
        assert has_blank_prompt(asked) is (await found_by_the_run(asked) == "blank"), prompts


async def test_the_table_has_every_outcome() -> None:
    for kind in ("plain.prompt", "dify.user_prompt"):
        outcomes = {await found_by_the_run(composed(pair)) for pair in PROMPTS if pair[0] == kind}
        assert outcomes == {"refused", "blank", "accepted"}


def test_user_input() -> None:
    image = ImageUrl("https://example.org/a.png")
    assert user_input(["one"]) == "one"
    assert user_input(["one", ""]) == ["one", ""]
    assert user_input([image]) == [image]


async def test_render_instructions() -> None:
    async def late() -> str:
        return "late  "

    functions = [lambda: " as it is \n", lambda: "", lambda: " \n", lambda: None, late]
    assert await render_instructions(functions) == [" as it is \n", "late  "]


async def test_system_prompts_reach_the_loop_as_they_are() -> None:
    config = {"prefix": ["a  \n\n", " ", "  b"], "user": "x", "suffix": "c \n"}
    plan = plan_run(composed(("plain.prompt", config)), PROVIDERS)
    async with plan.compositor.enter(configs=plan.configs) as run:
        assert await render_instructions(run.prompts) == ["a  \n\n", "  b", "c \n"]
