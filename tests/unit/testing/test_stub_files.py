"""Files of the Agent Stub over a real socket: URLs to upload and download, bytes, bounds (integrations 9.4 to 9.7)."""

import json
from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import trio
from tests.unit.testing.asking import BOUND_SECONDS, FILE, INNER_KEY, ask, asking, file_body
from tests.unit.testing.stub import (
    CONFIG,
    DOWNLOAD_REQUEST,
    TEXT,
    UPLOAD_BODY,
    UPLOAD_REQUEST,
    VERSION,
    code_of,
    download_body,
    link_to,
    send_file,
    upload_uri,
    uploaded,
)

from dify_agent.testing import Outcome, open_fakes
from dify_agent.testing.agent_config import AgentConfig
from dify_agent.testing.files import StoredFile
from dify_agent.testing.kept import ENTRY_BYTES, KeptState
from dify_agent.testing.refusals import Refused
from dify_agent.testing.signing import ACCESS_SECONDS, UrlSigner

# The specification's example: record tool-file-1.
KNOWN_REFERENCE = "dify-file-ref:eyJyZWNvcmRfaWQiOiJ0b29sLWZpbGUtMSJ9"


async def test_upload_and_download() -> None:
    async with asking() as (fakes, client):
        uri = await upload_uri(client)
        assert uri.startswith("/files/upload/for-plugin?")
        query = parse_qs(urlsplit(uri).query)
        assert set(query) == {"timestamp", "nonce", "sign", "tenant_id", "user_id", "max_size"}
        assert (query["tenant_id"], query["user_id"], query["max_size"]) == (["t-1"], ["u-1"], ["100"])
        told = (response := await send_file(client, uri)).json()
        assert response.status_code == 201
        assert told["reference"].startswith("dify-file-ref:")
        record = json.loads(urlsafe_b64decode(told["reference"].partition(":")[2]))
        assert record == {"record_id": told["id"]}
        shown = {name: told[name] for name in ("name", "size", "extension", "mime_type")}
        assert shown == {"name": "notes é.txt", "size": len(TEXT), "extension": ".txt", "mime_type": "text/plain"}
        found = await link_to(client, told["reference"])
        path = found.pop("download_uri")
        assert found == {"filename": "notes é.txt", "mime_type": "text/plain", "size": len(TEXT)}
        assert path.startswith(f"/files/tools/{told['id']}.txt?")
        for link in (path, told["preview_url"]):
            got = await client.get(link, headers={"X-Inner-Api-Key": ""})
            assert (got.status_code, got.content, got.headers["content-type"]) == (200, TEXT, "text/plain")
            assert "content-disposition" not in got.headers
        methods = [request.method for request in fakes.requests]
        assert methods == ["POST", "POST", "POST", "GET", "GET"]
        assert fakes.requests[1].query == urlsplit(uri).query
        assert TEXT in fakes.requests[1].raw_body


async def test_who_may_see_the_url_decides_its_form() -> None:
    async with asking() as (fakes, client):
        reference = (await uploaded(client))["reference"]
        public = (await link_to(client, reference, for_frontend=True))["download_uri"]
        assert public.startswith(f"{fakes.url}/files/tools/")
        assert (await client.get(public)).content == TEXT
        remote = "https://x.test/d/a%20b.png?s=1"
        for for_frontend in (True, False):
            body = download_body(for_frontend, transfer_method="remote_url", url=remote)
            told = (await client.post(DOWNLOAD_REQUEST, json=body)).json()
            assert told == {"filename": "a b.png", "mime_type": "image/png", "size": -1, "download_uri": remote}


@pytest.mark.parametrize("method", ["local_file", "datasource_file"])
async def test_any_transfer_method_finds_a_file(method: str) -> None:
    async with asking() as (_, client):
        reference = (await uploaded(client))["reference"]
        body = download_body(transfer_method=method, reference=reference)
        assert (await client.post(DOWNLOAD_REQUEST, json=body)).json()["size"] == len(TEXT)


async def test_a_file_is_the_tenants_own() -> None:
    async with asking() as (_, client):
        reference = (await uploaded(client))["reference"]
        for body in (
            download_body(tenant_id="t-2", transfer_method="tool_file", reference=reference),
            download_body(transfer_method="tool_file", reference=KNOWN_REFERENCE),
        ):
            assert code_of(await client.post(DOWNLOAD_REQUEST, json=body)) == (404, "file_not_accessible")


@pytest.mark.parametrize(
    "file",
    [
        {"transfer_method": "tool_file"},
        {"transfer_method": "tool_file", "reference": "f-1"},
        {"transfer_method": "tool_file", "reference": "dify-file-ref:e30="},
        {"transfer_method": "tool_file", "reference": "dify-file-ref:***"},
        {"transfer_method": "tool_file", "reference": KNOWN_REFERENCE, "url": "https://x"},
        {"transfer_method": "tool_file", "reference": KNOWN_REFERENCE, "url": None},
        {"transfer_method": "remote_url", "url": "https://x", "reference": KNOWN_REFERENCE},
        {"transfer_method": "remote_url", "url": "file:///etc/passwd"},
        {"transfer_method": "remote_url"},
        {"transfer_method": "ftp", "url": "https://x"},
    ],
)
async def test_what_is_no_file(file: dict) -> None:
    async with asking() as (_, client):
        response = await client.post(DOWNLOAD_REQUEST, json=download_body(**file))
        assert code_of(response) == (400, "invalid_request")


@pytest.mark.parametrize(
    "broken",
    [
        {"max_size": None},
        {"max_size": "5"},
        {"max_size": 1.5},
        {"max_size": -1},
        {"user_id": None},
        {"user_from": "robot"},
        {"filename": "../x"},
        {"filename": "a\nb"},
        {"mimetype": "text/plain\r\nX: y"},
        {"mimetype": "text"},
        {"extra": 1},
    ],
)
async def test_what_is_no_upload(broken: dict) -> None:
    async with asking() as (_, client):
        response = await client.post(UPLOAD_REQUEST, json={**UPLOAD_BODY, **broken})
        assert code_of(response) == (400, "invalid_request")
        assert next(iter(broken)) in response.json()["message"]


async def test_max_size_has_to_be_told() -> None:
    body = {name: value for name, value in UPLOAD_BODY.items() if name != "max_size"}
    async with asking() as (_, client):
        assert code_of(await client.post(UPLOAD_REQUEST, json=body)) == (400, "invalid_request")


@pytest.mark.parametrize("path", [UPLOAD_REQUEST, DOWNLOAD_REQUEST])
async def test_keys_and_methods(path: str) -> None:
    async with asking() as (_, client):
        assert (await client.get(path)).status_code == 405
        for key in ("", f"{INNER_KEY}x"):
            response = await client.post(path, json={}, headers={"X-Inner-Api-Key": key})
            assert code_of(response) == (404, "not_found")


@pytest.mark.parametrize(("limit", "size", "status"), [(0, 0, 201), (0, 1, 413), (5, 5, 201), (5, 6, 413)])
async def test_the_limit_is_in_the_url(limit: int, size: int, status: int) -> None:
    async with asking() as (_, client):
        uri = await upload_uri(client, max_size=limit)
        assert (await send_file(client, uri, b"x" * size)).status_code == status


async def test_what_a_signed_url_does_not_allow() -> None:
    async with asking() as (_, client):
        uri = await upload_uri(client, user_from="account", conversation_id="c-1")
        refused = [
            await send_file(client, uri, name="other.txt"),
            await send_file(client, uri, mime_type="text/html"),
            await client.post(uri, json={}),
            await client.post(uri, data={"file": "a text"}),
            await client.post(uri, content=b"--x", headers={"Content-Type": "multipart/form-data; boundary=x"}),
            await client.post("/files/upload/for-plugin", files={"file": ("notes é.txt", TEXT, "text/plain")}),
        ]
        path, _, text = uri.partition("?")
        query = dict(parse_qsl(text))
        assert len(query) == 8
        for name in query:
            refused.append(await send_file(client, f"{path}?{urlencode({**query, name: '9'})}"))
        assert {code_of(response) for response in refused} == {(403, "forbidden")}
        assert (await send_file(client, uri)).status_code == 201


async def test_the_file_is_found_among_other_fields() -> None:
    file = ("notes é.txt", TEXT, "text/plain; charset=utf-8")
    async with asking() as (_, client):
        uri = await upload_uri(client)
        assert code_of(await client.post(uri, files={"other": file})) == (403, "forbidden")
        other = ("other", ("x.bin", b"other", "text/plain"))
        response = await client.post(uri, data={"text": "a"}, files=[other, ("file", file), other])
        assert response.status_code == 201
        assert (await client.get(response.json()["preview_url"])).content == TEXT


async def test_what_a_download_url_does_not_allow() -> None:
    async with asking() as (_, client):
        first, second = await uploaded(client), await uploaded(client)
        link = (await link_to(client, first["reference"]))["download_uri"]
        assert (await client.get(link.replace(first["id"], second["id"]))).status_code == 403
        assert (await client.get(link.partition("?")[0])).status_code == 403
        assert (await client.post(link)).status_code == 405
        assert (await client.get("/files/other")).status_code == 404


def test_a_url_expires() -> None:
    now = 1_000_000.0
    signer = UrlSigner(lambda: now)
    query = {name: values[0] for name, values in parse_qs(urlsplit(signer.signed("/f", ("a",))).query).items()}
    now += ACCESS_SECONDS
    signer.check(query, ("a",))
    now += 1
    with pytest.raises(Refused, match="expired"):
        signer.check(query, ("a",))
    with pytest.raises(Refused, match="does not fit"):
        UrlSigner(lambda: now).check(query, ("a",))


async def test_the_oldest_files_make_room() -> None:
    size = 1000
    bound = 3 * (size + ENTRY_BYTES + 100)
    with trio.fail_after(BOUND_SECONDS):
        async with open_fakes(inner_key=INNER_KEY, state_bytes=bound) as fakes:
            headers = {"X-Inner-Api-Key": INNER_KEY}
            async with httpx2.AsyncClient(base_url=fakes.url, headers=headers) as client:
                files = [await uploaded(client, b"%d" % place * size) for place in range(5)]
                links = [file["preview_url"] for file in files]
                assert [(await client.get(link)).status_code for link in links] == [404, 404, 200, 200, 200]
                response = await send_file(client, await upload_uri(client, max_size=bound), b"x" * bound)
                assert code_of(response) == (413, "file_too_large")
                assert (await client.get(links[-1])).content == b"4" * size, "what does not fit drives nothing out"


def test_keys_and_bytes_count() -> None:
    state = KeptState(100_000)
    state.put("k" * 30_000, StoredFile("i", "é", "ü" * 10, "a/b", b"12"))
    assert state.kept_bytes == 30_000 + 2 + 2 + 20 + 3 + ENTRY_BYTES
    for number in range(9):
        state.put((f"{number}", "k" * 30_000), AgentConfig(note="n", env={"A": "1"}))
    assert state.kept_bytes == 3 * (30_001 + 3 + 2 * ENTRY_BYTES)
    assert state.get(AgentConfig, ("8", "k" * 30_000)) is not None
    assert state.get(AgentConfig, ("5", "k" * 30_000)) is None
    with pytest.raises(Refused, match="at most 100000 bytes"):
        state.put("k" * 100_000, AgentConfig())
    state.put(("8", "k" * 30_000), AgentConfig())
    state.clear()
    assert state.kept_bytes == 0


@pytest.mark.parametrize("member", ["tenant_id", "user_id", "conversation_id"])
async def test_ids_are_bounded(member: str) -> None:
    async with asking() as (_, client):
        for length, status in ((255, 200), (256, 400)):
            response = await client.post(UPLOAD_REQUEST, json={**UPLOAD_BODY, member: "i" * length})
            assert response.status_code == status
        if member != "conversation_id":
            note = {**VERSION, member: "i" * 256, "note": "x"}
            assert (await client.put(f"{CONFIG}/note", json=note)).status_code == 400


async def test_a_reset_forgets_files() -> None:
    async with asking() as (_, client):
        file = await uploaded(client)
        await client.post("/__fake/reset")
        assert (await client.get(file["preview_url"])).status_code == 404


async def test_an_upload_is_what_a_run_resolves() -> None:
    async with asking() as (_, client):
        file = await uploaded(client, b"hello", "hello.md", "text/markdown")
        told = json.loads(await ask(client, FILE, file_body(file["reference"])))["data"]
        url = told.pop("download_url")
        assert told == {"filename": "hello.md", "mime_type": "text/markdown", "size": 5}
        async with httpx2.AsyncClient() as anyone:
            assert (await anyone.get(url)).content == b"hello"
        other = json.loads(await ask(client, FILE, {**file_body(file["reference"]), "tenant_id": "t-2"}))
        assert other["data"]["filename"] == "file.txt"


async def test_scripted_failures_store_nothing() -> None:
    steps = [
        {"http_error": {"status": 415, "code": "unsupported_file_type", "message": "no"}},
        {"body": {"wrong": 1}},
        {},
    ]
    async with asking({"agent_stub": [{"path": "/files/upload/", "steps": steps}]}) as (_, client):
        uri = await upload_uri(client)
        answers = [await send_file(client, uri) for _ in steps]
        assert code_of(answers[0]) == (415, "unsupported_file_type")
        assert (answers[1].status_code, answers[1].json()) == (200, {"wrong": 1})
        assert answers[2].status_code == 201


async def test_a_download_breaks_off() -> None:
    script = {"agent_stub": [{"path": "/files/tools/", "steps": [{"end": "close"}, {"end": "silent"}, {}]}]}
    async with asking(script) as (fakes, client):
        link = (await uploaded(client))["preview_url"]
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(link)
        with trio.move_on_after(0.2) as waited:
            await client.get(link)
        assert waited.cancelled_caught
        await fakes.requests.wait_for(lambda request: request.left)
        assert (await client.get(link)).content == TEXT
        assert [request.outcome for request in fakes.requests.to("/files/tools/")] == [
            Outcome.CUT,
            Outcome.LEFT,
            Outcome.ANSWERED,
        ]
