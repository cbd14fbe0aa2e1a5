"""File arguments of plugin tools, and what the model reads of the files and messages that plugin tools return.

The real server and the fakes on a socket. Bodies are those of the specification (integrations 4.2, 4.3), as a whole.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.bodies import layer
from tests.server.clients import Api
from tests.server.dify_bodies import CONTEXT, dify_run, plugin_tools
from tests.server.dify_fakes import MODEL_PATH, PLUGIN_TOOL_PATH, FakeDify, fake_dify
from tests.server.dify_scripts import DONE
from tests.server.harness import Server, StoreServer, serving
from tests.server.sandboxes import install_sandbox

FILE_PATH = "/inner/api/download/file/request"
INVALID = "tool parameters validation error: {}, please check your tool parameters"
NO_FILE = (
    "a file object needs a url, or transfer_method 'remote_url' with a url, "
    "or one of local_file, tool_file, datasource_file with a reference"
)
IDENTITY = {"dify_model_identity": "__dify__file__", "type": "custom"}
REPORT = {
    "filename": "report.pdf",
    "mime_type": "application/pdf",
    "size": 12,
    "download_url": "https://files.test/report?sign=1",
}
RESOLVED = {
    **IDENTITY,
    "url": "https://files.test/report?sign=1",
    "filename": "report.pdf",
    "extension": ".pdf",
    "mime_type": "application/pdf",
    "size": 12,
}
REFERENCE = {"transfer_method": "tool_file", "reference": "ref-1"}


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    with fake_dify() as fakes:
        yield fakes


@pytest.fixture(scope="module")
def server(store: StoreServer, dify: FakeDify, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sandbox = install_sandbox(tmp_path_factory.mktemp("sandbox"))
    with serving(store.url, env={**dify.environment, **sandbox.environment}) as started:
        yield started


def remote(url: str, **details: Any) -> dict[str, Any]:
    return {**IDENTITY, "url": url, "size": -1, **details}


def file_tool(kind: str = "file", **parameter: Any) -> dict[str, Any]:
    declared = {"name": "f", "type": kind, "form": "llm", **parameter}
    schema = {"type": "object", "properties": {"f": {}}}
    return plugin_tools("read", parameters=[declared], parameters_json_schema=schema)


def with_sandbox(uploads: dict[str, dict[str, Any]], tools: dict[str, Any]) -> list[dict[str, Any]]:
    shell = layer("shell", "acme.sandbox", uploads=uploads)
    return [shell, {**tools, "deps": {**tools["deps"], "shell": "shell"}}]


def resolution(method: str, reference: str) -> dict[str, Any]:
    """What Dify API is asked for a file."""
    return {
        "tenant_id": "tenant-1",
        "user_id": "user-1",
        "user_from": "end-user",
        "invoke_from": "web-app",
        "file": {"transfer_method": method, "reference": reference},
    }


def asked_of_the_tool(dify: FakeDify) -> list[Any]:
    """The tool's arguments, call by call; the rest of each body is what it always is."""
    found = []
    for body in dify.bodies(PLUGIN_TOOL_PATH):
        found.append(body["data"].pop("tool_parameters"))
        assert body == {
            "user_id": "user-1",
            "data": {
                "provider": "search",
                "tool": "read",
                "credential_type": "api-key",
                "credentials": {"api_key": "tool-secret"},
            },
        }
    return found


async def observed(api: Api, dify: FakeDify, *layers: dict[str, Any], context: dict[str, Any] | None = None) -> str:
    """Run; what the model reads of its tool call in its next request."""
    events = await api.run(dify_run(*layers, context=context))
    assert events[-1]["type"] == "run_succeeded", events[-1]["data"]
    _, second = dify.bodies(MODEL_PATH)
    told = second["target"]["prompt_messages"][-1]
    content = told.pop("content")
    assert told == {"role": "tool", "name": "read", "tool_call_id": "call-1-1"}
    return str(content)


async def read(
    api: Api, dify: FakeDify, value: Any, *layers: dict[str, Any], context: dict[str, Any] | None = None, **script: Any
) -> str:
    """Let the model call the tool with ``value``; what it reads of it."""
    arguments = {} if value is ... else {"f": value}
    script = {"files": [{"steps": [REPORT]}], **script}
    await dify.play(llm=[{"steps": [{"tool_calls": [{"name": "read", "arguments": arguments}]}, DONE]}], **script)
    return await observed(api, dify, *(layers or (file_tool(),)), context=context)


@pytest.mark.parametrize("method", ["local_file", "tool_file", "datasource_file"])
async def test_a_reference_is_resolved_on_behalf_of_the_user(api: Api, dify: FakeDify, method: str) -> None:
    value = {"transfer_method": method, "reference": "ref-1", "type": "document"}
    assert await read(api, dify, value) == "ok"
    assert asked_of_the_tool(dify) == [{"f": {**RESOLVED, "type": "document"}}]
    (request,) = dify.to(FILE_PATH)
    assert request.body == resolution(method, "ref-1")
    assert request.headers["x-inner-api-key"] == dify.environment["DIFY_AGENT_INNER_API_KEY"]


URL_FILES: dict[str, tuple[Any, dict[str, Any]]] = {
    "url": (
        "https://x.test/d/a%20b.png?s=1#f",
        remote("https://x.test/d/a%20b.png?s=1#f", filename="a b.png", extension=".png", mime_type="image/png"),
    ),
    "url in capitals": ("HTTP://x.test/README", remote("HTTP://x.test/README", filename="README")),
    "url without a path": ("https://x.test", remote("https://x.test")),
    "remote_url": (
        {"transfer_method": "remote_url", "url": "https://x.test/a.txt", "type": "document"},
        {
            **remote("https://x.test/a.txt", filename="a.txt", extension=".txt", mime_type="text/plain"),
            "type": "document",
        },
    ),
    "remote_url with its size": (
        {"transfer_method": "remote_url", "url": "https://x.test/a.txt", "size": 7, "filename": "b.txt"},
        {
            **remote("https://x.test/a.txt", filename="b.txt", extension=".txt", mime_type="text/plain"),
            "size": 7,
        },
    ),
    "a plugin's file": (
        {"url": "https://x.test/1", "filename": "n", "id": 5, "dify_model_identity": "other"},
        {**IDENTITY, "url": "https://x.test/1", "filename": "n"},
    ),
    "a list of one": (["https://x.test"], remote("https://x.test")),
}


@pytest.mark.parametrize(("value", "file"), URL_FILES.values(), ids=URL_FILES)
async def test_a_url_needs_nobody(api: Api, dify: FakeDify, value: Any, file: dict[str, Any]) -> None:
    assert await read(api, dify, value) == "ok"
    assert asked_of_the_tool(dify) == [{"f": file}]
    assert dify.to(FILE_PATH) == []


@pytest.mark.parametrize("kind", ["files", "system-files"])
async def test_lists_of_files(api: Api, dify: FakeDify, kind: str) -> None:
    value = [REFERENCE, "https://x.test", {"transfer_method": "local_file", "reference": "ref-2"}]
    assert await read(api, dify, value, file_tool(kind)) == "ok"
    assert asked_of_the_tool(dify) == [{"f": [RESOLVED, remote("https://x.test"), RESOLVED]}]
    assert dify.bodies(FILE_PATH) == [resolution("tool_file", "ref-1"), resolution("local_file", "ref-2")]
    assert await read(api, dify, REFERENCE, file_tool(kind)) == "ok"
    assert asked_of_the_tool(dify) == [{"f": [RESOLVED]}]


async def test_files_that_the_model_does_not_name(api: Api, dify: FakeDify) -> None:
    """Left out: without a member; of the declaration's default, or of the hidden values: resolved as others are."""
    assert await read(api, dify, ...) == "ok"
    assert asked_of_the_tool(dify) == [{}]
    assert await read(api, dify, ..., file_tool(default=REFERENCE)) == "ok"
    assert asked_of_the_tool(dify) == [{"f": RESOLVED}]
    hidden = plugin_tools(
        "read",
        parameters=[{"name": "f", "type": "files", "form": "form", "required": True}],
        runtime_parameters={"f": [REFERENCE]},
        parameters_json_schema={"type": "object", "properties": {}},
    )
    assert await read(api, dify, ..., hidden) == "ok"
    assert asked_of_the_tool(dify) == [{"f": [RESOLVED]}]
    expected = INVALID.format("tool parameter f not found in tool config")
    assert await read(api, dify, ..., file_tool(required=True)) == expected
    assert dify.to(PLUGIN_TOOL_PATH) == []


NO_FILES: dict[str, tuple[Any, str]] = {
    "null": (None, "a file is a URL, a path, or an object with transfer_method and url or reference"),
    "number": (3, "a file is a URL, a path, or an object with transfer_method and url or reference"),
    "empty object": ({}, NO_FILE),
    "empty url": ({"url": ""}, NO_FILE),
    "remote_url without url": ({"transfer_method": "remote_url"}, NO_FILE),
    "tool_file without reference": ({"transfer_method": "tool_file", "reference": ""}, NO_FILE),
    "unknown method": ({"transfer_method": "ftp", "reference": "r"}, NO_FILE),
    "two files": (["https://a.test", "https://b.test"], "takes exactly one file, got 2"),
    "no files": ([], "takes exactly one file, got 0"),
    "blank": (" ", "a file needs a URL or a path, got an empty text"),
    "path": (
        "/home/report.pdf",
        "a path can be a file only in a run with a shell; give a URL or a file reference instead",
    ),
}


@pytest.mark.parametrize(("value", "problem"), NO_FILES.values(), ids=NO_FILES)
async def test_what_is_no_file(api: Api, dify: FakeDify, value: Any, problem: str) -> None:
    assert await read(api, dify, value) == INVALID.format(f"parameter f: {problem}")
    assert dify.to(PLUGIN_TOOL_PATH) == dify.to(FILE_PATH) == []


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"error": "file not found"}, "tool invoke error: the file could not be fetched: file not found"),
    "bad request": (
        {"http_error": {"status": 400, "code": "invalid_request", "message": "bad reference"}},
        INVALID.format("parameter f: bad reference"),
    ),
    "not found": (
        {"http_error": {"status": 404, "code": "file_not_accessible", "message": "not yours"}},
        "tool invoke error: the file could not be fetched: not yours",
    ),
    "page": (
        {"http_error": {"status": 502, "html": "<html>down</html>"}},
        "tool invoke error: the file could not be fetched: <html>down</html>",
    ),
    "no data": ({"body": {"data": None, "error": ""}}, "tool invoke error: the file could not be fetched: Dify API gave"
                " no URL"),
    "no url": (
        {"download_url": ""},
        "tool invoke error: the file could not be fetched: Dify API's reply does not fit its contract "
        "(data.download_url: String should have at least 1 character)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("step", "told"), REFUSALS.values(), ids=REFUSALS)
async def test_a_file_that_dify_does_not_give(api: Api, dify: FakeDify, step: dict[str, Any], told: str) -> None:
    assert await read(api, dify, REFERENCE, files=[{"steps": [step]}]) == told
    assert len(dify.to(FILE_PATH)) == 1, "never asked twice"
    assert dify.to(PLUGIN_TOOL_PATH) == []


async def test_a_connection_cut_while_a_file_is_resolved(api: Api, dify: FakeDify) -> None:
    told = await read(api, dify, REFERENCE, files=[{"steps": [{"end": "reset"}]}])
    assert told.startswith("tool invoke error: the file could not be fetched: ")
    assert "the Dify API" in told
    assert dify.to(PLUGIN_TOOL_PATH) == []


@pytest.mark.parametrize("missing", ["user_id", "user_from"])
async def test_a_reference_needs_a_user(api: Api, dify: FakeDify, missing: str) -> None:
    """The gateway needs one as well, so the model is a scripted one."""
    await dify.play()
    context = {name: value for name, value in CONTEXT.items() if name != missing}
    turns = [{"tool_calls": [{"name": "read", "args": {"f": REFERENCE}}]}, {"text": "Done."}]
    body = dify_run(file_tool(), context=context)
    body["composition"]["layers"][-1] = layer("llm", "scripted.model", turns=turns)
    events = await api.run(body)
    assert events[-1]["type"] == "run_succeeded", events[-1]["data"]
    (content,) = [
        event["data"]["part"]["content"]
        for event in events
        if event["data"].get("event_kind") == "function_tool_result"
    ]
    problem = "parameter f: file references need user_id and user_from in the execution context"
    assert content == INVALID.format(problem)
    assert dify.to(FILE_PATH) == dify.to(PLUGIN_TOOL_PATH) == []


async def test_a_path_goes_through_the_sandbox(api: Api, dify: FakeDify) -> None:
    uploads = {
        "/home/report.pdf": {"transfer_method": "tool_file", "reference": "ref-9", "public_download_url": "https://p"}
    }
    layers = with_sandbox(uploads, file_tool("files"))
    assert await read(api, dify, ["/home/report.pdf", "https://x.test"], *layers) == "ok"
    assert asked_of_the_tool(dify) == [{"f": [RESOLVED, remote("https://x.test")]}]
    assert dify.bodies(FILE_PATH) == [resolution("tool_file", "ref-9")]


@pytest.mark.parametrize(
    ("path", "problem"),
    [("/home/gone", "no such file: /home/gone"), ("/home/odd", "the upload of the path did not yield a file")],
)
async def test_a_path_that_the_sandbox_does_not_give(api: Api, dify: FakeDify, path: str, problem: str) -> None:
    layers = with_sandbox({"/home/odd": {"transfer_method": "remote_url", "url": "https://x"}}, file_tool())
    assert await read(api, dify, path, *layers) == INVALID.format(f"parameter f: {problem}")
    assert dify.to(PLUGIN_TOOL_PATH) == dify.to(FILE_PATH) == []


async def test_an_uploaded_file_reaches_the_tool(api: Api, dify: FakeDify) -> None:
    """As a sandbox uploads it; then the plugin downloads it from the URL that it was given."""
    async with httpx2.AsyncClient(base_url=dify.environment["DIFY_AGENT_INNER_API_URL"]) as client:
        asked = {**CONTEXT, "filename": "a.txt", "mimetype": "text/plain", "max_size": 5}
        members = ("tenant_id", "user_id", "user_from", "conversation_id", "filename", "mimetype", "max_size")
        link = await client.post(
            "/inner/api/agent/files/upload-request",
            json={name: asked[name] for name in members},
            headers={"X-Inner-Api-Key": dify.environment["DIFY_AGENT_INNER_API_KEY"]},
        )
        stored = await client.post(link.json()["upload_uri"], files={"file": ("a.txt", b"hello", "text/plain")})
        upload = {"transfer_method": "tool_file", "reference": stored.json()["reference"]}
        layers = with_sandbox({"/home/a.txt": upload}, file_tool())
        assert await read(api, dify, "/home/a.txt", *layers, files=[]) == "ok"
        ((file,),) = (arguments.values() for arguments in asked_of_the_tool(dify))
        url = file.pop("url")
        assert file == {**IDENTITY, "filename": "a.txt", "extension": ".txt", "mime_type": "text/plain", "size": 5}
        assert (await client.get(url)).content == b"hello"


def message(kind: str, meta: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    return {"type": kind, "message": members, "meta": meta}


def chunk(data: bytes, sequence: int = 0, *, end: bool = False, name: str = "b-1", **more: Any) -> dict[str, Any]:
    members = {"id": name, "sequence": sequence, "total_length": 0, "blob": b64encode(data).decode(), "end": end}
    return message("blob_chunk", more.get("meta"), **members)


PNG = {"filename": "a.png", "mime_type": "image/png"}
IMAGE = "The image has been created and already sent to the user; tell the user to look at it. "
REPLIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "texts in order": ([message("text", text="é\u2028"), message("text", text=" b")], "é\u2028 b"),
    "link": (
        [message("text", text="a "), message("link", text="https://x.test")],
        "a result link: https://x.test. please tell user to check it.",
    ),
    "images": ([message("image", text="https://secret.test"), message("image_link", text="https://s")], IMAGE * 2),
    "json comes last": (
        [message("json", json_object={"n": 1, "t": "é"}), message("text", text="first ")],
        'first {"n": 1, "t": "é"}',
    ),
    "json without its member": ([message("json", n=1)], '{"n": 1}'),
    "json list": ([message("json", json_object=[1, None])], "[1, null]"),
    "json twice, and as text": (
        [message("text", text='{"n": 1}'), *[message("json", json_object={"n": n}) for n in (1, 2, 2)]],
        '{"n": 1}{"n": 2}',
    ),
    "suppressed json": ([message("json", json_object={"n": 1}, suppress_output=True)], ""),
    "variable": ([message("variable", variable_name="v", variable_value="x", stream=False)], ""),
    "blob": (
        [message("blob", PNG, blob=b64encode(b"12345").decode())],
        "[the tool returned a file: a.png, image/png, 5 bytes]",
    ),
    "empty blob": ([message("blob", blob="")], "[the tool returned a file: 0 bytes]"),
    "chunks": (
        [chunk(b"x" * 8192, n) for n in range(3)] + [chunk(b"y" * 5, 3, end=True, meta=PNG)],
        "[the tool returned a file: a.png, image/png, 24581 bytes]",
    ),
    "chunks out of order": (
        [chunk(b"xx", 2), chunk(b"yyy", 0), chunk(b"", 1, end=True)],
        "[the tool returned a file: 5 bytes]",
    ),
    "files side by side": (
        [
            chunk(b"x", 0, name="a"),
            chunk(b"yy", 0, name="b"),
            message("text", text=" between "),
            chunk(b"yy", 1, end=True, name="b"),
            chunk(b"x", 1, end=True, name="a"),
        ],
        " between [the tool returned a file: 4 bytes][the tool returned a file: 2 bytes]",
    ),
    "a chunk behind the end begins anew": (
        [chunk(b"xx", 0, end=True), chunk(b"y", 1, end=True)],
        "[the tool returned a file: 2 bytes][the tool returned a file: 1 bytes]",
    ),
    "a file without an end": ([chunk(b"xx"), message("text", text="t")], "t"),
    "other known types": (
        [message("file", file_marker="m"), message("log", label="é", data={}), message("binary_link", text="b")],
        '{"file_marker": "m"}{"label": "é", "data": {}}{"text": "b"}',
    ),
    "nothing": ([message("text", text="")], ""),
}


async def replied(api: Api, dify: FakeDify, **step: Any) -> str:
    return await read(api, dify, ..., tools=[{"steps": [step]}])


@pytest.mark.parametrize(("messages", "told"), REPLIES.values(), ids=REPLIES)
async def test_what_the_model_reads_of_a_reply(
    api: Api, dify: FakeDify, messages: list[dict[str, Any]], told: str
) -> None:
    assert await replied(api, dify, messages=messages) == told


KNOWN_TYPES = (
    "'text', 'link', 'image', 'image_link', 'json', 'variable', 'blob', 'blob_chunk', 'file', 'log' or 'binary_link'"
)
BROKEN_REPLIES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": (
        message("retriever_resources", retriever_resources=[]),
        f"the tool's reply has an item that is no tool message (type: Input should be {KNOWN_TYPES})",
    ),
    "no object": (
        {"type": "text", "message": "t"},
        "the tool's reply has an item that is no tool message (message: Input should be a valid dictionary)",
    ),
    "text without text": (message("text"), "the tool's reply has a text item without a 'text' that is a text"),
    "image without text": (message("image"), "the tool's reply has a image item without a 'text' that is a text"),
    "no JSON object": (
        message("json", json_object=1),
        "the tool's reply has a json item whose json_object is neither an object nor a list",
    ),
    "no base64": (message("blob", blob="é"), "the tool's reply has a blob item that is not base64"),
    "no blob": (message("blob"), "the tool's reply has a blob item that is not base64"),
    "a chunk that is too long": (chunk(b"x" * 8193), "the tool sent a file chunk of more than 8192 bytes"),
}


@pytest.mark.parametrize(("item", "problem"), BROKEN_REPLIES.values(), ids=BROKEN_REPLIES)
async def test_replies_that_break_the_contract(api: Api, dify: FakeDify, item: dict[str, Any], problem: str) -> None:
    """A part that came before is not told: the whole reply is refused."""
    told = await replied(api, dify, messages=[message("text", text="before"), item])
    assert told == INVALID.format(problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "told"),
    [
        (30 << 20, "[the tool returned a file: application/octet-stream, 31457280 bytes]"),
        ((30 << 20) + 1, INVALID.format("the tool sent a file of more than 31457280 bytes")),
    ],
)
async def test_the_largest_file(api: Api, dify: FakeDify, size: int, told: str) -> None:
    assert await replied(api, dify, blobs=[{"size": size}], chunks_per_write=64) == told
