"""Each endpoint over a real socket: keys, bodies, envelopes, scripted results."""

import json

import pytest
from tests.unit.testing.asking import (
    BODIES,
    CORE_TOOL,
    DAEMON_LLM,
    FILE,
    KNOWLEDGE,
    LLM,
    TOOL,
    ask,
    asking,
    assistant,
    contents,
    core_tool_body,
    daemon_llm_body,
    deltas,
    envelopes,
    file_body,
    knowledge_body,
    llm,
    llm_body,
    tool_body,
    user,
)

DIFY = [LLM, CORE_TOOL, KNOWLEDGE, FILE]
DAEMON = [TOOL, DAEMON_LLM]
STREAMS = [LLM, TOOL, DAEMON_LLM]
KINDS = {LLM: "llm", CORE_TOOL: "core_tools", KNOWLEDGE: "knowledge", FILE: "files", TOOL: "tools", DAEMON_LLM: "llm"}


async def test_without_a_script_everything_succeeds() -> None:
    async with asking() as (_, client):
        text = await ask(client)
        assert contents(text) == ["tok "] * 20
        assert deltas(text)[-1]["usage"]["total_tokens"] == 15
        assert json.loads(await ask(client, CORE_TOOL)) == {"messages": [], "observation": "ok", "metadata": {}}
        (result,) = json.loads(await ask(client, KNOWLEDGE))["results"]
        assert result["metadata"]["dataset_id"] == "d1"
        assert "reset password" in result["content"]
        resolved = json.loads(await ask(client, FILE))
        assert set(resolved["data"]) == {"filename", "mime_type", "size", "download_url"}
        assert resolved["error"] == ""
        (message,) = envelopes(await ask(client, TOOL))
        assert message == {
            "code": 0,
            "message": "success",
            "data": {"type": "text", "message": {"text": "ok"}, "meta": None},
        }
        assert envelopes(await ask(client, DAEMON_LLM))[0]["message"] == "success"
        assert (await client.get("/health/check")).status_code == 200


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_are_event_streams_with_a_blank_line_behind_each_envelope(path: str) -> None:
    async with asking() as (_, client):
        response = await client.post(path, json=BODIES[path]())
        assert response.headers["content-type"] == "text/event-stream"
        assert all(line.startswith("data: {") for line in response.text.strip().split("\n\n"))


async def test_a_gateway_chunk_has_exactly_these_members() -> None:
    async with asking(llm({"text": "Hel", "usage": None, "finish_reason": None})) as (_, client):
        (envelope,) = envelopes(await ask(client))
    message = {"role": "assistant", "content": "Hel", "name": None, "tool_calls": []}
    assert envelope == {
        "code": 0,
        "message": "",
        "data": {
            "model": "gpt-x",
            "prompt_messages": [],
            "system_fingerprint": None,
            "delta": {"index": 0, "message": message, "usage": None, "finish_reason": None},
        },
    }


@pytest.mark.parametrize("path", DIFY)
@pytest.mark.parametrize("key", [None, "wrong", "inn\u00e9r"])
async def test_dify_answers_a_wrong_key_with_404(path: str, key: str | None) -> None:
    async with asking() as (_, client):
        headers = {} if key is None else {"X-Inner-Api-Key": key.encode()}
        del client.headers["X-Inner-Api-Key"]
        response = await client.post(path, json=BODIES[path](), headers=headers)
        assert (response.status_code, response.json()["code"], response.json()["status"]) == (404, "not_found", 404)


@pytest.mark.parametrize("path", DAEMON)
async def test_the_daemon_answers_a_wrong_key_with_401_and_no_plugin_with_400(path: str) -> None:
    async with asking() as (_, client):
        wrong = await client.post(path, json=BODIES[path](), headers={"X-Api-Key": "wrong"})
        del client.headers["X-Plugin-ID"]
        unnamed = await client.post(path, json=BODIES[path]())
    for response, status, error_type in (
        (wrong, 401, "PluginDaemonUnauthorizedError"),
        (unnamed, 400, "PluginDaemonBadRequestError"),
    ):
        assert response.status_code == status
        assert (response.json()["code"], response.json()["data"]) == (-status, None)
        assert json.loads(response.json()["message"])["error_type"] == error_type


@pytest.mark.parametrize("path", DIFY)
async def test_dify_rejects_unknown_members_and_the_daemon_does_not(path: str) -> None:
    async with asking() as (fakes, client):
        outer = await client.post(path, json={**BODIES[path](), "extra": "secret value"})
        assert (outer.status_code, outer.json()["code"]) == (400, "invalid_request")
        assert "extra" in outer.json()["message"]
        assert "secret value" not in outer.text
        member = "file" if path == FILE else "caller"
        if path != FILE:
            body = BODIES[path]()
            inner = await client.post(path, json={**body, member: {**body[member], "extra": 1}})
            assert inner.status_code == 400
        assert fakes.requests.total == 1 + (path != FILE)
        for daemon_path in DAEMON:
            await ask(client, daemon_path, {**BODIES[daemon_path](), "extra": 1})


@pytest.mark.parametrize(
    ("path", "member", "broken"),
    [
        (LLM, "caller", {"call_index": 0}),
        (LLM, "caller", {"user_id": None}),
        (LLM, "caller", {"user_from": "robot"}),
        (LLM, "caller", {"app_id": None}),
        (LLM, "target", {"prompt_messages": None}),
        (CORE_TOOL, "caller", {"user_from": None}),
        (CORE_TOOL, "tool", {"provider_type": "other"}),
        (KNOWLEDGE, "caller", {"app_id": ""}),
        (KNOWLEDGE, "retrieval", {"mode": "none"}),
        (FILE, "file", {"transfer_method": "post"}),
        (TOOL, "data", {"tool": None}),
        (DAEMON_LLM, "data", {"model_type": "tts"}),
        (DAEMON_LLM, "data", {"prompt_messages": [user(None)]}),
    ],
)
async def test_bodies_that_do_not_fit(path: str, member: str, broken: dict) -> None:
    body = BODIES[path]()
    async with asking() as (_, client):
        response = await client.post(path, json={**body, member: {**body[member], **broken}})
        assert response.status_code == 400
        assert next(iter(broken)) in response.json()["message"]
        assert (await client.post(path, content=b"{")).status_code == 400


async def test_other_paths_and_methods() -> None:
    async with asking() as (_, client):
        assert (await client.post("/inner/api/other")).json()["code"] == "not_found"
        assert (await client.get(LLM)).status_code == 405
        assert (await client.post("/plugin/t/dispatch/other/invoke")).status_code == 404
        assert (await client.post("/plugin/a%2Fb/dispatch/tool/invoke", json=tool_body())).status_code == 200
        assert (await client.post("/__fake/other")).status_code == 404


async def test_a_tool_round_by_call_index_and_by_history() -> None:
    script = llm({"tool_calls": [{"name": "look", "arguments": {"q": "x"}}]}, {"text": "done"})
    history = [user("q"), assistant(), {"role": "tool", "content": "r", "tool_call_id": "call-1-1"}]
    async with asking(script) as (_, client):
        (delta,) = deltas(await ask(client))
        assert delta["message"]["content"] == ""
        assert delta["finish_reason"] == "tool_calls"
        (call,) = delta["message"]["tool_calls"]
        assert call == {"id": "call-1-1", "type": "function", "function": {"name": "look", "arguments": '{"q":"x"}'}}
        assert contents(await ask(client, LLM, llm_body(call_index=2))) == ["done"]
        assert contents(await ask(client, DAEMON_LLM, daemon_llm_body(*history))) == ["done"]


async def test_echoes() -> None:
    async with asking(llm({"echo_text": True, "echo_messages": True})) as (_, client):
        (envelope,) = envelopes(await ask(client, LLM, llm_body(user("who am I?"))))
        assert envelope["data"]["prompt_messages"] == [user("who am I?")]
        assert envelope["data"]["delta"]["message"]["content"] == "who am I?"


@pytest.mark.parametrize("path", STREAMS)
async def test_errors_inside_a_stream(path: str) -> None:
    error = {"type": "InvokeRateLimitError", "message": "slow down", "nested": 1}
    step = {"error": error} if path == TOOL else {"chunks": 2, "error": error}
    async with asking({KINDS[path]: [{"steps": [step]}]}) as (_, client):
        *told, last = envelopes(await ask(client, path))
        assert len(told) == (0 if path == TOOL else 2)
        assert (last["code"], last["data"]) == (-500, None)
        wrapped = json.loads(last["message"])
        assert wrapped["error_type"] == "PluginInvokeError"
        assert json.loads(wrapped["message"])["message"] == "slow down"


@pytest.mark.parametrize("path", DIFY)
async def test_http_errors_of_dify(path: str) -> None:
    error = {"status": 429, "code": "agent_llm_quota_exceeded", "message": "quota"}
    steps = [
        {"http_error": error},
        {"http_error": {"status": 502, "html": "<html>bad gateway</html>"}},
        {"http_error": {"status": 500, "body": ["other"]}},
    ]
    rule = {"steps": steps} | ({"count_by": "agent_run_id"} if path == LLM else {})
    async with asking({KINDS[path]: [rule]}) as (_, client):
        quota, gateway, other = [await client.post(path, json=BODIES[path]()) for _ in steps]
        assert (quota.status_code, quota.json()) == (429, {**error})
        assert (gateway.status_code, gateway.text) == (502, "<html>bad gateway</html>")
        assert gateway.headers["content-type"].startswith("text/html")
        assert (other.status_code, other.json()) == (500, ["other"])


async def test_http_errors_of_the_daemon() -> None:
    error = {"status": 404, "code": "PluginNotFoundError", "message": "not installed"}
    async with asking({"tools": [{"steps": [{"http_error": error}]}]}) as (_, client):
        response = await client.post(TOOL, json=tool_body())
        assert (response.status_code, response.json()["code"]) == (404, -404)
        told = json.loads(response.json()["message"])
        assert told == {"error_type": "PluginNotFoundError", "message": "not installed", "args": {}}


async def test_canned_results_by_name() -> None:
    script = {
        "tools": [
            {
                "tool": "a",
                "steps": [{"text": "A", "json_object": {"n": 1}, "messages": [{"type": "odd", "message": 1}]}],
            }
        ],
        "core_tools": [{"tool": "a", "steps": [{"observation": "A", "metadata": {"m": 1}}, {"body": {"wrong": 1}}]}],
        "knowledge": [{"dataset": "d2", "steps": [{"results": [], "usage": {"total_tokens": 1}}]}],
        "files": [{"reference": "gone", "steps": [{"error": "no such file"}]}],
    }
    async with asking(script) as (_, client):
        types = [each["data"]["type"] for each in envelopes(await ask(client, TOOL, tool_body("a")))]
        assert types == ["text", "json", "odd"]
        assert len(envelopes(await ask(client, TOOL, tool_body("b")))) == 1
        assert json.loads(await ask(client, CORE_TOOL, core_tool_body("a")))["metadata"] == {"m": 1}
        assert json.loads(await ask(client, CORE_TOOL, core_tool_body("a"))) == {"wrong": 1}
        assert json.loads(await ask(client, KNOWLEDGE, knowledge_body("d1", "d2"))) == {
            "results": [],
            "usage": {"total_tokens": 1},
        }
        assert json.loads(await ask(client, FILE, file_body("gone"))) == {"data": {}, "error": "no such file"}
