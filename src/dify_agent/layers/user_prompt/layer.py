"""The layer behind `dify.user_prompt`."""

from binascii import a2b_base64
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Final, Self

from pydantic_ai.messages import BinaryImage, ImageUrl, UserContent
from pydantic_core import to_json

from agenton.layers import NoLayerDeps, PydanticAILayer, PydanticAIUserPrompt
from dify_agent.layers.user_prompt import (
    DIFY_USER_PROMPT_LAYER_TYPE_ID,
    DifyUserPromptDownloadFileConfig,
    DifyUserPromptImageFileConfig,
    DifyUserPromptLayerConfig,
)

_DOWNLOAD_NOTE: Final = (
    "The user also attached the files below, whose content is not part of this message. Where a shell is available, "
    "`dify-agent file download <transfer_method> <reference or url>` fetches one."
)
_NAMELESS: Final = "image"


class DifyUserPromptLayer(PydanticAILayer[NoLayerDeps, None, DifyUserPromptLayerConfig]):
    """Contributes the text, with the files to download listed behind it, and then one item per image."""

    type_id: ClassVar[str | None] = DIFY_USER_PROMPT_LAYER_TYPE_ID

    @classmethod
    def from_config(cls, config: DifyUserPromptLayerConfig) -> Self:
        """Build the layer; the provider hands it its ``config``."""
        return cls()

    @property
    def user_prompts(self) -> Sequence[PydanticAIUserPrompt]:
        """The text, then the images in the order of the config."""
        return self._content

    @cached_property
    def _content(self) -> tuple[UserContent, ...]:
        # Made when it is first asked for: a cleanup run never decodes the images.
        files = self.config.files
        downloads = [file for file in files if isinstance(file, DifyUserPromptDownloadFileConfig)]
        images = [_image(file) for file in files if isinstance(file, DifyUserPromptImageFileConfig)]
        return (_text(self.config.text, downloads), *images)


def _text(text: str, downloads: Sequence[DifyUserPromptDownloadFileConfig]) -> str:
    if not downloads:
        return text
    locators = [file.model_dump(exclude={"delivery"}, exclude_none=True) for file in downloads]
    return f"{text}\n\n{_DOWNLOAD_NOTE}\n{to_json(locators).decode()}"


def _image(file: DifyUserPromptImageFileConfig) -> ImageUrl | BinaryImage:
    metadata: dict[str, str] = {"filename": file.filename}
    if file.detail is not None:
        metadata["detail"] = file.detail
    identifier = _identifier(file.filename, file.format)
    if file.url is not None:
        return ImageUrl(file.url, media_type=file.mime_type, identifier=identifier, vendor_metadata=metadata)
    assert file.base64_data is not None, "the config has exactly one of the two"
    # The subclass of BinaryContent that a stored history is read back as, so that a resumed run holds equal messages.
    data = a2b_base64(file.base64_data)
    return BinaryImage(data, media_type=file.mime_type, identifier=identifier, vendor_metadata=metadata)


def _identifier(filename: str, extension: str) -> str:
    suffix = f".{extension}"
    stem, tail = filename[: -len(suffix)], filename[-len(suffix) :]
    return (stem if tail.lower() == suffix.lower() else filename) or _NAMELESS
