"""File arguments of plugin tools: from what a model can name to what a plugin can read (specification: integrations
4.2)."""

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, model_validator

from dify_agent.backends.replies import MAX_ERROR_CHARS
from dify_agent.backends.transport import OutboundHttp
from dify_agent.errors import DifyAgentError
from dify_agent.layers.execution_context import DifyExecutionContextLayerConfig
from dify_agent.layers.inner_api import BAD_REQUEST, InnerCallError, post_inner
from dify_agent.layers.sandbox import SandboxLayer

FILE_IDENTITY: Final = "__dify__file__"
"""By this the plugin's SDK knows a file among its parameters."""
UNKNOWN_SIZE: Final = -1

PluginFile: TypeAlias = dict[str, Any]
"""``dify_model_identity``, ``type``, ``url``, and what is known of ``filename``, ``mime_type``, ``extension``,
``size``."""

_REFERENCED: Final = ("local_file", "tool_file", "datasource_file")
_MEDIA_TYPES: Final = mimetypes.MimeTypes()
"""Python's own table. The functions of `mimetypes` would read the host's files, and answer by them."""
_DETAILS: Final = {"filename": str, "mime_type": str, "extension": str, "size": int}


class PluginFileError(DifyAgentError):
    """Dify API gave no file for a reference; the call of the tool is given up, the run goes on."""


class _ResolvedFile(BaseModel):
    filename: str | None = None
    mime_type: str | None = None
    size: int | None = None
    download_url: str = Field(min_length=1)


class _Resolution(BaseModel):
    data: _ResolvedFile | None = None
    error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _keep_the_error(cls, value: Any) -> Any:
        """What stands beside an error need not be a file: the error is what the model is told."""
        return {**value, "data": None} if isinstance(value, dict) and value.get("error") else value


@dataclass(frozen=True, slots=True)
class FileResolver:
    """Makes files for one tool, on behalf of the run's user."""

    outbound: OutboundHttp
    context: DifyExecutionContextLayerConfig
    sandbox: SandboxLayer[Any, Any, Any, Any] | None

    async def resolve(self, value: Any) -> PluginFile:
        """The file that ``value`` stands for: a URL, a path in the sandbox, or a mapping.

        Raises:
            ValueError: it stands for none, or the run has no sandbox or no user; the model reads the text.
            PluginFileError: Dify API did not hand the file out.
        """
        if isinstance(value, str):
            return await self._named(value)
        if isinstance(value, Mapping):
            return await self._described(value)
        raise ValueError("a file is a URL, a path, or an object with transfer_method and url or reference")

    async def _named(self, name: str) -> PluginFile:
        if name.lower().startswith(("http://", "https://")):
            return _remote_file(name, {})
        if not name.strip():
            raise ValueError("a file needs a URL or a path, got an empty text")
        if self.sandbox is None:
            raise ValueError("a path can be a file only in a run with a shell; give a URL or a file reference instead")
        printed = await self.sandbox.upload_file(name)
        if printed.get("transfer_method") != "tool_file":
            raise ValueError("the upload of the path did not yield a file")
        return await self._described(printed)

    async def _described(self, value: Mapping[str, Any]) -> PluginFile:
        method, url, reference = (value.get(key) for key in ("transfer_method", "url", "reference"))
        has_url = isinstance(url, str) and bool(url)
        if method is None and has_url:
            return _plugin_file(value, url=url)
        if method == "remote_url" and has_url:
            return _remote_file(str(url), value)
        if method in _REFERENCED and isinstance(reference, str) and reference:
            return _plugin_file(value, **await self._resolved(str(method), reference))
        raise ValueError(
            "a file object needs a url, or transfer_method 'remote_url' with a url, "
            f"or one of {', '.join(_REFERENCED)} with a reference"
        )

    async def _resolved(self, method: str, reference: str) -> PluginFile:
        context = self.context
        if context.user_id is None or context.user_from is None:
            raise ValueError("file references need user_id and user_from in the execution context")
        body = {
            "tenant_id": context.tenant_id,
            "user_id": context.user_id,
            "user_from": context.user_from,
            "invoke_from": context.invoke_from,
            "file": {"transfer_method": method, "reference": reference},
        }
        try:
            resolution = await post_inner(self.outbound, "/download/file/request", body, _Resolution)
        except InnerCallError as error:
            if error.status == BAD_REQUEST:
                raise ValueError(str(error)) from error
            raise PluginFileError(f"the file could not be fetched: {error}") from error
        if resolution.error or resolution.data is None:
            stated = resolution.error or "Dify API gave no URL"
            problem = self.outbound.redactor.redact_error(stated)[:MAX_ERROR_CHARS]
            raise PluginFileError(f"the file could not be fetched: {problem}")
        found = resolution.data
        details = {**_name_details(found.filename), "mime_type": found.mime_type, "size": found.size}
        return {"url": found.download_url, **{key: item for key, item in details.items() if item is not None}}


def _remote_file(url: str, given: Mapping[str, Any]) -> PluginFile:
    """A file at a URL, described by its last path segment where ``given`` does not say otherwise."""
    # Decoded first, so that an escaped slash makes no path of the name.
    details = _name_details(unquote(urlsplit(url).path))
    if details and (guessed := _MEDIA_TYPES.guess_type(details["filename"])[0]):
        details["mime_type"] = guessed
    return _plugin_file(given, **{"url": url, "size": UNKNOWN_SIZE, **details, **_given_details(given)})


def _name_details(path: str | None) -> PluginFile:
    """The last segment of ``path`` as name, with its extension: a plugin may write the file under its name."""
    name = PurePosixPath((path or "").replace("\\", "/")).name
    if not name or name == "..":
        return {}
    extension = PurePosixPath(name).suffix
    return {"filename": name, "extension": extension} if extension else {"filename": name}


def _plugin_file(given: Mapping[str, Any], **known: Any) -> PluginFile:
    kind = given.get("type")
    return {
        "dify_model_identity": FILE_IDENTITY,
        "type": kind if isinstance(kind, str) and kind else "custom",
        **_given_details(given),
        **known,
    }


def _given_details(given: Mapping[str, Any]) -> PluginFile:
    """What the caller said of the file, as far as it has the right type."""
    name = given.get("filename")
    named = _name_details(name) if isinstance(name, str) else {}
    details = {**{key: given.get(key) for key in _DETAILS}, "filename": named.get("filename")}
    return {key: item for key, item in details.items() if type(item) is _DETAILS[key] and item != ""}
