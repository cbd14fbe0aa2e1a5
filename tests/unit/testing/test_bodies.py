"""Which members a prompt, a retrieval and a file need: what the real services refuse is seen before one is asked."""

import json

import pytest
from tests.unit.testing.asking import (
    BODIES,
    DAEMON_LLM,
    FILE,
    KNOWLEDGE,
    LLM,
    ask,
    asking,
    assistant,
    daemon_llm_body,
    envelopes,
    knowledge_body,
    llm,
    llm_body,
    user,
)

SECRET = "secret-of-a-caller"
MODELS = {LLM: (llm_body, "target"), DAEMON_LLM: (daemon_llm_body, "data")}
GOOGLE = {"provider": "langgenius/google/google", "name": "gemini", "mode": "chat"}
IMAGE = {
    "type": "image",
    "format": "png",
    "base64_data": "AAAA",
    "url": "",
    "mime_type": "image/png",
    "filename": "",
    "detail": "high",
}
DOCUMENT = {
    "type": "document",
    "format": "pdf",
    "base64_data": "",
    "url": "https://files.example/a.pdf",
    "mime_type": "application/pdf",
    "filename": "a.pdf",
}
TEXT = {"type": "text", "data": "see"}
CALL = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1'}}
TOOL = {"role": "tool", "content": "seen", "name": "look", "tool_call_id": "c-1"}
DECLARED = {"name": "look", "description": "", "parameters": {"type": "object"}}

PROMPT = [
    {"role": "system", "content": "Be brief.", "name": None},
    user([TEXT, IMAGE, DOCUMENT, {**DOCUMENT, "type": "audio"}, {**DOCUMENT, "type": "video"}]),
    {**assistant(), "tool_calls": [CALL]},
    TOOL,
    {**TOOL, "content": [TEXT, TEXT]},
    {**assistant("<think>\nplan\n</think>"), "name": None},
]


def without(value: dict, *names: str) -> dict:
    return {name: member for name, member in value.items() if name not in names}


async def refused(client, path: str, body: dict, status: int = 400) -> str:
    """The text of a refusal in the service's own form."""
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    assert SECRET not in response.text
    told = response.json()
    if path == DAEMON_LLM:
        assert (told["code"], told["data"]) == (-status, None)
        told = json.loads(told["message"])
        assert told["error_type"] == "PluginDaemonBadRequestError"
    else:
        code = "retrieval_config_invalid" if status == 422 else "invalid_request"
        assert (told["code"], told["status"]) == (code, status)
    return told["message"]


@pytest.mark.parametrize("path", MODELS)
async def test_a_prompt_of_all_parts_fits_and_is_repeated_as_it_came(path: str) -> None:
    make, member = MODELS[path]
    body = make(*PROMPT)
    body[member]["tools"] = [DECLARED]
    async with asking(llm({"echo_messages": True, "text": "x"})) as (_, client):
        (envelope,) = envelopes(await ask(client, path, body))
    assert envelope["data"]["prompt_messages"] == PROMPT


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({**user("x"), "role": SECRET}, "role"),
        (without(user("x"), "role"), "role"),
        (without(user("x"), "content"), "user.content"),
        (user(5), "content"),
        ({**user("x"), "name": 5}, "user.name"),
        (without(TOOL, "tool_call_id"), "tool.tool_call_id"),
        ({**TOOL, "tool_call_id": None}, "tool.tool_call_id"),
        ({**assistant(), "tool_calls": None}, "assistant.tool_calls"),
        ({**assistant(), "tool_calls": [without(CALL, "id")]}, "tool_calls.0.id"),
        ({**assistant(), "tool_calls": [without(CALL, "type")]}, "tool_calls.0.type"),
        ({**assistant(), "tool_calls": [{**CALL, "type": "tool"}]}, "tool_calls.0.type"),
        ({**assistant(), "tool_calls": [{**CALL, "function": {"name": "f"}}]}, "tool_calls.0.function.arguments"),
        (
            {**assistant(), "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]},
            "tool_calls.0.function.arguments",
        ),
        (user([{**TEXT, "type": SECRET}]), "content.parts.0"),
        (user([without(TEXT, "type")]), "content.parts.0"),
        (user([without(TEXT, "data")]), "text.data"),
        (user([without(IMAGE, "format")]), "image.format"),
        (user([without(IMAGE, "mime_type")]), "image.mime_type"),
        (user([{**IMAGE, "url": None}]), "image.url"),
        (user([{**IMAGE, "detail": SECRET}]), "image.detail"),
        (user([without(DOCUMENT, "format")]), "document.format"),
        (user([{**DOCUMENT, "type": "audio", "mime_type": None}]), "audio.mime_type"),
        (user(["see"]), "content.parts.0"),
    ],
)
async def test_messages_that_do_not_fit(path: str, message: dict, problem: str) -> None:
    make, member = MODELS[path]
    async with asking() as (_, client):
        text = await refused(client, path, make(user("hello"), message))
    assert text.startswith(f"{member}.prompt_messages.1")
    assert problem in text
    assert text.count(": ") == 1, "one problem"


async def test_an_image_without_members_does_not_fit() -> None:
    async with asking() as (_, client):
        text = await refused(client, LLM, llm_body(user([{"type": "image"}])))
    assert [item.partition(":")[0].rpartition(".")[2] for item in text.split("; ")] == ["format", "mime_type"]


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"nonsense": 1}, "tools.0.name"),
        (without(DECLARED, "description"), "tools.0.description"),
        (without(DECLARED, "parameters"), "tools.0.parameters"),
        ({**DECLARED, "parameters": "{}"}, "tools.0.parameters"),
    ],
)
async def test_tool_declarations_that_do_not_fit(path: str, tool: dict, problem: str) -> None:
    make, member = MODELS[path]
    body = make()
    body[member]["tools"] = [tool]
    async with asking() as (_, client):
        assert problem in await refused(client, path, body)


async def test_what_else_is_in_a_prompt_is_refused_by_dify_and_ignored_by_the_daemon() -> None:
    def extended(make, member: str) -> list[dict]:
        parts = [{**TEXT, "extra": 1}, {**IMAGE, "extra": 1}]
        bodies = [make({**user("x"), "extra": 1}), *(make(user([part])) for part in parts), make()]
        bodies[-1][member]["tools"] = [{**DECLARED, "extra": 1}]
        return bodies

    async with asking() as (_, client):
        for body in extended(*MODELS[LLM]):
            assert "extra: Extra inputs" in await refused(client, LLM, body)
        for body in extended(*MODELS[DAEMON_LLM]):
            await ask(client, DAEMON_LLM, body)


async def test_null_is_a_content_for_dify_and_none_for_the_daemon() -> None:
    async with asking() as (_, client):
        await ask(client, LLM, llm_body(user(None)))
        assert "must have a content" in await refused(client, DAEMON_LLM, daemon_llm_body(user(None)))


async def test_tool_choice_is_known_to_the_daemon_only() -> None:
    def with_choice(path: str, choice: object) -> dict:
        make, member = MODELS[path]
        body = make()
        body[member]["tool_choice"] = choice
        return body

    async with asking() as (_, client):
        for mode in ("auto", "none", "required", "tool"):
            await ask(client, DAEMON_LLM, with_choice(DAEMON_LLM, {"mode": mode, "name": "look"}))
        for choice in (None, {"mode": "auto"}):
            await ask(client, DAEMON_LLM, with_choice(DAEMON_LLM, choice))
        for choice in ({"mode": SECRET}, {"name": "look"}, "auto", {"mode": "tool", "name": 5}):
            assert "tool_choice" in await refused(client, DAEMON_LLM, with_choice(DAEMON_LLM, choice))
        assert "tool_choice" in await refused(client, LLM, with_choice(LLM, {"mode": "auto"}))


SINGLE = {"mode": "single", "model": GOOGLE}
MULTIPLE = {"mode": "multiple", "top_k": 1}
MANUAL = {"mode": "manual", "conditions": {"conditions": [{"name": "year", "comparison_operator": "≥", "value": 2020}]}}


def retrieval(search: dict | None = None, filtering: dict | None = None) -> dict:
    changed = {} if search is None else {"retrieval": search}
    return {**knowledge_body("d1", "d2"), **changed, **({} if filtering is None else {"metadata_filtering": filtering})}


@pytest.mark.parametrize(
    ("search", "filtering"),
    [
        (
            {"mode": "single", "model": GOOGLE},
            {"mode": "automatic", "model_config": {**GOOGLE, "completion_params": {}}},
        ),
        ({**MULTIPLE, "reranking_model": {"provider": "p", "model": "m"}, "weights": {"keyword_setting": {}}}, MANUAL),
        (MULTIPLE, {"mode": "manual", "conditions": {**MANUAL["conditions"], "logical_operator": "or"}}),
    ],
)
async def test_retrievals_that_fit(search: dict, filtering: dict) -> None:
    async with asking() as (_, client):
        answer = json.loads(await ask(client, KNOWLEDGE, retrieval(search, filtering)))
    assert len(answer["results"]) == 2


@pytest.mark.parametrize(
    ("search", "filtering", "missing"),
    [
        (without(MULTIPLE, "top_k"), None, "retrieval.top_k"),
        ({**MULTIPLE, "top_k": None}, None, "retrieval.top_k"),
        ({"mode": "single", "top_k": 4}, None, "retrieval.model"),
        (None, {"mode": "automatic"}, "metadata_filtering.model_config"),
        (None, {"mode": "manual"}, "metadata_filtering.conditions"),
        (None, {"mode": "manual", "conditions": {"conditions": []}}, "metadata_filtering.conditions"),
    ],
)
async def test_what_the_mode_of_a_retrieval_needs(search: dict | None, filtering: dict | None, missing: str) -> None:
    async with asking() as (_, client):
        text = await refused(client, KNOWLEDGE, retrieval(search, filtering), 422)
    assert text == f"the mode needs {missing}"


@pytest.mark.parametrize(
    ("search", "filtering", "problem"),
    [
        ({**MULTIPLE, "top_k": 0}, None, "retrieval.top_k"),
        ({**MULTIPLE, "reranking_model": {"provider": "p"}}, None, "reranking_model.model"),
        ({"mode": "single", "model": without(GOOGLE, "name")}, None, "retrieval.model.name"),
        ({"mode": "single", "model": {**GOOGLE, "extra": 1}}, None, "retrieval.model.extra"),
        (None, {"mode": "automatic", "model_config": {"provider": "p"}}, "model_config.name"),
        (None, {"mode": "manual", "conditions": {"conditions": [{"name": "n"}]}}, "conditions.0.comparison_operator"),
        (
            None,
            {"mode": "manual", "conditions": {"conditions": [{"name": "n", "comparison_operator": SECRET}]}},
            "conditions.0.comparison_operator",
        ),
        (
            None,
            {"mode": "manual", "conditions": {**MANUAL["conditions"], "logical_operator": "xor"}},
            "logical_operator",
        ),
    ],
)
async def test_parts_of_a_retrieval_that_do_not_fit(search: dict | None, filtering: dict | None, problem: str) -> None:
    async with asking() as (_, client):
        assert problem in await refused(client, KNOWLEDGE, retrieval(search, filtering))


def file_request(**file: str | None) -> dict:
    return {**BODIES[FILE](), "file": file}


@pytest.mark.parametrize("method", ["local_file", "tool_file", "datasource_file"])
async def test_a_file_by_reference(method: str) -> None:
    async with asking() as (_, client):
        await ask(client, FILE, file_request(transfer_method=method, reference="r", url=None))
        for file in (
            {},
            {"reference": None},
            {"reference": ""},
            {"url": "u"},
            {"reference": "r", "url": "https://x/a"},
        ):
            text = await refused(client, FILE, file_request(transfer_method=method, **file))
            assert text.startswith("file")


async def test_a_file_by_url() -> None:
    async with asking() as (_, client):
        await ask(client, FILE, file_request(transfer_method="remote_url", url="https://x/a", reference=None))
        for file in ({}, {"url": None}, {"url": ""}, {"reference": "r"}, {"reference": "r", "url": "https://x/a"}):
            text = await refused(client, FILE, file_request(transfer_method="remote_url", **file))
            assert text.startswith("file")
