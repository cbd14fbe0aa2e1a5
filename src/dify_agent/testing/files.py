"""The fake Dify API's files: what the Agent Stub asks for, and the data plane (integrations 9.4, 9.6, 9.7).

A file belongs to the tenant it was uploaded for. Any transfer method finds it by its reference.
"""

import mimetypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from uuid import uuid4

from dify_agent.testing.answers import Answer, json_answer
from dify_agent.testing.form import FormFile, form_file
from dify_agent.testing.kept import KeptState, text_bytes
from dify_agent.testing.record import RecordedRequest
from dify_agent.testing.references import record_of, reference_to
from dify_agent.testing.refusals import Refused, parsed, refusal
from dify_agent.testing.signing import UrlSigner, forbidden
from dify_agent.testing.stub_requests import FileDownloadRequest, UploadRequest

DATA_PLANE: Final = "/files/"
"""Paths that need a signed URL and no key."""
UPLOAD: Final = "/files/upload/for-plugin"
UPLOAD_REQUEST: Final = "/inner/api/agent/files/upload-request"
DOWNLOAD_REQUEST: Final = "/inner/api/agent/files/download-request"
UNKNOWN_SIZE: Final = -1

_MEDIA_TYPES: Final = mimetypes.MimeTypes()
"""Python's own table: the same on every host."""
_TOOL_FILE: Final = re.compile(r"/files/tools/([0-9a-f-]{36})\.[^/]+")

Act = Callable[[], Answer]
"""What an endpoint does when no step of the script answers in its place."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uploaded file."""

    id: str
    tenant_id: str
    name: str
    mime_type: str
    data: bytes = field(repr=False)

    @property
    def kept_bytes(self) -> int:
        """Of data and names."""
        return len(self.data) + text_bytes(self.tenant_id, self.name, self.mime_type)

    @property
    def extension(self) -> str:
        """With its dot."""
        return PurePosixPath(self.name).suffix or _MEDIA_TYPES.guess_extension(self.mime_type) or ".bin"

    @property
    def reference(self) -> str:
        """By which others name it."""
        return reference_to(self.id)


class FakeFiles:
    """Hands out signed URLs, takes bytes and gives them back."""

    def __init__(self, state: KeptState, signer: UrlSigner | None = None) -> None:
        self._state = state
        self._signer = UrlSigner() if signer is None else signer
        self._endpoints: dict[str, Callable[[RecordedRequest], Act]] = {
            UPLOAD_REQUEST: self._upload_request,
            DOWNLOAD_REQUEST: self._download_request,
            UPLOAD: self._upload,
        }

    def act(self, request: RecordedRequest) -> Act | None:
        """What to do for a request; None for a path that is not of files.

        Raises:
            Refused: another method, or a body that does not fit.
        """
        if (found := _TOOL_FILE.fullmatch(request.path)) is not None:
            _check_method(request, "GET")
            return partial(self._download, found[1], _query(request))
        endpoint = self._endpoints.get(request.path)
        if endpoint is None:
            return None
        _check_method(request, "POST")
        return endpoint(request)

    def find(self, reference: str, tenant_id: str) -> StoredFile | None:
        """The tenant's file behind a reference of any form, if it is still kept."""
        try:
            return self.stored(record_of(reference), tenant_id)
        except ValueError:
            return None

    def stored(self, file_id: str, tenant_id: str) -> StoredFile | None:
        """The tenant's file, if it is still kept."""
        file = self._state.get(StoredFile, file_id)
        return file if file is not None and file.tenant_id == tenant_id else None

    def download_uri(self, file: StoredFile, *, as_attachment: bool = False) -> str:
        """A signed URI, relative to the root of the data plane."""
        path = f"/files/tools/{file.id}{quote(file.extension)}"
        return self._signer.signed(path, ("download", file.id), as_attachment="true" if as_attachment else None)

    def _upload_request(self, request: RecordedRequest) -> Act:
        return partial(self._sign_upload, parsed(UploadRequest, request.raw_body))

    def _sign_upload(self, asked: UploadRequest) -> Answer:
        query = {"tenant_id": asked.tenant_id, "user_id": asked.user_id, "max_size": str(asked.max_size)}
        query |= {"user_from": asked.user_from} if asked.user_from else {}
        query |= {"conversation_id": asked.conversation_id} if asked.conversation_id else {}
        bound = _upload_bound(query, asked.filename, asked.mimetype)
        return json_answer({"upload_uri": self._signer.signed(UPLOAD, bound, **query)})

    def _upload(self, request: RecordedRequest) -> Act:
        form = form_file(request.headers.get("content-type", ""), request.raw_body, "file")
        return partial(self._store, _query(request), form)

    def _store(self, query: dict[str, str], form: FormFile | None) -> Answer:
        if form is None:
            raise forbidden("the form has no field 'file' with a file")
        self._signer.check(query, _upload_bound(query, form.name, form.mime_type))
        if len(form.data) > int(query["max_size"]):
            raise refusal(413, "file_too_large", f"the file has more than {query['max_size']} bytes")
        file = StoredFile(str(uuid4()), query["tenant_id"], form.name, form.mime_type, form.data)
        self._state.put(file.id, file)
        return json_answer(
            {
                "id": file.id,
                "reference": file.reference,
                "name": file.name,
                "size": len(file.data),
                "extension": file.extension,
                "mime_type": file.mime_type,
                "preview_url": self.download_uri(file),
            },
            201,
        )

    def _download_request(self, request: RecordedRequest) -> Act:
        return partial(self._sign_download, parsed(FileDownloadRequest, request.raw_body), public_root(request))

    def _sign_download(self, asked: FileDownloadRequest, root: str) -> Answer:
        if asked.file.transfer_method == "remote_url":
            name = PurePosixPath(unquote(urlsplit(asked.file.url).path)).name or "file"
            mime_type = _MEDIA_TYPES.guess_type(name)[0] or "application/octet-stream"
            return _download_answer(name, mime_type, UNKNOWN_SIZE, asked.file.url)
        file = self.find(asked.file.reference, asked.tenant_id)
        if file is None:
            raise refusal(404, "file_not_accessible", "there is no such file")
        uri = self.download_uri(file)
        return self.download_answer(file, f"{root}{uri}" if asked.for_frontend else uri)

    def download_answer(self, file: StoredFile, uri: str) -> Answer:
        """What a request for a URL is answered with."""
        return _download_answer(file.name, file.mime_type, len(file.data), uri)

    def _download(self, file_id: str, query: dict[str, str]) -> Answer:
        self._signer.check(query, ("download", file_id))
        file = self._state.get(StoredFile, file_id)
        if file is None:
            raise not_found("the file is gone")
        answer = Answer(content_type=file.mime_type.encode(), frames=(file.data,))
        if query.get("as_attachment") != "true":
            return answer
        disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        return replace(answer, headers=((b"content-disposition", disposition.encode()),))


def public_root(request: RecordedRequest) -> str:
    """Where the caller has reached the fakes: the root of URLs for a browser."""
    return f"http://{request.headers.get('host', 'localhost')}"


def not_found(message: str) -> Refused:
    """For what has no code of its own."""
    return refusal(404, "not_found", message)


def _query(request: RecordedRequest) -> dict[str, str]:
    return dict(parse_qsl(request.query, keep_blank_values=True))


def _upload_bound(query: dict[str, str], filename: str, mime_type: str) -> tuple[str, ...]:
    names = ("tenant_id", "user_id", "user_from", "conversation_id", "max_size")
    return ("upload", filename, mime_type, *(query.get(name, "") for name in names))


def _download_answer(name: str, mime_type: str, size: int, uri: str) -> Answer:
    return json_answer({"filename": name, "mime_type": mime_type, "size": size, "download_uri": uri})


def _check_method(request: RecordedRequest, method: str) -> None:
    if request.method != method:
        raise refusal(405, "method_not_allowed", f"{request.method} is not allowed")
