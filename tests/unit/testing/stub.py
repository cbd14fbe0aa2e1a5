"""What the Agent Stub and a sandbox ask the fakes for."""

from typing import Any

import httpx2

UPLOAD_REQUEST = "/inner/api/agent/files/upload-request"
DOWNLOAD_REQUEST = "/inner/api/agent/files/download-request"
CONFIG = "/inner/api/agent-config/agent-1"
UPLOAD_BODY = {
    "tenant_id": "t-1",
    "user_id": "u-1",
    "user_from": None,
    "filename": "notes é.txt",
    "mimetype": "text/plain",
    "max_size": 100,
    "conversation_id": None,
}
VERSION = {"tenant_id": "t-1", "config_version_id": "v-1", "config_version_kind": "build_draft", "user_id": "u-1"}
TEXT = b"line\r\none\n\0\xff"


def download_body(for_frontend: bool = False, tenant_id: str = "t-1", **file: Any) -> dict[str, Any]:
    identity = {"tenant_id": tenant_id, "user_id": "u-1", "user_from": "end-user", "invoke_from": "web-app"}
    return {**identity, "file": file, "for_frontend": for_frontend}


async def upload_uri(client: httpx2.AsyncClient, **body: Any) -> str:
    response = await client.post(UPLOAD_REQUEST, json={**UPLOAD_BODY, **body})
    assert response.status_code == 200, response.text
    return str(response.json()["upload_uri"])


async def send_file(
    client: httpx2.AsyncClient,
    uri: str,
    data: bytes = TEXT,
    name: str = "notes é.txt",
    mime_type: str = "text/plain",
) -> httpx2.Response:
    """As a sandbox does: without any key."""
    return await client.post(uri, files={"file": (name, data, mime_type)}, headers={"X-Inner-Api-Key": ""})


async def uploaded(
    client: httpx2.AsyncClient,
    data: bytes = TEXT,
    name: str = "notes é.txt",
    mime_type: str = "text/plain",
    **body: Any,
) -> dict[str, Any]:
    """A stored file, as the upload told of it."""
    uri = await upload_uri(client, filename=name, mimetype=mime_type, **{"max_size": len(data), **body})
    response = await send_file(client, uri, data, name, mime_type)
    assert response.status_code == 201, response.text
    return dict(response.json())


async def link_to(client: httpx2.AsyncClient, reference: str, **more: Any) -> dict[str, Any]:
    body = download_body(transfer_method="tool_file", reference=reference, **more)
    response = await client.post(DOWNLOAD_REQUEST, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def code_of(response: httpx2.Response) -> tuple[int, str]:
    assert response.json()["status"] == response.status_code
    return response.status_code, response.json()["code"]
