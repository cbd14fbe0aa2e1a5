"""`dify.plugin.tools` at a plugin daemon: requests, answers, errors (integrations 4.3, 4.4)."""

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs
from tests.unit.layers.outbound_fakes import DAEMON_KEY, SocketServer, entered, items, reply, said, services

from dify_agent.actors.failures import describe_failure
from dify_agent.backends.transport import OutboundOptions, open_outbound
from dify_agent.layers.dify_plugin import tools_client
from dify_agent.layers.dify_plugin.tools_client import PluginDaemonUnavailableError
from dify_agent.layers.dify_plugin.tools_layer import DifyPluginToolsLayer, provider
from dify_agent.loop.toolbox import build_toolbox

TOOL = {
    "plugin_id": "langgenius/search",
    "provider": "search",
    "tool_name": "web_search",
    "credential_type": "api-key",
    "credentials": {"api_key": "k", "n": 1, "flag": None},
}
QUERY = {"name": "query", "type": "string", "form": "llm", "required": True}


async def call(outbound, tool=None, context=None, **arguments):
    async with entered(provider(outbound), {"tools": [{**TOOL, **(tool or {})}]}, context=context) as run:
        [made] = run.tools
        return await made.function(**arguments)


async def test_golden_request():
    daemon, _, outbound = services(daemon=[items(said("found"))])
    declared = [QUERY, {"name": "count", "type": "number", "form": "form", "default": "5"}]
    tool = {"parameters": declared, "runtime_parameters": {"region": "de"}}
    assert await call(outbound, tool, query="dify", stray=[1]) == "found"
    [request] = daemon.requests
    assert (request.method, str(request.url)) == ("POST", "http://daemon.test/plugin/t-1/dispatch/tool/invoke")
    headers = request.headers
    assert (headers["X-Api-Key"], headers["X-Plugin-ID"], headers["Content-Type"]) == (
        DAEMON_KEY, "langgenius/search", "application/json",
    )  # fmt: skip
    assert json.loads(request.content) == {
        "user_id": "u-1",
        "data": {
            "provider": "search",
            "tool": "web_search",
            "credential_type": "api-key",
            "credentials": {"api_key": "k", "n": 1, "flag": None},
            "tool_parameters": {"query": "dify", "count": 5, "region": "de", "stray": [1]},
        },
    }


async def test_no_user_is_left_out_and_the_tenant_stays_one_segment():
    daemon, _, outbound = services(daemon=[items()])
    assert await call(outbound, context={"tenant_id": "a/../b?c#d%2F ü", "user_id": None}) == ""
    [request] = daemon.requests
    assert request.url.raw_path == b"/plugin/a%2F..%2Fb%3Fc%23d%252F%20%C3%BC/dispatch/tool/invoke"
    assert set(json.loads(request.content)) == {"data"}


@pytest.mark.parametrize(
    ("tool", "context", "text"),
    [
        ({}, {"tenant_id": ".."}, "tenant_id '..' cannot stand"),
        ({}, {"tenant_id": ""}, "tenant_id '' cannot stand"),
        ({"plugin_id": "a\nb"}, {}, "plugin_id must consist of printable ASCII"),
        ({"plugin_id": "ü"}, {}, "plugin_id must consist of printable ASCII"),
        (
            {"parameters": [{"name": "key", "type": "string", "form": "form", "required": True}]},
            {},
            r"^Tool 'web_search' requires non-LLM runtime_parameters for: key\.$",
        ),
    ],
)
async def test_what_cannot_be_called_is_refused_before_the_run(tool, context, text):
    _, _, outbound = services()
    async with entered(provider(outbound), {"tools": [{**TOOL, **tool}]}, context=context) as run:
        with pytest.raises(ValueError, match=text):
            run.tools


async def test_a_closed_client_and_the_plain_constructor_are_refused():
    _, _, outbound = services()
    await outbound.dify_api.aclose()
    async with entered(provider(outbound), {"tools": [TOOL]}) as run:
        with pytest.raises(RuntimeError, match="DifyPluginToolsLayer requires an open shared HTTP client"):
            run.tools
    with pytest.raises(TypeError, match="cannot be created from config"):
        DifyPluginToolsLayer.from_config(None)


async def test_definitions():
    _, _, outbound = services()
    schema = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"], "x": 1}
    tools = [{**TOOL, "name": "n", "description": "d", "parameters_json_schema": schema}, TOOL]
    async with entered(provider(outbound), {"tools": tools}) as run:
        first, second = (tool.tool_def for tool in run.tools)
        toolbox = await build_toolbox(run.tools, None, None)
    assert (first.name, first.description, first.parameters_json_schema) == ("n", "d", schema)
    assert (second.name, second.description) == ("web_search", "web_search")
    assert (first.strict, first.sequential, first.kind) == (False, False, "function")
    # The schema is for the model: what does not fit it is cast or refused by the call itself, not by a retry.
    assert toolbox.entries["n"].validate('{"q": "7"}') == {"q": "7"}
    assert toolbox.entries["n"].validate("") == {}


async def test_arguments_of_any_name():
    daemon, _, outbound = services(daemon=[items(said("ok"))])
    arguments = {"self": 1, "function": 2, "arguments": 3, "with space": 4, "": 5}
    assert await call(outbound, **arguments) == "ok"
    assert daemon.bodies[0]["data"]["tool_parameters"] == arguments


VALIDATION = "tool parameters validation error: {}, please check your tool parameters"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "tool parameter query not found in tool config"),
        ({"query": "q", "n": "many"}, "parameter n: 'many' is not a number"),
        ({"query": "q", "f": "/home/a.txt"}, "parameter f: a path can be a file only in a run with a shell"),
        ({"query": "\ud800"}, "surrogates not allowed"),
        ({"query": "q", "x": float("nan")}, "not JSON compliant"),
    ],
)
async def test_arguments_that_do_not_fit_are_observations(arguments, text):
    daemon, _, outbound = services(daemon=[items()])
    declared = [QUERY, {**QUERY, "name": "n", "type": "number", "required": False}]
    declared.append({**QUERY, "name": "f", "type": "file", "required": False})
    seen = await call(outbound, {"parameters": declared}, **arguments)
    assert seen.startswith("tool parameters validation error: ")
    assert text in seen
    assert daemon.requests == []


def typed(error_type, message="why", **members):
    return json.dumps({"error_type": error_type, "message": message, **members})


def enveloped(error_type, code=-500):
    return {"code": code, "message": typed(error_type, args={}), "data": None}


CREDENTIALS = "Please check your tool provider credentials"
UNKNOWN = "there is not a tool named seen"
FAILED = "tool invoke error: {}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        # HTTP errors, unwrapped
        (reply(typed("PluginDaemonUnauthorizedError"), 401), CREDENTIALS),
        (reply(typed("InvokeAuthorizationError"), 403), CREDENTIALS),
        (reply(typed("CredentialsValidateFailedError"), 400), CREDENTIALS),
        (reply(typed("ToolNotFoundError"), 404), UNKNOWN),
        (reply(typed("ToolProviderNotFoundError"), 400), UNKNOWN),
        (reply(typed("PluginDaemonBadRequestError"), 500), VALIDATION.format("why")),
        (reply(typed("ValidationError"), 500), VALIDATION.format("why")),
        (reply(typed("Whatever"), 400), VALIDATION.format("why")),
        (reply(typed("PluginNotFoundError"), 404), FAILED.format("why")),
        (reply(typed("PluginInvokeError", typed("PluginInvokeError", typed("ToolNotFound"))), 500), UNKNOWN),
        (reply(typed("PluginInvokeError", "plain"), 500), FAILED.format("plain")),
        # HTTP errors in the daemon's own envelope
        (reply(enveloped("PluginDaemonUnauthorizedError", -401), 401), CREDENTIALS),
        (reply(enveloped("PluginNotFoundError", -404), 404), FAILED.format("why")),
        (reply({"code": -400, "message": "missing header", "data": None}, 400), VALIDATION.format("missing header")),
        (reply({"code": -500, "message": typed("PluginInvokeError", typed("XCredentialX"))}, 500), CREDENTIALS),
        # HTTP errors without a type
        (reply("bad gateway", 502), FAILED.format("bad gateway")),
        (reply("", 503), FAILED.format("HTTP 503 without a text")),
        (reply("nope", 400), VALIDATION.format("nope")),
        (reply("moved", 307), FAILED.format("moved")),
        (reply(b"\xff" * 100_000, 500), FAILED.format("\ufffd" * 2000)),
        # inside the stream
        (items(None, code=-500, message=typed("PluginInvokeError", typed("ToolNotFound"))), UNKNOWN),
        (items(None, code=-500, message=typed("InvokeError")), FAILED.format("why")),
        (items(None, code=-400, message=typed("Whatever")), VALIDATION.format("why")),
        (items(None, code=-400, message="plain"), VALIDATION.format("plain")),
        (items(None, code=-500, message=""), FAILED.format("error -500")),
        # malformed
        (items(None), VALIDATION.format("the tool's reply has an item without data")),
        (reply("data: {\n\n"), VALIDATION.format("the tool's reply has a line that is not JSON")),
        (reply('{"data": 1}'), VALIDATION.format("the tool's reply has a line that is no item (code: Field required)")),
    ],
)  # fmt: skip
async def test_errors_are_observations(answer, text):
    _, _, outbound = services(daemon=[answer])
    assert await call(outbound, {"name": "seen"}) == text


DAEMON_URL_SETTING = "DIFY_AGENT_PLUGIN_DAEMON_URL"


@pytest.mark.parametrize(
    ("answer", "setting"),
    [
        (reply(enveloped("PluginDaemonUnauthorizedError", -401), 401), "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"),
        (reply(typed("PluginDaemonUnauthorizedError"), 401), "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"),
        (reply("404 page not found", 404), DAEMON_URL_SETTING),
        (reply({"code": "not_found", "message": "", "status": 404}, 404), DAEMON_URL_SETTING),
        (reply("<html>", 502), DAEMON_URL_SETTING),
        (reply("<html>\n"), DAEMON_URL_SETTING),
        # what the model, the user or the plugin's author can mend is no line
        (reply(typed("InvokeAuthorizationError"), 401), None),
        (reply(typed("PluginNotFoundError"), 404), None),
        (reply({"code": -400, "message": "missing header", "data": None}, 400), None),
        (reply("slow down", 429), None),
        (reply("data: {\n\n"), None),
        (items(None, code=-500, message=typed("InvokeError")), None),
        (items(said("a")), None),
    ],
)  # fmt: skip
async def test_operators_read_in_the_log_of_what_only_they_can_mend(answer, setting):
    _, _, outbound = services(daemon=[answer])
    with capture_logs() as logs:
        await call(outbound)
    names = ("log_level", "event", "tool", "plugin_id", "tenant_id", "app_id", "setting")
    event = "plugin tool could not be run; the run goes on"
    expected = ["warning", event, TOOL["tool_name"], TOOL["plugin_id"], "t-1", "app-1", setting]
    assert [[line[name] for name in names] for line in logs] == ([] if setting is None else [expected])


async def test_unknown_item_types_and_an_error_behind_text_discard_what_came_before():
    unknown = items(said("a"), {"type": "retriever_resources", "message": {}})
    _, _, outbound = services(daemon=[unknown])
    assert (await call(outbound)).startswith("tool parameters validation error: the tool's reply has an item")
    broken = httpx2.Response(200, content=items(said("a")).content + items(None, code=-500, message="x").content)
    _, _, outbound = services(daemon=[broken])
    assert await call(outbound) == "tool invoke error: x"


class Pieces(httpx2.AsyncByteStream):
    """A body in given pieces; an exception is raised where it stands."""

    def __init__(self, *pieces):
        self.pieces, self.closed, self.taken = pieces, False, 0

    async def __aiter__(self):
        for piece in self.pieces:
            await trio.lowlevel.checkpoint()
            if isinstance(piece, Exception):
                raise piece
            if self.closed:
                raise httpx2.StreamClosed
            self.taken += 1
            yield piece

    async def aclose(self):
        self.closed = True


def streaming(stream, status=200):
    async def answer(_request):
        return httpx2.Response(status, stream=stream)

    return answer


def line(text):
    return json.dumps({"code": 0, "data": said(text)}, ensure_ascii=False).encode()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_framing_survives_any_packets(size):
    body = b": ping\n\nevent: message\nid: 7\ndata:" + line("a\u2028\u0085é😀") + b"\r\n\r\n" + line("b") + b"\n"
    body += b"data: " + line("\x0bc")
    stream = Pieces(*(body[at : at + size] for at in range(0, len(body), size)))
    _, _, outbound = services(daemon=[streaming(stream)])
    assert await call(outbound) == "a\u2028\u0085é😀b\x0bc"
    assert stream.closed


async def test_an_item_may_have_no_message():
    data = {"code": 0, "message": None, "data": said("a")}
    _, _, outbound = services(daemon=[reply(json.dumps(data))])
    assert await call(outbound) == "a"
    _, _, outbound = services(daemon=[reply(json.dumps({"code": -500, "message": None, "data": None}))])
    assert await call(outbound) == FAILED.format("error -500")


@pytest.mark.parametrize(
    ("limit", "text"),
    [("MAX_LINE_BYTES", "a line is longer than 500 bytes"), ("MAX_REPLY_BYTES", "larger than 500 bytes")],
)
async def test_replies_without_an_end_are_given_up(monkeypatch, limit, text):
    monkeypatch.setattr(tools_client, limit, 500)
    piece = b"x" * 200 if limit == "MAX_LINE_BYTES" else line("x") + b"\n"
    stream = Pieces(*[piece] * 100)
    _, _, outbound = services(daemon=[streaming(stream)])
    assert text in await call(outbound)
    assert stream.closed
    assert stream.taken < 20, "the rest is not read"


@pytest.mark.parametrize("kind", ["json", "variable", "log"])
async def test_lines_that_would_hold_up_other_runs_are_given_up(kind):
    body = b'{"code":0,"data":{"type":"%s","message":{"json_object":[' % kind.encode() + b"[]," * 2_000_000 + b"0]}}}"
    _, _, outbound = services(daemon=[reply(body)])
    assert "a line of more than 100000 values" in await call(outbound)


async def test_an_error_that_would_hold_up_other_runs_is_its_text():
    body = json.dumps({"error_type": "X", "message": [0] * 1_000_000})
    _, _, outbound = services(daemon=[reply(json.dumps({"code": -500, "message": body}))])
    assert (await call(outbound)).startswith(FAILED.format(body[:100]))


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_no_secret_comes_back(status):
    tool = {
        "credentials": {"api_key": 'tool"secret', "n": 1},
        "runtime_parameters": {"token": "hidden-token", "zone": "Europe"},
        "parameters": [{"name": name, "type": kind, "form": "form"} for name, kind in (("token", "secret-input"),
                                                                                       ("zone", "string"))],
    }  # fmt: skip

    async def echo(request):
        head = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
        text = f"{head}\n{request.content.decode()}"
        return reply({"code": -500, "message": text, "data": None} if status == 200 else text, status)

    _, _, outbound = services(daemon=[echo])
    with capture_logs() as logs:
        observation = await call(outbound, tool)
    assert observation.count("***") == 3
    for secret in (DAEMON_KEY, 'tool"secret', 'tool\\"secret', "hidden-token"):
        assert secret not in observation
        assert secret not in str(logs)
    assert "Europe" in observation


async def test_no_key_is_in_an_observation():
    halves = [said(f"the key is {DAEMON_KEY[:6]}"), said(DAEMON_KEY[6:])]
    _, _, outbound = services(daemon=[items(*halves)])
    assert await call(outbound) == "the key is ***"


@pytest.mark.parametrize(
    ("answer", "reason", "text"),
    [
        (httpx2.ConnectError("Connection refused"), "plugin_daemon_unreachable", "Connection refused"),
        (httpx2.ReadError(""), "plugin_daemon_unreachable", "ReadError"),
        (httpx2.RemoteProtocolError("peer closed connection"), "plugin_daemon_unreachable", "RemoteProtocolError"),
        (httpx2.ConnectTimeout(""), "plugin_daemon_timeout", "DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT"),
        (httpx2.ReadTimeout(""), "plugin_daemon_timeout", "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"),
        (httpx2.WriteTimeout(""), "plugin_daemon_timeout", "DIFY_AGENT_OUTBOUND_HTTP_WRITE_TIMEOUT"),
        (httpx2.PoolTimeout(""), "outbound_pool_exhausted", "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS"),
        (httpx2.UnsupportedProtocol("no scheme."), "plugin_daemon_unreachable", "DIFY_AGENT_PLUGIN_DAEMON_URL"),
    ],
)
async def test_a_daemon_that_cannot_be_reached_fails_the_run(answer, reason, text):
    daemon, _, outbound = services(daemon=[answer])
    with pytest.raises(PluginDaemonUnavailableError, match=text) as failed:
        await call(outbound)
    assert describe_failure(failed.value).reason == reason
    assert len(daemon.requests) == 1, "no call is repeated"


async def test_a_reply_that_breaks_off_fails_the_run():
    stream = Pieces(line("a") + b"\n", httpx2.ReadError(""))
    _, _, outbound = services(daemon=[streaming(stream)])
    with pytest.raises(PluginDaemonUnavailableError, match="broke the connection off"):
        await call(outbound)


async def test_tenants_do_not_mix():
    """Many calls of two runs at once: each gets its own answer and sends its own identity."""

    async def echo(request):
        tenant, body = request.url.path.split("/")[2], json.loads(request.content)
        await trio.sleep(0.001)
        number = body["data"]["tool_parameters"]["n"]
        own = (tenant, body["user_id"], body["data"]["credentials"]["api_key"], request.headers["X-Plugin-ID"])
        return items(said(json.dumps([*own, number])))

    _, _, outbound = services(daemon=[echo])
    layers = provider(outbound)
    seen = {}

    async def run_for(tenant):
        tool = {**TOOL, "plugin_id": f"plugin/{tenant}", "credentials": {"api_key": f"key-{tenant}"}}
        context = {"tenant_id": tenant, "user_id": f"user-{tenant}"}
        async with entered(layers, {"tools": [tool]}, context=context) as run, trio.open_nursery() as nursery:
            [made] = run.tools

            async def one(number):
                seen[tenant, number] = json.loads(await made.function(n=number))

            for number in range(20):
                nursery.start_soon(one, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, "a")
        nursery.start_soon(run_for, "b")
    assert len(seen) == 40
    for (tenant, number), answer in seen.items():
        assert answer == [tenant, f"user-{tenant}", f"key-{tenant}", f"plugin/{tenant}", number]


@pytest.mark.parametrize("half", [b"", b'data: {"code": 0, "da'])
async def test_a_cancelled_call_closes_its_request_and_leaves_the_pool_usable(half):
    server = SocketServer(half, items(said("second")).content)
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
            assert await made.function() == "second"
    assert server.requests == 2
