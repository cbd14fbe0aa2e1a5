"""What a plugin tool says, item by item, and the one text the model reads of it (specification: integrations 4.3).

Nothing here waits. Files are counted, not kept: the model reads a note that there is one.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dify_agent.layers.inner_api import brief

MAX_CHUNK_BYTES: Final = 8192
"""Of one decoded ``blob_chunk``; the daemon's own limit."""
MAX_FILE_BYTES: Final = 30 << 20
"""Of one file put together from chunks."""
MAX_OPEN_FILES: Final = 1000
"""Files that have begun and not ended. The specification sets none; each is remembered by its id."""
MAX_TEXT_BYTES: Final = 4 << 20
"""Of all that becomes the observation. The specification sets none; no model has room for more, and the text is stored
in the history and in an event."""

_LINK: Final = "result link: {url}. please tell user to check it."
_IMAGE: Final = "The image has been created and already sent to the user; tell the user to look at it. "


class ToolMessage(BaseModel):
    """One item of a tool's reply."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    type: Literal[
        "text", "link", "image", "image_link", "json", "variable", "blob", "blob_chunk", "file", "log", "binary_link"
    ] = "text"
    message: dict[str, Any]
    meta: dict[str, Any] | None = None


class Observation:
    """Collects the items of one reply, in order of arrival."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._json_parts: list[str] = []
        self._open_files: dict[str, int] = {}
        self._size = 0

    def add(self, item: Any) -> None:
        """Take one item.

        Raises:
            ValueError: it is no tool message, or a file or the text is too large.
        """
        try:
            message = ToolMessage.model_validate(item)
        except ValidationError as error:
            raise ValueError(f"the tool's reply has an item that is no tool message ({brief(error)})") from error
        _TAKERS.get(message.type, Observation._dump)(self, message)

    def text(self) -> str:
        """The texts in order, then each JSON text that was not among them."""
        seen = set(self._parts)
        extra = [part for part in dict.fromkeys(self._json_parts) if part not in seen]
        return "".join([*self._parts, *extra])

    def _say(self, part: str, parts: list[str] | None = None) -> None:
        self._size += len(part.encode(errors="replace"))
        if self._size > MAX_TEXT_BYTES:
            raise ValueError(f"the tool's reply has more than {MAX_TEXT_BYTES} bytes of text")
        (self._parts if parts is None else parts).append(part)

    def _text(self, message: ToolMessage) -> None:
        self._say(_member(message, "text"))

    def _link(self, message: ToolMessage) -> None:
        self._say(_LINK.format(url=_member(message, "text")))

    def _image(self, message: ToolMessage) -> None:
        _member(message, "text")
        self._say(_IMAGE)

    def _json(self, message: ToolMessage) -> None:
        payload = message.message.get("json_object", message.message)
        if not isinstance(payload, dict | list):
            raise ValueError("the tool's reply has a json item whose json_object is neither an object nor a list")
        if message.message.get("suppress_output") is not True:
            self._say(_json_text(payload), self._json_parts)

    def _nothing(self, message: ToolMessage) -> None:
        """A variable is for workflows."""

    def _blob(self, message: ToolMessage) -> None:
        size = len(_decoded(message))
        if size > MAX_FILE_BYTES:
            raise _file_too_large()
        self._file(size, message.meta)

    def _blob_chunk(self, message: ToolMessage) -> None:
        key = str(message.message.get("id", ""))
        size = len(_decoded(message)) if message.message.get("blob") else 0
        if size > MAX_CHUNK_BYTES:
            raise ValueError(f"the tool sent a file chunk of more than {MAX_CHUNK_BYTES} bytes")
        total = self._open_files.get(key, 0) + size
        if total > MAX_FILE_BYTES:
            raise _file_too_large()
        if key not in self._open_files and len(self._open_files) >= MAX_OPEN_FILES:
            raise ValueError(f"the tool sends more than {MAX_OPEN_FILES} files at the same time")
        self._open_files[key] = total
        if message.message.get("end") is True:
            self._file(self._open_files.pop(key), message.meta)

    def _file(self, size: int, meta: Mapping[str, Any] | None) -> None:
        known = [str(meta[key]) for key in ("filename", "mime_type") if meta and isinstance(meta.get(key), str)]
        self._say(f"[the tool returned a file: {', '.join([*known, f'{size} bytes'])}]")

    def _dump(self, message: ToolMessage) -> None:
        self._say(_json_text(message.message))


_TAKERS: Final[Mapping[str, Callable[[Observation, ToolMessage], None]]] = {
    "text": Observation._text,
    "link": Observation._link,
    "image": Observation._image,
    "image_link": Observation._image,
    "json": Observation._json,
    "variable": Observation._nothing,
    "blob": Observation._blob,
    "blob_chunk": Observation._blob_chunk,
}


def _member(message: ToolMessage, name: str) -> str:
    value = message.message.get(name)
    if not isinstance(value, str):
        raise ValueError(f"the tool's reply has a {message.type} item without a '{name}' that is a text")
    return value


def _decoded(message: ToolMessage) -> bytes:
    try:
        return b64decode(_member(message, "blob"), validate=True)
    except ValueError as error:
        raise ValueError(f"the tool's reply has a {message.type} item that is not base64") from error


def _json_text(value: Any) -> str:
    # The separators are those of Python's default, which a plugin's own `json.dumps` has: that is how a tool that
    # says the same as text and as JSON is recognised.
    return json.dumps(value, ensure_ascii=False)


def _file_too_large() -> ValueError:
    return ValueError(f"the tool sent a file of more than {MAX_FILE_BYTES} bytes")
