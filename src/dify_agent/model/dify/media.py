"""Files in messages: to Dify's prompt parts (integrations 3.4, 3.5)."""

from typing import Any

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import AudioUrl, BinaryContent, DocumentUrl, ImageUrl, MultiModalContent, VideoUrl


def media_part(content: MultiModalContent) -> dict[str, Any]:
    """The prompt part of a file.

    Raises:
        UnexpectedModelBehavior: Dify has no part for it.
    """
    match content:
        case ImageUrl():
            kind = "image"
        case AudioUrl():
            kind = "audio"
        case VideoUrl():
            kind = "video"
        case DocumentUrl():
            kind = "document"
        case BinaryContent():
            return _part(_binary_kind(content), content, base64_data=content.base64)
        case _:
            raise UnexpectedModelBehavior(f"Dify models take no {type(content).__name__}; the model was not asked")
    return _part(kind, content, url=content.url)


def _part(kind: str, content: Any, *, url: str = "", base64_data: str = "") -> dict[str, Any]:
    media_type, extension = _media_type(content)
    part = {"type": kind, "format": extension, "base64_data": base64_data, "url": url, "mime_type": media_type}
    if kind == "image":
        metadata = content.vendor_metadata or {}
        return {**part, "filename": "", "detail": "high" if metadata.get("detail") == "high" else "low"}
    return {**part, "filename": f"{content.identifier}.{extension}" if extension else content.identifier}


def _media_type(content: Any) -> tuple[str, str]:
    """Media type and format; empty for an address that shows neither, such as a signed one."""
    try:
        return content.media_type, content.format
    except ValueError:
        return "", ""


def _binary_kind(content: BinaryContent) -> str:
    if content.is_image:
        return "image"
    if content.is_audio:
        return "audio"
    if content.is_video:
        return "video"
    if content.is_document:
        return "document"
    raise UnexpectedModelBehavior(f"Dify models take no files of type {content.media_type}; the model was not asked")
