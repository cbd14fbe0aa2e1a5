"""What the ask-human layer contributes, and the deferred call it makes of the model's."""

import json
from typing import Any

import pytest
from pydantic import JsonValue, ValidationError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests, RunContext, Tool, ToolDefinition
from pydantic_ai.usage import RunUsage

from agenton.compositor import LayerProvider
from dify_agent.layers.ask_human import DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION, AskHumanToolArgs
from dify_agent.layers.ask_human.layer import DifyAskHumanLayer
from dify_agent.loop.port import HumanLayer
from dify_agent.protocol.schemas import DeferredToolCallPayload

PROVIDER = LayerProvider.from_layer_type(DifyAskHumanLayer)
NOTE = {"type": "paragraph", "name": "note", "label": "Note"}

PAYLOAD = json.loads(
    """
    {"tool_call_id": "call-1", "tool_name": "ask_human",
     "args": {"title": null, "question": "Deploy now?", "markdown": null,
              "fields": [{"name": "note", "label": "Note", "required": false, "type": "paragraph",
                          "placeholder": null, "default": null}],
              "actions": [{"id": "submit", "label": "Submit", "style": "primary"}], "urgency": "normal"},
     "metadata": {"layer_type": "dify.ask_human", "tool_name": "ask_human", "schema_version": 1}}
    """
)
"""The specification's example, order of members included."""


def make(**config: Any) -> DifyAskHumanLayer:
    layer = PROVIDER.create_layer(config)
    assert isinstance(layer, DifyAskHumanLayer)
    return layer


def call(args: Any, name: str = "ask_human", call_id: str = "call-1") -> ToolCallPart:
    return ToolCallPart(name, args, call_id)


async def definition(tool: Tool[None]) -> ToolDefinition:
    prepared = await tool.prepare_tool_def(RunContext(deps=None, model=TestModel(), usage=RunUsage()))
    assert prepared is not None
    return prepared


def test_it_is_a_human_layer_without_a_trace_in_snapshots() -> None:
    layer = make()
    assert isinstance(layer, HumanLayer)
    assert layer.enabled
    assert layer.type_id == "dify.ask_human"
    assert layer.runtime_state.model_dump() == {}
    assert (list(layer.suffix_prompts), list(layer.user_prompts)) == ([], [])


def test_a_disabled_layer_contributes_nothing() -> None:
    layer = make(enabled=False)
    assert isinstance(layer, HumanLayer)
    assert not layer.enabled
    assert list(layer.tools) == []
    assert list(layer.prefix_prompts) == []


def prompt(**config: Any) -> str:
    [function] = make(**config).prefix_prompts
    text: Any = function()  # type: ignore[call-arg]
    assert isinstance(text, str)
    return text


def test_the_prompt_names_the_tool_and_every_limit() -> None:
    text = prompt(
        tool_name="ask_boss",
        max_fields=3,
        max_actions=2,
        max_markdown_chars=1001,
        max_question_chars=1002,
        max_field_label_chars=103,
        max_action_label_chars=104,
    )
    for words in (
        "`ask_boss`",
        "paragraph, select.",
        "upload fields are disabled",
        "at most 3 field(s)",
        "at most 2 action(s)",
        "1001",
        "1002",
        "103",
        "104",
        "'Submit'",
    ):
        assert words in text


def test_the_prompt_follows_the_config() -> None:
    text = prompt(max_fields=0, allowed_field_types=[], allow_file_fields=True, max_action_label_chars=5)
    assert "Do not add any fields." in text
    assert "Allowed field types: none." in text
    assert "upload fields are enabled" in text
    assert "Always give an action" in text


async def test_the_tool_is_external_sequential_and_not_strict() -> None:
    [tool] = make().tools
    offered = await definition(tool)
    assert (offered.name, offered.kind, offered.sequential, offered.strict) == ("ask_human", "external", True, False)
    assert offered.description == DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION
    assert offered.parameters_json_schema == AskHumanToolArgs.model_json_schema()
    [named] = make(tool_name="ask_boss", tool_description="Ask the boss.").tools
    offered = await definition(named)
    assert (offered.name, offered.description) == ("ask_boss", "Ask the boss.")


async def test_the_tool_cannot_be_executed() -> None:
    [tool] = make().tools
    with pytest.raises(RuntimeError, match="cannot be executed"):
        await tool.function_schema.call({"question": "Q?"}, RunContext(deps=None, model=TestModel(), usage=RunUsage()))


def bare(schema: Any) -> Any:
    """The schema without its prose, whose wording is no contract."""
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    prose = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
    return {key: bare(value) for key, value in schema.items() if key not in prose}


def closed(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


def nullable(**schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/AskHuman{name}"}


IDENTIFIER = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
FILLED = {"type": "string", "minLength": 1}


def form_field(kind: str, *required: str, **properties: Any) -> dict[str, Any]:
    return closed(
        ["name", "label", "type", *required],
        name=IDENTIFIER,
        label=FILLED,
        required={"type": "boolean", "default": False},
        type={"const": kind, "type": "string"},
        **properties,
    )


VARIANTS = {
    "paragraph": "ParagraphField",
    "select": "SelectField",
    "file": "FileField",
    "file-list": "FileListField",
}
SCHEMA = {
    "$defs": {
        "AskHumanAction": closed(
            ["id", "label"],
            id=IDENTIFIER,
            label={"type": "string"},
            style={"type": "string", "enum": ["default", "primary", "destructive"], "default": "default"},
        ),
        "AskHumanFileField": form_field("file"),
        "AskHumanFileListField": form_field("file-list", max_files=nullable(type="integer", minimum=1)),
        "AskHumanParagraphField": form_field(
            "paragraph", placeholder=nullable(type="string"), default=nullable(type="string")
        ),
        "AskHumanSelectField": form_field(
            "select",
            "options",
            options={"type": "array", "items": ref("SelectOption")},
            default=nullable(type="string"),
        ),
        "AskHumanSelectOption": closed(["value", "label"], value=FILLED, label=FILLED),
    },
    **closed(
        ["question"],
        title=nullable(type="string"),
        question=FILLED,
        markdown=nullable(type="string"),
        fields={
            "type": "array",
            "items": {
                "oneOf": [ref(name) for name in VARIANTS.values()],
                "discriminator": {
                    "propertyName": "type",
                    "mapping": {kind: ref(name)["$ref"] for kind, name in VARIANTS.items()},
                },
            },
        },
        actions={"type": "array", "items": ref("Action")},
        urgency={"type": "string", "enum": ["normal", "high"], "default": "normal"},
    ),
}


def test_the_schema_the_model_sees() -> None:
    [tool] = make().tools
    schema = tool.tool_def.parameters_json_schema
    assert bare(schema) == SCHEMA
    described = [schema["properties"], schema["$defs"]["AskHumanSelectField"]["properties"]]
    undescribed = [key for part in described for key, value in part.items() if "description" not in value]
    assert undescribed == ["type"]


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "text"])
def test_the_payload_is_complete_whatever_the_model_left_out(as_text: bool) -> None:
    given: Any = {"question": "Deploy now?", "fields": [NOTE]}
    payload = make().deferred_call(DeferredToolRequests(calls=[call(json.dumps(given) if as_text else given)]))
    assert type(payload) is DeferredToolCallPayload
    assert json.dumps(payload.model_dump(mode="json")) == json.dumps(PAYLOAD)


def test_the_payload_names_the_configured_tool() -> None:
    requests = DeferredToolRequests(calls=[call({"question": "Q?", "urgency": "high"}, name="ask_boss")])
    payload = make(tool_name="ask_boss").deferred_call(requests)
    metadata: dict[str, JsonValue] = {"layer_type": "dify.ask_human", "tool_name": "ask_boss", "schema_version": 1}
    assert (payload.tool_name, payload.metadata) == ("ask_boss", metadata)
    assert payload.args == {
        "title": None,
        "question": "Q?",
        "markdown": None,
        "fields": [],
        "actions": [{"id": "submit", "label": "Submit", "style": "primary"}],
        "urgency": "high",
    }


GOOD = {"question": "Q?"}


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        (
            DeferredToolRequests(calls=[call(GOOD)], approvals=[call(GOOD)]),
            "ask_human does not support approval requests; use external deferred calls only",
        ),
        (
            DeferredToolRequests(),
            "ask_human supports exactly one deferred call per run in this version; got 0.",
        ),
        (
            DeferredToolRequests(calls=[call(GOOD), call(GOOD, name="other", call_id="c2")]),
            "ask_human supports exactly one deferred call per run in this version; got 2.",
        ),
        (
            DeferredToolRequests(calls=[call(GOOD, name="other")]),
            "ask_human deferred tool name must be 'ask_human', got 'other'.",
        ),
        (
            DeferredToolRequests(calls=[call({"question": "q" * 1001})]),
            "ask_human question must be <= 1000 characters",
        ),
    ],
)
def test_calls_that_are_not_one_question_are_refused(requests: DeferredToolRequests, text: str) -> None:
    with pytest.raises(ValueError, match="ask_human") as caught:
        make().deferred_call(requests)
    assert str(caught.value) == text


@pytest.mark.parametrize("args", ["{", '{"question": "a"}{"question": "b"}', '{"args": {"question": "a"}}'])
def test_arguments_that_are_no_question_are_value_errors(args: Any) -> None:
    with pytest.raises(ValidationError):
        make().deferred_call(DeferredToolRequests(calls=[call(args)]))


@pytest.mark.parametrize("args", ["", None, {}])
def test_no_arguments_lack_a_question(args: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make().deferred_call(DeferredToolRequests(calls=[call(args)]))
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [("missing", ("question",))]


def test_the_call_itself_is_not_changed() -> None:
    asked = call({"question": "Q?"})
    make().deferred_call(DeferredToolRequests(calls=[asked]))
    assert asked.args == {"question": "Q?"}
