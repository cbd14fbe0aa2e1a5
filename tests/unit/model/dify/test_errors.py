"""Failures: the tables of integrations 3.8, and what ``run_failed`` says of each."""

import json

import httpx2
import pytest
import trio
from pydantic_ai.exceptions import ModelHTTPError, UserError
from tests.unit.model.dify.fake_dify import CONTEXT, FakeDify, Reply, chunk, envelope, error_line, line, play

from dify_agent.actors.failures import describe_failure

STATUSES = {
    401: ["PluginDaemonUnauthorizedError", "InvokeAuthorizationError"],
    403: ["PluginPermissionDeniedError"],
    400: [
        "PluginDaemonBadRequestError",
        "InvokeBadRequestError",
        "CredentialsValidateFailedError",
        "PluginUniqueIdentifierError",
    ],
    404: ["PluginDaemonNotFoundError", "PluginNotFoundError"],
    429: ["InvokeRateLimitError", "AgentLLMQuotaExceededError", "QuotaExceededError"],
    500: ["PluginDaemonInternalServerError", "PluginDaemonInnerError"],
    503: ["InvokeConnectionError", "InvokeServerUnavailableError"],
}


API_KEY, API_URL = "DIFY_AGENT_INNER_API_KEY", "DIFY_AGENT_INNER_API_URL"


async def failure_of(reply, *, daemon=False):
    """The error, and what the run's terminal event makes of it."""
    dify = FakeDify(reply)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        await play(dify.daemon_model() if daemon else dify.gateway_model())
    failed = describe_failure(caught.value)
    assert failed.error_type is None
    assert "inner-key" not in failed.error
    return caught.value, failed


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status, kinds in STATUSES.items() for kind in kinds])
@pytest.mark.parametrize("nested", [0, 1, 3])
async def test_errors_in_the_stream(status, kind, nested):
    error, failed = await failure_of(Reply([line(chunk("a")), error_line(kind, "the text", nested=nested)]))
    assert isinstance(error, ModelHTTPError)
    assert (error.status_code, error.body) == (status, {"error_type": kind, "message": "the text"})
    assert (failed.error, failed.reason) == ("the text", kind)


@pytest.mark.parametrize("kind", ["EndpointSetupFailedError", "TriggerProviderCredentialValidationError"])
async def test_errors_of_the_users_setup(kind):
    _, failed = await failure_of(Reply([error_line(kind, "set it up")]))
    assert (failed.error, failed.reason) == ("set it up", kind)


async def test_other_errors_in_the_stream():
    _, failed = await failure_of(Reply([error_line("OddError", "huh")]))
    assert (failed.error, failed.reason) == ("OddError: huh", "OddError")
    _, failed = await failure_of(Reply([error_line("PluginInvokeError", "plain text")]))
    assert (failed.error, failed.reason) == ("PluginInvokeError: plain text", "PluginInvokeError")
    _, failed = await failure_of(Reply([line(envelope(None, -500, "no JSON"))]))
    assert (failed.error, failed.reason) == ("no JSON", "upstream_error")
    _, failed = await failure_of(Reply([line(envelope(None, -500))]))
    assert (failed.error, failed.reason) == ("the model's stream reported error -500 without a text", "upstream_error")
    _, failed = await failure_of(Reply([line(envelope(None, -429, "no JSON"))]))
    assert failed.reason == "InvokeRateLimitError"
    _, failed = await failure_of(Reply([error_line("AgentLLMQuotaExceededError", "spent", code=-429)]))
    assert failed.reason == "AgentLLMQuotaExceededError"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_request"),
        (400, "invalid_model_request"),
        (403, "app_tenant_mismatch"),
        (404, "app_not_found"),
        (404, "model_not_found"),
        (500, "internal_server_error"),
    ],
)
async def test_errors_of_the_gateway(status, code):
    body = json.dumps({"code": code, "message": "the text", "status": status}).encode()
    error, failed = await failure_of(Reply([body], status=status))
    assert isinstance(error, ModelHTTPError)
    assert error.status_code == status
    assert failed.error == f"status_code: {status}, model_name: gpt-x, body: the text"
    assert (failed.reason, failed.setting) == ("upstream_http_error", None)


@pytest.mark.parametrize(
    ("status", "body", "shown", "setting", "hint"),
    [
        (404, b'{"code":"not_found","message":"no","status":404}', "no", f"{API_KEY}, {API_URL}",
         f" (check {API_KEY} and {API_URL}, the root without /inner/api)"),
        (404, b"<html>nginx</html>", "<html>nginx</html>", API_URL, f" (check {API_URL}, the root without /inner/api)"),
        (404, b'{"detail":"Not Found"}', '{"detail":"Not Found"}', API_URL,
         f" (check {API_URL}, the root without /inner/api)"),
        (302, b"moved", "moved", API_URL, ""),
        (502, b"<html>bad gateway</html>", "<html>bad gateway</html>", API_URL, ""),
        (500, b'{"message":"oops"}', "oops", None, ""),
    ],
)  # fmt: skip
async def test_what_only_an_operator_can_mend(status, body, shown, setting, hint):
    error, failed = await failure_of(Reply([body], status=status))
    assert isinstance(error, ModelHTTPError)
    assert failed.error == f"status_code: {status}, model_name: gpt-x, body: {shown}{hint}"
    assert (failed.reason, failed.setting) == ("upstream_http_error", setting)


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize("kind", ["page", "json", "named", "429", "stream", "named in the stream"])
async def test_no_secret_comes_back(kind, daemon):
    """Whatever shows the request: keys, and credentials of the way that sends them."""
    request = 'X-Api-Key: daemon-key\nX-Inner-Api-Key: inner-key\n{"k":"model-secret"}'
    error = json.dumps({"error_type": "InvokeServerUnavailableError", "message": request})
    answers = {
        "page": Reply([request.encode()], 500),
        "json": Reply([json.dumps({"code": "inner-key", "message": request}).encode()], 500),
        "named": Reply([error.encode()], 500),
        "429": Reply([request.encode()], 429),
        "stream": Reply([line(envelope(None, -500, request))]),
        "named in the stream": Reply([line(envelope(None, -500, error))]),
    }
    dify = FakeDify(answers[kind])
    model = dify.daemon_model(credentials={"k": "model-secret"}) if daemon else dify.gateway_model()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        await play(model)
    failed = describe_failure(caught.value)
    shown = f"{failed.error} {failed.reason} {caught.value} {getattr(caught.value, 'body', None)}"
    assert "***" in failed.error
    assert "daemon-key" not in shown
    assert "inner-key" not in shown
    assert ("model-secret" in shown) is not daemon


async def test_429():
    body = json.dumps({"code": "agent_llm_quota_exceeded", "message": "spent", "status": 429}).encode()
    error, failed = await failure_of(Reply([body], status=429))
    assert (error.status_code, error.body) == (429, "spent")
    assert failed.error == "status_code: 429, model_name: gpt-x, body: spent"
    assert failed.reason == "InvokeRateLimitError"


async def test_errors_of_the_daemon_before_its_stream():
    text = json.dumps({"error_type": "PluginDaemonUnauthorizedError", "message": "bad key", "args": None})
    refusal = json.dumps({"code": -401, "message": text}).encode()
    error, failed = await failure_of(Reply([refusal], status=401), daemon=True)
    assert (error.status_code, failed.reason) == (401, "PluginDaemonUnauthorizedError")
    assert failed.error == "bad key (check DIFY_AGENT_PLUGIN_DAEMON_API_KEY)"
    assert failed.setting == "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"
    _, failed = await failure_of(Reply([refusal], status=401))  # the API's address leads to the daemon
    assert failed.setting == API_URL
    text = json.dumps({"error_type": "InvokeAuthorizationError", "message": "the provider's key"})
    _, failed = await failure_of(Reply([text.encode()], status=401), daemon=True)
    assert (failed.error, failed.setting) == ("the provider's key", None)
    _, failed = await failure_of(Reply([b'{"error_type":"OddError","message":"m"}'], status=502))
    assert (failed.error, failed.reason) == ("m", "OddError")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"<html>oops</html>", "<html>oops</html>"),
        (b'{"description": "d"}', "d"),
        (b'{"message": 5}', '{"message": 5}'),
        (b"", ""),
        (b"\xff", "\ufffd"),
        (b"x" * 200_000, "x" * 2000 + "…"),
    ],
)
async def test_http_errors_that_are_no_json(body, shown):
    error, failed = await failure_of(Reply([body[:100_000], body[100_000:]], status=500))
    assert error.status_code == 500
    assert failed.error == f"status_code: 500, model_name: gpt-x, body: {shown}"
    assert failed.reason == "upstream_http_error"


async def test_an_http_error_counts_more_than_the_break_of_its_body():
    error, failed = await failure_of(Reply([b"half", httpx2.ReadError("reset")], status=502))
    assert (error.status_code, failed.reason) == (502, "upstream_http_error")
    assert failed.error.endswith("body: half")


async def test_the_body_of_an_http_error_is_not_waited_for(autojump_clock):
    began = trio.current_time()
    error, failed = await failure_of(Reply([b"half", 0.7, b" more", 3600.0], status=502))
    assert trio.current_time() - began == pytest.approx(1.0)
    assert (error.status_code, failed.reason) == (502, "upstream_http_error")
    assert failed.error.endswith("body: half more")


async def test_a_redirect_is_not_followed():
    error, failed = await failure_of(Reply([b"moved"], status=302))
    assert (error.status_code, failed.reason) == (302, "upstream_http_error")


@pytest.mark.parametrize("text", [b"<html>\n", b"data: {\n", b'data: {"code":0,"data":null}\n', b"data: [DONE]\n"])
async def test_lines_that_cannot_be_read(text):
    _, failed = await failure_of(Reply([line(chunk("a")), text]))
    assert failed.reason == "upstream_malformed_answer"
    assert failed.error.startswith("the Dify API sent a line")
    assert failed.setting == API_URL


@pytest.mark.parametrize(
    ("raised", "status", "reason", "says"),
    [
        (httpx2.ConnectTimeout("t"), 504, "upstream_connect_timeout", "DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT"),
        (httpx2.ReadTimeout("t"), 504, "upstream_read_timeout", "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"),
        (httpx2.WriteTimeout("t"), 504, "upstream_write_timeout", "DIFY_AGENT_OUTBOUND_HTTP_WRITE_TIMEOUT"),
        (httpx2.PoolTimeout("t"), 504, "outbound_pool_exhausted", "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS"),
        (httpx2.ConnectError("refused"), 503, "upstream_connect_failed", "refused"),
        (httpx2.ReadError("reset"), 503, "upstream_connection_lost", "broke the connection off"),
        (httpx2.LocalProtocolError("inner-key"), 503, "upstream_connection_lost", "LocalProtocolError"),
    ],
)
async def test_failures_below_http(raised, status, reason, says):
    error, failed = await failure_of(raised)
    assert isinstance(error, ModelHTTPError)
    assert (error.status_code, failed.reason) == (status, reason)
    assert says in failed.error
    assert "http://api.test:5001" in failed.error


async def test_a_failure_in_the_middle_keeps_its_reason():
    request = httpx2.Request("POST", "http://u:secret@api.test:5001/p?token=secret")
    _, failed = await failure_of(Reply([line(chunk("a")), httpx2.ReadTimeout("t", request=request)]))
    assert failed.reason == "upstream_read_timeout"
    assert "secret" not in failed.error


async def test_an_address_that_is_none():
    dify = FakeDify(httpx2.UnsupportedProtocol("ftp"))
    with pytest.raises(UserError, match=r"not an HTTP URL.*DIFY_AGENT_INNER_API_URL") as caught:
        await play(dify.gateway_model(context=CONTEXT))
    assert describe_failure(caught.value).setting == API_URL
