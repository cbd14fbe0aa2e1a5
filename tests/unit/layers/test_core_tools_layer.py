"""`dify.core.tools`: Dify API runs the tool, and nothing that goes wrong ends the run (integrations 5)."""

import httpx2
import pytest
import trio
from structlog.testing import capture_logs
from tests.unit.layers.outbound_fakes import API_KEY, SocketServer, entered, reply, services

from dify_agent.backends.transport import OutboundOptions, open_outbound
from dify_agent.layers import inner_api
from dify_agent.layers.dify_core_tools.layer import MAX_OBSERVATION_CHARS, DifyCoreToolsLayer, provider

TOOL = {"provider_type": "builtin", "provider_id": "time", "tool_name": "current_time"}
DONE = {"messages": [{"type": "text"}], "observation": "noon", "metadata": {"a": 1}}

UNAVAILABLE = "Tool is temporarily unavailable. Please continue without it if possible."
NO_CONTEXT = "Tool is unavailable because required execution context is missing."
CREDENTIALS = "Please check your tool provider credentials"


async def call(answer, tool=None, context=None, **arguments):
    _, dify_api, outbound = services(api=[answer])
    async with entered(provider(outbound), {"tools": [{**TOOL, **(tool or {})}]}, context=context) as run:
        [made] = run.tools
        return await made.function(**arguments), dify_api


async def test_golden_request():
    more = {
        "conversation_id": "c",
        "workflow_id": "w",
        "agent_id": "ag",
        "agent_config_version_id": "v",
        "trace_id": "x",
    }
    tool = {"credential_id": "cr", "runtime_parameters": {"zone": "UTC"}}
    observation, dify_api = await call(reply(DONE), tool, more, format="%H", self=None)
    assert observation == "noon"
    [request] = dify_api.requests
    assert (request.method, str(request.url)) == ("POST", "http://api.test/inner/api/agent/tools/invoke")
    assert (request.headers["X-Inner-Api-Key"], request.headers["Content-Type"]) == (API_KEY, "application/json")
    assert dify_api.bodies == [
        {
            "caller": {
                "tenant_id": "t-1", "user_id": "u-1", "user_from": "account", "app_id": "app-1",
                "invoke_from": "web-app", "conversation_id": "c", "workflow_id": "w", "workflow_run_id": None,
                "node_id": None, "node_execution_id": None, "agent_id": "ag", "agent_config_version_id": "v",
            },
            "tool": {
                "provider_type": "builtin", "provider_id": "time", "tool_name": "current_time", "credential_id": "cr",
                "tool_parameters": {"format": "%H", "self": None}, "runtime_parameters": {"zone": "UTC"},
            },
        }
    ]  # fmt: skip


async def test_arguments_go_out_unchanged():
    declared = [{"name": "n", "type": "number", "form": "llm", "required": True, "default": 1}]
    _, dify_api = await call(reply(DONE), {"parameters": declared}, n="7")
    assert dify_api.bodies[0]["tool"]["tool_parameters"] == {"n": "7"}
    _, dify_api = await call(reply(DONE), {"parameters": declared})
    assert dify_api.bodies[0]["tool"]["tool_parameters"] == {}


@pytest.mark.parametrize("missing", ["user_id", "user_from", "app_id"])
async def test_without_its_context_nothing_is_asked(missing):
    observation, dify_api = await call(reply(DONE), context={missing: None})
    assert (observation, dify_api.requests) == (NO_CONTEXT, [])


def refusal(status, code, message="why"):
    return reply({"code": code, "message": message, "status": status}, status)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (reply({"observation": ""}), ""),
        (refusal(404, "app_not_found"), "Tool is unavailable because its app does not exist any more."),
        (refusal(403, "app_tenant_mismatch"), "Tool is unavailable because the app of this run is not the caller's."),
        (refusal(404, "agent_tool_declaration_not_found"), "there is not a tool named seen"),
        (refusal(422, "agent_tool_credential_invalid"), CREDENTIALS),
        (
            refusal(422, "tool_parameters_invalid", "{bad}"),
            "tool parameters validation error: {bad}, please check your tool parameters",
        ),
        (refusal(422, "agent_tool_invoke_failed"), "tool invoke error: why"),
        (refusal(400, "invalid_request"), "tool invoke error: why"),
        (refusal(404, "not_found"), "tool invoke error: why"),
        (refusal(418, "new_code"), "tool invoke error: why"),
        (refusal(429, "app_not_found"), UNAVAILABLE),
        (refusal(500, "agent_tool_invoke_unexpected_error"), UNAVAILABLE),
        (reply("<html>", 503), UNAVAILABLE),
        (reply("x" * 5000, 404), "tool invoke error: " + "x" * 2000),
        (reply("", 403), "tool invoke error: HTTP 403 without a text"),
        (reply([1], 400), "tool invoke error: [1]"),
        (httpx2.ConnectError("refused"), UNAVAILABLE),
        (httpx2.ReadTimeout(""), UNAVAILABLE),
        (httpx2.PoolTimeout(""), UNAVAILABLE),
        (httpx2.RemoteProtocolError("peer closed"), UNAVAILABLE),
        (reply("nonsense"), "tool invoke error: Dify API's reply does not fit its contract (body: Invalid JSON"),
        (reply({}), "tool invoke error: Dify API's reply does not fit its contract (observation: Field required)"),
        (reply({**DONE, "more": 1}), "tool invoke error: Dify API's reply does not fit its contract (more: Extra"),
        (reply({**DONE, "observation": 3}), "tool invoke error: Dify API's reply does not fit its contract"),
        (reply("moved", 302), "tool invoke error: moved"),
        (httpx2.UnsupportedProtocol("no scheme."), "tool invoke error: Dify API cannot be asked: no scheme."),
    ],
)
async def test_every_ending_is_an_observation(answer, text):
    observation, dify_api = await call(answer, {"name": "seen"})
    assert observation.startswith(text)
    assert bool(observation) == bool(text)
    assert len(dify_api.requests) == 1, "no call is repeated"


async def test_operators_read_of_a_failure_in_the_log():
    with capture_logs() as logs:
        await call(refusal(404, "not_found", "wrong key"))
    [line] = logs
    assert line["log_level"] == "warning"
    assert [line[key] for key in ("tool", "tenant_id", "app_id", "status", "code", "error", "setting")] == [
        "current_time", "t-1", "app-1", 404, "not_found", "wrong key",
        "DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "setting"),
    [
        (reply("<html>", 404), "DIFY_AGENT_INNER_API_URL"),
        (reply("<html>"), "DIFY_AGENT_INNER_API_URL"),
        (httpx2.UnsupportedProtocol("no scheme."), "DIFY_AGENT_INNER_API_URL"),
        (httpx2.ReadTimeout(""), "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"),
        (httpx2.ReadError("reset"), None),
        (reply({}), None),
        (refusal(404, "app_not_found"), None),
    ],
)
async def test_the_log_names_the_setting_that_could_mend_it(answer, setting):
    with capture_logs() as logs:
        await call(answer)
    assert [(line["log_level"], line["setting"]) for line in logs] == [("warning", setting)]


async def test_replies_without_an_end_are_given_up(monkeypatch):
    monkeypatch.setattr(inner_api, "MAX_REPLY_BYTES", 100)
    observation, _ = await call(reply({"observation": "x" * 200}))
    assert observation == "tool invoke error: Dify API's reply is larger than 100 bytes"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"observation":"x","messages":[' + b",".join([b"{}"] * 2_000_000) + b"]}", "more than 100000 values"),
        (b'{"observation":"x","messages":[' + b",".join([b"1"] * 90_000) + b"]}", "(90000 problems)"),
        (b'{"observation":"' + b"x" * (MAX_OBSERVATION_CHARS + 1) + b'"}', "at most 4194304 characters"),
    ],
)
async def test_replies_that_would_hold_up_other_runs_are_given_up(body, text):
    observation, _ = await call(reply(body))
    assert observation.startswith("tool invoke error: Dify API's reply ")
    assert text in observation


async def test_no_secret_comes_back():
    tool = {
        "runtime_parameters": {"token": "hidden-token", "zone": "Europe"},
        "parameters": [{"name": name, "type": kind, "form": "form"} for name, kind in (("token", "secret-input"),
                                                                                       ("zone", "string"))],
    }  # fmt: skip

    async def echo(request):
        head = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
        text = head + request.content.decode()
        return answers.pop(0)(text)

    answers = [
        lambda text: reply(text, 400),
        lambda text: refusal(400, API_KEY, text),
        lambda text: reply({"observation": "x", text: 1}),
    ]
    with capture_logs() as logs:
        for _ in range(3):
            observation, _ = await call(echo, tool)
            assert "***" in observation
            assert API_KEY not in observation
            assert "hidden-token" not in observation
            assert "Europe" in observation
    assert API_KEY not in str(logs)
    assert "hidden-token" not in str(logs)
    observation, _ = await call(reply({"observation": f"the key is {API_KEY}, the token hidden-token"}), tool)
    assert observation == "the key is ***, the token hidden-token"


async def test_arguments_that_json_cannot_hold():
    """The model reads so and can mend it; to an operator it says nothing."""
    with capture_logs() as logs:
        observation, dify_api = await call(reply(DONE), n=float("inf"))
    assert observation.startswith("tool parameters validation error: ")
    assert (dify_api.requests, logs) == ([], [])


async def test_definitions_and_borrowed_clients():
    _, _, outbound = services()
    schema = {"type": "object", "properties": {"q": {"enum": [1]}}}
    config = {"tools": [{**TOOL, "name": "n", "description": "d", "parameters_json_schema": schema}, TOOL]}
    async with entered(provider(outbound), config) as run:
        first, second = (tool.tool_def for tool in run.tools)
        assert (first.name, first.description, first.parameters_json_schema) == ("n", "d", schema)
        assert (second.name, second.description, second.strict, second.sequential) == (
            "current_time", "current_time", False, False,
        )  # fmt: skip
        await outbound.dify_api.aclose()
        with pytest.raises(RuntimeError, match="DifyCoreToolsLayer requires an open shared HTTP client"):
            run.tools
    with pytest.raises(TypeError, match="cannot be created from config"):
        DifyCoreToolsLayer.from_config(None)


@pytest.mark.parametrize("half", [b"", b'{"observation": "no'])
async def test_a_cancelled_call_closes_its_request_and_leaves_the_pool_usable(half):
    server = SocketServer(half, reply(DONE).content)
    options = OutboundOptions(max_connections=1, pool_timeout=5)
    with trio.fail_after(20):
        async with (
            server.serving() as url,
            open_outbound(
                daemon_url=url, daemon_api_key="k", dify_api_url=url, dify_api_key="k", options=options
            ) as outbound,
            entered(provider(outbound), {"tools": [TOOL]}) as run,
        ):
            [made] = run.tools
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.function)
                await server.asked.wait()
                nursery.cancel_scope.cancel(reason="the run is cancelled")
            await server.dropped.wait()
            assert await made.function() == "noon"
