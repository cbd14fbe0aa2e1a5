"""What goes out: golden bodies of both ways, prompt messages, tools and settings (integrations 3.2 to 3.5)."""

import json

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FilePart,
    ImageUrl,
    InstructionPart,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    RetryPromptPart,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from tests.unit.model.dify.fake_dify import CONTEXT, PROMPT, TEXT, FakeDify, Reply, answer, play

from dify_agent.model.dify.call import model_parameters
from dify_agent.model.dify.gateway import full_provider, invocation_id
from dify_agent.model.dify.messages import prompt_messages, tool_declarations

GATEWAY_BODY = {
    "caller": {
        "tenant_id": "t-1",
        "user_id": "u-1",
        "user_from": "account",
        "app_id": "app-1",
        "workflow_id": None,
        "workflow_run_id": None,
        "node_id": None,
        "node_execution_id": None,
        "conversation_id": None,
        "agent_id": None,
        "agent_config_version_id": None,
        "agent_config_version_kind": None,
        "agent_mode": "agent_app",
        "invoke_from": "web-app",
        "trace_id": None,
        "invocation_id": "cfa640b5-638a-529f-8880-ff7f1424810c",
        "agent_run_id": "run-1",
        "call_index": 1,
    },
    "target": {
        "provider": "langgenius/openai/openai",
        "model": "gpt-x",
        "prompt_messages": [{"role": "user", "content": "hello", "name": None}],
        "model_parameters": {"temperature": 0.2},
        "tools": None,
        "stop": None,
        "stream": True,
    },
}
DAEMON_BODY = {
    "user_id": "u-1",
    "data": {
        "provider": "openai",
        "model_type": "llm",
        "model": "gpt-x",
        "credentials": {"k": "v"},
        "prompt_messages": [{"role": "user", "content": "hello", "name": None}],
        "model_parameters": {},
        "tools": None,
        "stop": None,
        "stream": True,
    },
}


NO_OUTPUT = RetryInfo(cause="no_output", attempt=1, max_retries=1)
ONE_TOOL = ModelRequestParameters(function_tools=[ToolDefinition(name="f", parameters_json_schema={"type": "object"})])


def prompt(*messages, parameters=TEXT):
    return prompt_messages(list(messages), parameters)


def user(content):
    return prompt(ModelRequest([UserPromptPart(content)]))[0]["content"]


def tool_result(content, **members):
    return prompt(ModelRequest([ToolReturnPart("f", content, "c1", **members)]))[0]


async def test_the_gateways_body_is_the_contracts():
    dify = FakeDify(answer("hi"))
    await play(dify.gateway_model(), settings={"temperature": 0.2})
    assert dify.sent() == GATEWAY_BODY
    request = dify.requests[0]
    assert (request.method, str(request.url)) == ("POST", "http://api.test:5001/inner/api/agent/llm/invoke")
    assert request.headers["x-inner-api-key"] == "inner-key"
    assert request.headers["content-type"] == "application/json"


async def test_the_daemons_body_is_the_contracts():
    dify = FakeDify(answer("hi"))
    await play(dify.daemon_model())
    assert dify.sent() == DAEMON_BODY
    request = dify.requests[0]
    assert str(request.url) == "http://daemon.test:5002/plugin/t-1/dispatch/llm/invoke"
    assert (request.headers["x-api-key"], request.headers["x-plugin-id"]) == ("daemon-key", "langgenius/openai")


async def test_the_daemon_gets_no_unknown_user_no_null_content_and_an_escaped_tenant():
    dify = FakeDify(answer("hi"))
    context = CONTEXT.model_copy(update={"user_id": None, "tenant_id": "../a b"})
    await play(dify.daemon_model(context=context), [ModelRequest([UserPromptPart([])])])
    assert "user_id" not in dify.sent()
    assert dify.sent()["data"]["prompt_messages"][0]["content"] == ""
    assert dify.requests[0].url.raw_path == b"/plugin/..%2Fa%20b/dispatch/llm/invoke"


@pytest.mark.parametrize("tenant", ["", ".", ".."])
def test_a_tenant_never_leads_to_another_path(tenant):
    with pytest.raises(ValueError, match="tenant_id"):
        FakeDify().daemon_model(context=CONTEXT.model_copy(update={"tenant_id": tenant}))


@pytest.mark.parametrize("plugin_id", ["é", "a\r\nX: y", "\0", " a", "a\t"])
def test_a_plugin_that_no_header_can_name_is_refused_before_anything_is_sent(plugin_id):
    with pytest.raises(ValueError, match="plugin_id must consist of printable ASCII characters"):
        FakeDify().daemon_model(plugin_id=plugin_id)


async def test_every_attempt_counts():
    dify = FakeDify(Reply([b"{}"], status=500), answer("hi"), answer("ho"))
    model = dify.gateway_model()
    with pytest.raises(Exception, match="upstream"):
        await play(model)
    await play(model)
    await model.request(PROMPT, None, TEXT)
    callers = [dify.sent(index)["caller"] for index in range(3)]
    assert [caller["call_index"] for caller in callers] == [1, 2, 3]
    assert callers[1]["invocation_id"] == "96653d8e-ad4c-5353-b077-01bef35f23aa"
    assert [dify.sent(index)["target"]["stream"] for index in range(3)] == [True, True, False]


def test_invocation_ids():
    assert invocation_id("run-1", 1) == "cfa640b5-638a-529f-8880-ff7f1424810c"
    assert invocation_id("run-1", 2) == "96653d8e-ad4c-5353-b077-01bef35f23aa"


@pytest.mark.parametrize(
    ("given", "sent"), [("openai", "o/p/openai"), ("a/b/c", "a/b/c"), ("a/b", "o/p/a/b"), ("a/b/c/d", "o/p/a/b/c/d")]
)
def test_provider_names(given, sent):
    assert full_provider("o/p", given) == sent


async def test_the_gateway_needs_to_know_who_asks():
    dify = FakeDify()
    model = dify.gateway_model(context=CONTEXT.model_copy(update={"user_id": None, "app_id": None}))
    text = r"Agent LLM Gateway requires execution context fields: user_id, app_id\."
    with pytest.raises(UserError, match=text):
        await play(model)
    assert dify.requests == []


async def test_names_of_both_ways():
    dify = FakeDify(answer("hi"), answer("hi"))
    for model, name in ((dify.gateway_model(), "DifyAPI"), (dify.daemon_model(), "DifyPlugin")):
        _, response = await play(model)
        assert (response.provider_name, response.provider_url) == (f"{name}/langgenius/openai", None)
        assert (response.model_name, model.system) == ("gpt-x", f"{name}/langgenius/openai")


def test_one_system_message_stands_first():
    messages = prompt(
        ModelRequest([UserPromptPart("a"), SystemPromptPart("one"), SystemPromptPart(" \n")]),
        ModelResponse([TextPart("b")]),
        ModelRequest([SystemPromptPart("two "), UserPromptPart("c")]),
        parameters=ModelRequestParameters(instruction_parts=[InstructionPart("three"), InstructionPart(" ")]),
    )
    assert messages[0] == {"role": "system", "content": "one\n\ntwo \n\nthree", "name": None}
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


def test_instructions_of_the_last_request_serve_a_caller_without_parts():
    messages = [ModelRequest([UserPromptPart("a")], instructions="old"), ModelRequest([], instructions="new")]
    assert prompt(*messages)[0]["content"] == "new"
    assert [message["role"] for message in prompt(ModelRequest([UserPromptPart("a")]))] == ["user"]


def test_user_content():
    image = ImageUrl("https://x.test/a.png")
    assert user("a") == "a"
    assert user(["a", CachePoint(), TextContent("b")]) == "ab"
    assert user([CachePoint()]) is None
    assert [part["type"] for part in user(["a", image])] == ["text", "image"]


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (
            ImageUrl("https://x.test/a.png", vendor_metadata={"detail": "high"}),
            {
                "type": "image",
                "format": "png",
                "base64_data": "",
                "url": "https://x.test/a.png",
                "mime_type": "image/png",
                "filename": "",
                "detail": "high",
            },
        ),
        (
            BinaryContent(b"x", media_type="image/jpeg"),
            {
                "type": "image",
                "format": "jpeg",
                "base64_data": "eA==",
                "url": "",
                "mime_type": "image/jpeg",
                "filename": "",
                "detail": "low",
            },
        ),
        (
            AudioUrl("https://x.test/a.mp3", identifier="song"),
            {
                "type": "audio",
                "format": "mp3",
                "base64_data": "",
                "url": "https://x.test/a.mp3",
                "mime_type": "audio/mpeg",
                "filename": "song.mp3",
            },
        ),
        (
            BinaryContent(b"x", media_type="application/pdf", identifier="doc"),
            {
                "type": "document",
                "format": "pdf",
                "base64_data": "eA==",
                "url": "",
                "mime_type": "application/pdf",
                "filename": "doc.pdf",
            },
        ),
    ],
)
def test_files(item, part):
    assert user([item]) == [part]


def test_files_by_kind_and_without_a_known_type():
    kinds = [
        VideoUrl("https://x.test/a.mp4"),
        DocumentUrl("https://x.test/a.pdf"),
        BinaryContent(b"x", media_type="video/mp4"),
        BinaryContent(b"x", media_type="audio/wav"),
    ]
    assert [user([kind])[0]["type"] for kind in kinds] == ["video", "document", "video", "audio"]
    signed = user([ImageUrl("https://x.test/files/1?sign=2")])[0]
    assert (signed["url"], signed["mime_type"], signed["format"]) == ("https://x.test/files/1?sign=2", "", "")


@pytest.mark.parametrize(
    "content", [BinaryContent(b"x", media_type="application/x-own"), UploadedFile("id", provider_name="openai")]
)
def test_what_dify_has_no_part_for_is_refused(content):
    with pytest.raises(UnexpectedModelBehavior, match="the model was not asked"):
        user([content])


def test_tool_results():
    assert tool_result("ok") == {
        "role": "tool",
        "content": "ok",
        "name": "f",
        "tool_call_id": "c1",
    }
    assert tool_result({"a": [1, None]})["content"] == '{"a":[1,null]}'
    assert tool_result([])["content"] is None
    assert tool_result(["a", 1])["content"] == [{"type": "text", "data": "a"}, {"type": "text", "data": "1"}]
    assert json.loads(tool_result("no", outcome="failed")["content"]) == {"error": "no"}
    assert [part["type"] for part in tool_result(["a", BinaryContent(b"x", media_type="image/png")])["content"]] == [
        "text",
        "image",
    ]


def test_retries():
    with pytest.warns(Warning, match="RetryPromptPart"):
        named, plain = RetryPromptPart("bad", tool_name="f", tool_call_id="c1"), RetryPromptPart("bad")
    tool, text = prompt(ModelRequest([named, plain]))
    assert (tool["role"], tool["name"], tool["tool_call_id"]) == ("tool", "f", "c1")
    assert "bad" in tool["content"]
    assert text["role"] == "user"
    assert "bad" in text["content"]
    assert json.loads(tool_result("bad", outcome="retried")["content"]) == {"error": "bad"}


NATIVE = {"tool_name": "f", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    "message",
    [
        ModelRequest([SpeechPart(speaker="user", transcript="a")]),
        ModelRequest([ToolAvailabilityDeltaPart(tools_added=["f"])]),
        ModelRequest([RetryFeedbackPart("a", retry=NO_OUTPUT)]),
        ModelResponse([TextPart("a"), SpeechPart(speaker="assistant", transcript="a")]),
        ModelResponse([NativeToolCallPart(args="{}", **NATIVE)]),
        ModelResponse([NativeToolReturnPart(content="a", **NATIVE)]),
    ],
    ids=lambda message: type(message.parts[-1]).__name__,
)
def test_parts_that_dify_has_no_form_for_are_refused(message):
    name = type(message.parts[-1]).__name__
    with pytest.raises(UnexpectedModelBehavior, match=f"Dify models take no {name}; the model was not asked"):
        prompt(message)


def prepared(*messages):
    """The messages as the loop sends them."""
    return FakeDify().gateway_model().prepare_messages(list(messages), TEXT)


def test_feedback_is_a_prompt_of_its_own_text():
    """Whatever it stands beside, and whatever the cause."""
    asked = ModelRequest([RetryFeedbackPart("Please return text.", retry=NO_OUTPUT)])
    first = ModelRequest([SystemPromptPart("s"), *asked.parts])
    assert prompt(*prepared(first, ModelResponse([TextPart("a")]), asked)) == [
        {"role": "system", "content": "s", "name": None},
        {"role": "user", "content": "Please return text.", "name": None},
        {"role": "assistant", "content": "a", "name": None, "tool_calls": []},
        {"role": "user", "content": "Please return text.", "name": None},
    ]
    quoting = RetryFeedbackPart("<system>a</system>", retry=RetryInfo(cause="model_retry", attempt=1, max_retries=1))
    (message,) = prompt(*prepared(ModelRequest([quoting])))
    assert (message["role"], message["content"]) == ("user", quoting.model_response())


def test_what_pydantic_ai_has_to_prepare_is_prepared():
    """Results in the order of their calls and before all else; older and foreign parts in a form that Dify has."""
    with pytest.warns(Warning, match="RetryPromptPart"):
        retry = RetryPromptPart("bad", tool_name="g", tool_call_id="c2")
    sent = prepared(
        ModelRequest([SpeechPart(speaker="user", transcript="a")]),
        ModelResponse([ToolCallPart("f", {}, "c1"), ToolCallPart("g", {}, "c2")]),
        ModelRequest([UserPromptPart("b"), retry, ToolReturnPart("f", "ok", "c1")]),
    )
    messages = prompt(*sent)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [message.get("tool_call_id") for message in messages[2:]] == ["c1", "c2", None]
    assert json.loads(messages[3]["content"]) == {"error": "bad"}


def test_a_history_with_nothing_to_prepare_is_not_copied():
    """By this the loop sees that it need not repair it again."""
    messages = [ModelRequest([SystemPromptPart("<system>s"), UserPromptPart("a")]), ModelResponse([TextPart("b")])]
    assert FakeDify().gateway_model().prepare_messages(messages, TEXT) is messages


@pytest.mark.parametrize("announcement", ["when_needed", "always", "never"])
def test_no_text_brings_notes(announcement):
    """Tags of Pydantic AI's own in each place where it looks for them, and system prompts in the middle."""
    tagged = "<system>x</system> <pyai:context id='a'>y"
    file = BinaryContent(tagged.encode(), media_type="text/plain")
    history = [
        ModelRequest([SystemPromptPart("s"), UserPromptPart(tagged)]),
        ModelResponse([ThinkingPart(tagged), TextPart(tagged), ToolCallPart("f", {}, "c1")]),
        ModelRequest(
            [ToolReturnPart("f", [tagged, file], "c1"), SystemPromptPart("t"), UserPromptPart([tagged, file])]
        ),
    ]
    for settings in (None, {"framing_announcement": announcement}):
        sent = FakeDify().gateway_model(settings=settings).prepare_messages(history, TEXT)
        assert sent == history
        assert prompt(*sent) == prompt(*history)


def test_responses():
    (message,) = prompt(ModelResponse([ThinkingPart("hm"), TextPart("a"), TextPart("b")]))
    assert message == {"role": "assistant", "content": "<think>\nhm\n</think>ab", "name": None, "tool_calls": []}
    (message,) = prompt(ModelResponse([ToolCallPart("f", {"a": 1}, "c1"), ToolCallPart("g", "{tr", "")]))
    assert message["content"] == ""
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {
            "id": "tool-call-1-g",
            "type": "function",
            "function": {"name": "g", "arguments": '{"INVALID_JSON":"{tr"}'},
        },
    ]
    assert prompt(ModelResponse([]), ModelResponse([TextPart("")]), ModelResponse([ThinkingPart("")])) == []
    (message,) = prompt(ModelResponse([TextPart("a"), FilePart(BinaryContent(b"x", media_type="image/png"))]))
    assert [part["type"] for part in message["content"]] == ["text", "image"]


def test_tools():
    parameters = ModelRequestParameters(
        function_tools=[ToolDefinition(name="f", description="does f", parameters_json_schema={"type": "object"})],
        output_tools=[ToolDefinition(name="final_output", kind="output", strict=True)],
    )
    first, last = tool_declarations(parameters)
    assert first == {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert (last["name"], last["description"], last.keys()) == ("final_output", "", first.keys())
    assert tool_declarations(TEXT) is None


async def test_settings_of_the_loop_and_of_pydantic_ai_are_not_sent():
    settings = {
        "tool_choice": "required",
        "request_timeout": 5,
        "first_event_timeout": 5,
        "framing_announcement": "always",
        "max_retries": 5,
        "stop_sequences": ["x"],
        "extra_body": {"own": 1},
    }
    dify = FakeDify(answer("hi"), answer("hi"))
    for model in (dify.gateway_model(), dify.daemon_model()):
        await play(model, settings=settings, parameters=ONE_TOOL)
    for body, wanted in zip((dify.sent(0), dify.sent(1)), (GATEWAY_BODY, DAEMON_BODY), strict=True):
        sent, plain = (each.get("target") or each["data"] for each in (body, wanted))
        assert sent == {
            **plain,
            "model_parameters": {"own": 1},
            "stop": ["x"],
            "tools": tool_declarations(ONE_TOOL),
        }
        assert body.keys() == wanted.keys()


async def test_settings():
    dify = FakeDify(answer("hi"))
    model = dify.gateway_model(settings={"temperature": 0.1, "top_p": 0.5, "stop_sequences": ["x"], "seed": 1})
    await play(
        model, settings={"temperature": 0.9, "extra_body": {"seed": 2, "own": [1]}, "request_timeout": 5, "top_k": None}
    )
    target = dify.sent()["target"]
    assert target["model_parameters"] == {"temperature": 0.9, "top_p": 0.5, "seed": 2, "own": [1]}
    assert target["stop"] == ["x"]


def test_extra_body_must_be_an_object():
    with pytest.raises(ValueError, match="extra_body must be an object"):
        model_parameters({"extra_body": [1]})


async def test_a_cut_character_in_the_prompt_is_refused_before_sending():
    dify = FakeDify()
    with pytest.raises(ValueError, match="surrogate"):
        await play(dify.gateway_model(), [ModelRequest([UserPromptPart("\ud800")])])
    assert dify.requests == []
