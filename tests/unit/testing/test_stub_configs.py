"""Agent configs over a real socket: reading, pushing, and what only a build draft allows (integrations 9.4, 9.5)."""

import hashlib
import io
import zipfile
from typing import Any

import httpx2
import pytest
from tests.unit.testing.asking import INNER_KEY, asking
from tests.unit.testing.stub import CONFIG, TEXT, VERSION, code_of, uploaded

from dify_agent.testing.env_text import changed_env
from dify_agent.testing.refusals import Refused

SKILL_MD = "---\nname: tables\ndescription: 'Reads tables.'\n---\nUse it.\n"
PATHS = ["manifest", "skills/x/inspect", "download-request", "push", "env", "note"]


def archive(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, text in members.items():
            opened.writestr(name.replace("__", "."), text)
    return buffer.getvalue()


async def call(client: httpx2.AsyncClient, method: str, path: str, **members: Any) -> httpx2.Response:
    """Identity in the query of a reading, in the body of anything else."""
    identity = {**VERSION, **members}
    sent = {"params": identity} if method == "GET" else {"json": identity}
    return await client.request(method, f"{CONFIG}/{path}", **sent)


async def manifest(client: httpx2.AsyncClient, **members: Any) -> dict[str, Any]:
    response = await call(client, "GET", "manifest", **members)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def pushed(client: httpx2.AsyncClient) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A file, a skill, and the manifest after they were pushed."""
    file = await uploaded(client)
    skill = await uploaded(client, archive(SKILL__md=SKILL_MD, run__py="1"), "tables.zip", "application/zip")
    response = await call(
        client,
        "POST",
        "push",
        files=[{"name": "notes.txt", "file_ref": {"kind": "tool_file", "id": file["id"]}}],
        skills=[{"name": "tables", "file_ref": {"kind": "tool_file", "id": skill["id"]}}],
        env_text="A=1\nB=2",
        note="remember",
    )
    assert response.status_code == 200, response.text
    return file, skill, dict(response.json())


async def test_an_unknown_agent_has_an_empty_config() -> None:
    async with asking() as (_, client):
        assert await manifest(client) == {
            "agent_id": "agent-1",
            "config_version": {"id": "v-1", "kind": "build_draft", "writable": True},
            "skills": {"items": []},
            "files": {"items": []},
            "env_keys": [],
            "note": "",
        }
        for kind, writable in (("draft", True), ("snapshot", False)):
            assert (await manifest(client, config_version_kind=kind))["config_version"]["writable"] is writable


async def test_what_was_pushed_is_in_the_manifest() -> None:
    async with asking() as (_, client):
        file, skill, told = await pushed(client)
        assert await manifest(client) == told
        assert (told["env_keys"], told["note"]) == (["A", "B"], "remember")
        (shown,), (skill_shown,) = told["files"]["items"], told["skills"]["items"]
        assert shown == {
            "name": "notes.txt",
            "size": len(TEXT),
            "hash": hashlib.sha256(TEXT).hexdigest(),
            "mime_type": "text/plain",
            "id": "notes.txt",
            "file_id": file["id"],
            "is_missing": False,
        }
        assert (skill_shown["description"], skill_shown["file_id"]) == ("Reads tables.", skill["id"])


async def test_a_config_is_of_one_tenant_agent_and_version() -> None:
    async with asking() as (_, client):
        await pushed(client)
        for other in ({"tenant_id": "t-2"}, {"config_version_id": "v-2"}):
            assert (await manifest(client, **other))["note"] == ""
        other_agent = await client.get("/inner/api/agent-config/agent%2F2/manifest", params=VERSION)
        assert (other_agent.json()["agent_id"], other_agent.json()["note"]) == ("agent/2", "")
        assert (await manifest(client, config_version_kind="snapshot"))["note"] == "remember"


async def test_downloads() -> None:
    async with asking() as (_, client):
        _, skill, _ = await pushed(client)
        for kind, name, size in (("file", "notes.txt", len(TEXT)), ("skill", "tables", skill["size"])):
            told = (await call(client, "POST", "download-request", config={"kind": kind, "name": name})).json()
            assert told["size"] == size
            assert told["download_uri"].startswith("/files/tools/")
            assert told["download_uri"].endswith("&as_attachment=true")
            got = await client.get(told["download_uri"])
            assert len(got.content) == size
            assert got.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        for kind in ("file", "skill"):
            gone = await call(client, "POST", "download-request", config={"kind": kind, "name": "gone"})
            assert code_of(gone) == (404, f"config_{kind}_not_found")


async def test_a_skill_is_inspected() -> None:
    async with asking() as (_, client):
        await pushed(client)
        told = (await call(client, "GET", "skills/tables/inspect")).json()
        assert (told["skill_md"], told["paths"]) == (SKILL_MD, ["SKILL.md", "run.py"])
        assert code_of(await call(client, "GET", "skills/gone/inspect")) == (404, "config_skill_not_found")


async def test_names_without_a_reference_go() -> None:
    async with asking() as (_, client):
        await pushed(client)
        told = (await call(client, "POST", "push", files=[{"name": "notes.txt"}, {"name": "never"}])).json()
        assert told["files"]["items"] == []
        assert [item["name"] for item in told["skills"]["items"]] == ["tables"]
        assert (told["env_keys"], told["note"]) == (["A", "B"], "remember"), "what is left out stays"


async def test_env_and_note() -> None:
    async with asking() as (_, client):
        await pushed(client)
        assert (await call(client, "PATCH", "env", env_text="A=\nC=3")).json() == {"env_keys": ["B", "C"]}
        assert (await call(client, "PUT", "note", note="")).json() == {"note": ""}
        told = await manifest(client)
        assert (told["env_keys"], told["note"]) == (["B", "C"], "")
        assert code_of(await call(client, "PATCH", "env", env_text="1x=2")) == (400, "invalid_env_file")


@pytest.mark.parametrize("kind", ["draft", "snapshot"])
async def test_only_a_build_draft_is_changed(kind: str) -> None:
    async with asking() as (_, client):
        _, _, told = await pushed(client)
        for method, path, members in (
            ("POST", "push", {"note": "x"}),
            ("PATCH", "env", {"env_text": "A=2"}),
            ("PUT", "note", {"note": "x"}),
        ):
            response = await call(client, method, path, config_version_kind=kind, **members)
            assert code_of(response) == (403, "config_not_writable")
        assert await manifest(client) == told


@pytest.mark.parametrize(
    ("skill", "kind", "name", "status", "code"),
    [
        (TEXT, "tool_file", "tables", 500, "skill_archive_invalid"),
        (archive(README__md="x"), "tool_file", "tables", 500, "skill_archive_invalid"),
        (archive(SKILL__md="x"), "upload_file", "tables", 400, "invalid_skill_file_ref"),
        (archive(SKILL__md="x"), "tool_file", "Tables", 400, "invalid_request"),
        (None, "tool_file", "tables", 404, "source_not_found"),
    ],
)
async def test_a_push_is_all_or_nothing(skill: bytes | None, kind: str, name: str, status: int, code: str) -> None:
    async with asking() as (_, client):
        file = await uploaded(client)
        source = "gone" if skill is None else (await uploaded(client, skill, "t.zip", "application/zip"))["id"]
        files = [{"name": "n", "file_ref": {"kind": "tool_file", "id": file["id"]}}]
        skills = [{"name": name, "file_ref": {"kind": kind, "id": source}}]
        response = await call(client, "POST", "push", files=files, skills=skills, note="x")
        assert code_of(response) == (status, code)
        told = await manifest(client)
        assert (told["files"]["items"], told["note"]) == ([], "")


async def test_another_tenants_file_is_no_source() -> None:
    async with asking() as (_, client):
        file = await uploaded(client, tenant_id="t-2")
        files = [{"name": "n", "file_ref": {"kind": "tool_file", "id": file["id"]}}]
        assert code_of(await call(client, "POST", "push", files=files)) == (404, "source_not_found")


async def test_who_reads_and_who_writes() -> None:
    nobody = {name: value for name, value in VERSION.items() if name != "user_id"}
    async with asking() as (_, client):
        response = await client.get(f"{CONFIG}/manifest", params=nobody)
        assert code_of(response) == (400, "missing_user_id")
        snapshot = {**nobody, "config_version_kind": "snapshot"}
        assert (await client.get(f"{CONFIG}/manifest", params=snapshot)).status_code == 200
        response = await client.put(f"{CONFIG}/note", json={**nobody, "note": "x"})
        assert code_of(response) == (400, "invalid_request")


@pytest.mark.parametrize("path", PATHS)
async def test_keys_methods_and_bodies(path: str) -> None:
    methods = {"manifest": "GET", "skills/x/inspect": "GET", "env": "PATCH", "note": "PUT"}
    method = methods.get(path, "POST")
    async with asking() as (fakes, client):
        wrong = await client.request(method, f"{CONFIG}/{path}", headers={"X-Inner-Api-Key": f"{INNER_KEY}x"})
        assert code_of(wrong) == (404, "not_found")
        assert code_of(await client.request("DELETE", f"{CONFIG}/{path}")) == (404, "not_found")
        for broken in ({"config_version_kind": "other"}, {"tenant_id": ""}, {"extra": "1"}):
            assert code_of(await call(client, method, path, **broken)) == (400, "invalid_request")
        assert fakes.requests.total == 5
        assert all(request.path == f"{CONFIG}/{path}" for request in fakes.requests)


async def test_scripted_failures() -> None:
    error = {"status": 404, "code": "agent_not_found", "message": "no such agent"}
    script = {"agent_stub": [{"path": "/agent-1/", "steps": [{"http_error": error}, {}]}]}
    async with asking(script) as (_, client):
        assert code_of(await call(client, "PUT", "note", note="x")) == (404, "agent_not_found")
        assert (await manifest(client))["note"] == ""


def test_env_lines() -> None:
    text = "\n# a comment\nexport A=1\nB = x y \nC=a=b\nD=\r\nE="
    assert changed_env({"D": "4", "Z": "9"}, text) == {"Z": "9", "A": "1", "B": " x y", "C": "a=b"}
    for wrong in ("A", "=1", "a b=1", "é=1", "9a=1"):
        with pytest.raises(Refused, match="line 1"):
            changed_env({}, wrong)
