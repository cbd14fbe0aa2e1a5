"""File arguments of plugin tools (integrations 4.2)."""

from typing import ClassVar

import httpx2
import pytest
from structlog.testing import capture_logs
from tests.unit.layers.outbound_fakes import API_KEY, entered, items, reply, said, services

from agenton.compositor import LayerProvider
from agenton.layers import NoLayerDeps, PlainLayer
from dify_agent.backends.replies import MAX_ERROR_CHARS
from dify_agent.layers.dify_plugin.tools_layer import MAX_FILES, provider
from dify_agent.layers.sandbox import SandboxFileError, SandboxLayer

IDENTITY = {"dify_model_identity": "__dify__file__", "type": "custom"}
DATA = {"filename": "a.pdf", "mime_type": "application/pdf", "size": 12, "download_url": "https://files/a?sig=1"}
RESOLVED = {
    **IDENTITY, "url": "https://files/a?sig=1", "filename": "a.pdf", "extension": ".pdf",
    "mime_type": "application/pdf", "size": 12,
}  # fmt: skip
KNOWN = {"filename": "n.txt", "mime_type": "text/plain", "extension": ".txt", "size": 3}
REFERENCE = {"transfer_method": "tool_file", "reference": "ref-1"}


class Sandbox(SandboxLayer[NoLayerDeps, None]):
    """What a shell layer will be to its dependants."""

    type_id: ClassVar[str | None] = "test.shell"

    async def run_script(self, script, *, timeout_seconds, max_stdout_bytes):
        raise AssertionError("not to be asked")

    async def upload_file(self, path):
        if path == "/gone":
            raise SandboxFileError("no such file: /gone")
        if path == "/odd":
            return {"transfer_method": "remote_url", "url": "https://x"}
        return {"transfer_method": "tool_file", "reference": f"ref:{path}", "public_download_url": "https://p"}


async def call(value, *, api=None, kind="file", context=None, shell=None):
    """What the model reads, what the plugin got, and what Dify API was asked."""
    daemon, dify_api, outbound = services(daemon=[items(said("ok"))], api=api or [reply({"data": DATA, "error": ""})])
    tool = {
        "plugin_id": "p", "provider": "p", "tool_name": "t", "credential_type": "unauthorized",
        "parameters": [{"name": "f", "type": kind, "form": "llm"}],
    }  # fmt: skip
    async with entered(provider(outbound), {"tools": [tool]}, context=context, shell=shell) as run:
        [made] = run.tools
        text = await made.function(f=value)
    sent = daemon.bodies[0]["data"]["tool_parameters"]["f"] if daemon.requests else None
    return text, sent, dify_api


def remote(url, **details):
    return {**IDENTITY, "url": url, "size": -1, **details}


@pytest.mark.parametrize(
    ("value", "file"),
    [
        (
            "https://x/d/a%20b.png?s=1#f",
            remote(
                "https://x/d/a%20b.png?s=1#f", filename="a b.png", extension=".png", mime_type="image/png"
            ),
        ),
        ("HTTP://x/README", remote("HTTP://x/README", filename="README")),
        ("https://x", remote("https://x")),
        ("https://x/..", remote("https://x/..")),
        ("https://x/..%2F..%2Fetc%2Fpasswd", remote("https://x/..%2F..%2Fetc%2Fpasswd", filename="passwd")),
        ({"transfer_method": "remote_url", "url": "https://x/a.txt", "type": "document"},
         {**remote("https://x/a.txt", filename="a.txt", extension=".txt", mime_type="text/plain"), "type": "document"}),
        ({"transfer_method": "remote_url", "url": "https://x/a.txt", "size": 3, "filename": "n.txt"},
         {**remote("https://x/a.txt", filename="n.txt", extension=".txt", mime_type="text/plain"), "size": 3}),
        ({"url": "u", "id": 1, **KNOWN}, {**IDENTITY, "url": "u", **KNOWN}),
        ({"url": "u", "type": "image", "size": "3"}, {**IDENTITY, "url": "u", "type": "image"}),
    ],
)  # fmt: skip
async def test_files_that_need_no_call(value, file):
    text, sent, dify_api = await call(value)
    assert (text, sent) == ("ok", file)
    assert dify_api.requests == []


@pytest.mark.parametrize("method", ["local_file", "tool_file", "datasource_file"])
async def test_references_are_resolved_on_behalf_of_the_user(method):
    text, sent, dify_api = await call([{"transfer_method": method, "reference": "r", "type": "image"}])
    assert (text, sent) == ("ok", {**RESOLVED, "type": "image"})
    [request] = dify_api.requests
    assert str(request.url) == "http://api.test/inner/api/download/file/request"
    assert request.headers["X-Inner-Api-Key"] == API_KEY
    assert dify_api.bodies == [
        {
            "tenant_id": "t-1", "user_id": "u-1", "user_from": "account", "invoke_from": "web-app",
            "file": {"transfer_method": method, "reference": "r"},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("../../x", "x"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\x.exe", "x.exe"),
        ("..", None),
        ("a/..", None),
        ("/", None),
    ],
)
async def test_a_name_is_no_path_whoever_states_it(stated, name):
    answer = reply({"data": {"filename": stated, "download_url": "https://x/y"}})
    _, sent, _ = await call(REFERENCE, api=[answer])
    assert sent.get("filename") == name
    for given in ({"url": "u"}, {"transfer_method": "remote_url", "url": "https://x"}):
        _, sent, _ = await call({**given, "filename": stated})
        assert sent.get("filename") == name


@pytest.mark.parametrize("kind", ["files", "system-files"])
async def test_lists(kind):
    text, sent, dify_api = await call([REFERENCE, {"url": "u"}], kind=kind)
    assert (text, sent) == ("ok", [RESOLVED, {**IDENTITY, "url": "u"}])
    assert len(dify_api.requests) == 1
    assert (await call(REFERENCE, kind=kind))[1] == [RESOLVED]


async def test_a_path_is_uploaded_by_the_shell():
    text, sent, dify_api = await call("/home/a.pdf", shell=Sandbox)
    assert (text, sent) == ("ok", RESOLVED)
    assert dify_api.bodies[0]["file"] == {"transfer_method": "tool_file", "reference": "ref:/home/a.pdf"}


@pytest.mark.parametrize(
    ("value", "more", "text"),
    [
        ("/home/a", {}, "only in a run with a shell"),
        ("/gone", {"shell": Sandbox}, "parameter f: no such file: /gone"),
        ("/odd", {"shell": Sandbox}, "did not yield a file"),
        ("http://[::1", {}, "parameter f: "),
        (" ", {"shell": Sandbox}, "got an empty text"),
        (None, {}, "a file is a URL, a path, or an object"),
        (3, {}, "a file is a URL"),
        ({}, {}, "a file object needs"),
        ({"url": ""}, {}, "a file object needs"),
        ({"transfer_method": "remote_url"}, {}, "a file object needs"),
        ({"transfer_method": "tool_file", "reference": ""}, {}, "a file object needs"),
        ({"transfer_method": "ftp", "reference": "r"}, {}, "a file object needs"),
        (["a", "b"], {}, "takes exactly one file, got 2"),
        (REFERENCE, {"context": {"user_id": None}}, "need user_id and user_from"),
        (REFERENCE, {"context": {"user_from": None}}, "need user_id and user_from"),
        (REFERENCE, {"api": [reply({"code": "x", "message": "bad ref", "status": 400}, 400)]}, "f: bad ref"),
    ],
)
async def test_what_is_no_file_is_a_validation_observation(value, more, text):
    seen, sent, _ = await call(value, **more)
    assert seen.startswith("tool parameters validation error: parameter f: ")
    assert text in seen
    assert sent is None


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (reply({"code": "forbidden", "message": "not yours", "status": 403}, 403), "not yours"),
        (reply("oops", 500), "oops"),
        (reply({"data": None, "error": "no such file"}), "no such file"),
        (reply({"data": {}, "error": "no such file"}), "no such file"),
        (reply({"data": None, "error": ""}), "gave no URL"),
        (reply({"data": {"filename": "a"}, "error": ""}), "does not fit its contract"),
        (reply("<html>"), "does not fit its contract"),
        (httpx2.ConnectError("refused"), "refused"),
        (httpx2.ReadTimeout(""), "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"),
        (httpx2.UnsupportedProtocol("no scheme."), "DIFY_AGENT_INNER_API_URL"),
    ],
)
async def test_a_reference_that_cannot_be_resolved_is_an_invoke_observation(answer, text):
    seen, sent, dify_api = await call(REFERENCE, api=[answer])
    assert seen.startswith("tool invoke error: the file could not be fetched: ")
    assert text in seen
    assert sent is None
    assert len(dify_api.requests) == 1


@pytest.mark.parametrize(
    ("answer", "setting"),
    [
        (
            reply({"code": "not_found", "message": "", "status": 404}, 404),
            "DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL",
        ),
        (reply("<html>", 400), "DIFY_AGENT_INNER_API_URL"),
        (httpx2.ConnectError("refused"), "DIFY_AGENT_INNER_API_URL"),
        (reply({"code": "invalid_request", "message": "bad", "status": 400}, 400), None),
        (reply({"data": None, "error": "no such file"}), None),
    ],
)
async def test_operators_read_in_the_log_why_no_file_can_be_had(answer, setting):
    with capture_logs() as logs:
        await call(REFERENCE, api=[answer])
    assert [(line["log_level"], line["setting"]) for line in logs] == (
        [] if setting is None else [("warning", setting)]
    )


async def test_a_long_error_is_cut():
    seen, _, _ = await call(REFERENCE, api=[reply({"data": None, "error": "x" * 100_000})])
    assert seen.endswith(": " + "x" * MAX_ERROR_CHARS)


async def test_types_do_not_depend_on_the_host(monkeypatch):
    monkeypatch.setattr("mimetypes.guess_type", lambda *_: pytest.fail("reads the host's files"))
    _, sent, _ = await call("https://x/a.png")
    assert sent["mime_type"] == "image/png"


async def test_the_files_of_a_call_are_counted_before_any_is_resolved():
    text, sent, dify_api = await call([REFERENCE] * MAX_FILES, kind="files")
    assert (text, len(sent), len(dify_api.requests)) == ("ok", MAX_FILES, MAX_FILES)
    text, sent, dify_api = await call([REFERENCE] * (MAX_FILES + 1), kind="files")
    assert f"validation error: parameter f: one call takes at most {MAX_FILES} files" in text
    assert (sent, dify_api.requests) == (None, [])


async def test_only_a_sandbox_layer_is_a_shell():
    class Other(PlainLayer[NoLayerDeps]):
        type_id: ClassVar[str | None] = "test.other"

    with pytest.raises(TypeError, match="Dependency 'shell' should be of type 'SandboxLayer', but got type 'Other'"):
        await call("u", shell=LayerProvider.from_layer_type(Other))
