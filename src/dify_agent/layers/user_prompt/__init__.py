"""`dify.user_prompt`: one user prompt of text, images and files to download (specification: layers 2.4)."""

import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, FailFast, Field, Tag, field_validator, model_validator

from agenton.layers import LayerConfig

__all__ = [
    "DIFY_USER_PROMPT_LAYER_TYPE_ID",
    "DifyUserPromptDownloadFileConfig",
    "DifyUserPromptFileConfig",
    "DifyUserPromptFileType",
    "DifyUserPromptImageDetail",
    "DifyUserPromptImageFileConfig",
    "DifyUserPromptLayerConfig",
    "DifyUserPromptTransferMethod",
]

MAX_FILES: Final = 1000
DIFY_USER_PROMPT_LAYER_TYPE_ID: Final = "dify.user_prompt"

DifyUserPromptImageDetail = Literal["low", "high"]
DifyUserPromptFileType = Literal["image", "document", "audio", "video", "custom"]
DifyUserPromptTransferMethod = Literal["remote_url", "local_file", "tool_file", "datasource_file"]

_NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]

_HTTP_URL: Final = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]++={0,2}")
"""Together with a length that is a multiple of four. One pass without a copy, in half the time of decoding; possessive,
so that a bad character at the end costs no second pass. ``binascii`` in strict mode takes ``abcd====``."""


class DifyUserPromptImageFileConfig(BaseModel):
    """An image that the model sees: at ``url``, which is passed on as it is, or in ``base64_data``.

    Raises:
        ValidationError: not exactly one of the two, another URL scheme, or text that is not canonical base64.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    delivery: Literal["multimodal"] = "multimodal"
    type: Literal["image"] = "image"
    filename: _NonEmpty
    mime_type: Annotated[str, Field(pattern=r"^image/[A-Za-z0-9.+-]+$")]
    format: _NonEmpty
    """The file name's extension, without the dot."""
    url: Annotated[str | None, Field(repr=False)] = None
    base64_data: Annotated[str | None, Field(repr=False)] = None
    """RFC 4648 section 4, padded, without line breaks. No image is empty, so this is neither."""
    detail: DifyUserPromptImageDetail | None = None
    """How closely the model looks, for providers that know the distinction."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not _HTTP_URL.match(url):
            raise ValueError("url must use http or https")
        return url

    @field_validator("base64_data")
    @classmethod
    def _check_base64(cls, data: str | None) -> str | None:
        if data is not None and (len(data) % 4 or not _BASE64.fullmatch(data)):
            raise ValueError("base64_data must be valid base64")
        return data

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.url is None) == (self.base64_data is None):
            raise ValueError("exactly one of url or base64_data must be provided")
        return self


class DifyUserPromptDownloadFileConfig(BaseModel):
    """A file that the model is told of and may download: by ``url`` (``remote_url``), else by ``reference``.

    Raises:
        ValidationError: the transfer method and the given locator do not go together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    delivery: Literal["download"]
    type: DifyUserPromptFileType
    transfer_method: DifyUserPromptTransferMethod
    url: _NonEmpty | None = None
    reference: _NonEmpty | None = None

    @model_validator(mode="after")
    def _check_locator(self) -> Self:
        wanted, other = ("url", "reference") if self.transfer_method == "remote_url" else ("reference", "url")
        if getattr(self, wanted) is None or getattr(self, other) is not None:
            raise ValueError(f"transfer_method {self.transfer_method} needs {wanted} and no {other}")
        return self


def _delivery(entry: Any) -> str | None:
    """The tag of a file entry, None for an unknown delivery. What cannot be an entry at all is reported as an image."""
    if isinstance(entry, dict):
        delivery = entry.get("delivery", "multimodal")
        return delivery if delivery in ("multimodal", "download") else None
    return "download" if isinstance(entry, DifyUserPromptDownloadFileConfig) else "multimodal"


DifyUserPromptFileConfig: TypeAlias = Annotated[
    Annotated[DifyUserPromptImageFileConfig, Tag("multimodal")]
    | Annotated[DifyUserPromptDownloadFileConfig, Tag("download")],
    Discriminator(
        _delivery,
        custom_error_type="file_delivery",
        custom_error_message="delivery must be 'multimodal' or 'download'",
    ),
]
"""One entry of ``files``; an entry without ``delivery`` is an image."""


class DifyUserPromptLayerConfig(LayerConfig):
    """The text, and the files that go with it in their order."""

    # A failed run keeps the error's text: it names the member, never the data, and stops at the first bad file.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    text: _NonEmpty
    files: Annotated[list[DifyUserPromptFileConfig], FailFast(), Field(max_length=MAX_FILES)] = Field(
        default_factory=list
    )
