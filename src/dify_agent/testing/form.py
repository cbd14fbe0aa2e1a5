"""The file in a multipart form."""

from typing import NamedTuple

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, File, MultipartDecoder, NeedData

_MAX_PARTS = 100


class FormFile(NamedTuple):
    """A file as a client sends it."""

    name: str
    mime_type: str
    """Without parameters; empty when the part has none."""
    data: bytes


def form_file(content_type: str, body: bytes, field: str) -> FormFile | None:
    """The first file of a form's field; None where the body is no form or has none there."""
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data" or not options.get("boundary"):
        return None
    decoder = MultipartDecoder(options["boundary"].encode(), max_parts=_MAX_PARTS)
    decoder.receive_data(body)
    decoder.receive_data(None)
    try:
        return _first_file(decoder, field)
    except (ValueError, RequestEntityTooLarge):
        return None


def _first_file(decoder: MultipartDecoder, field: str) -> FormFile | None:
    found: File | None = None
    pieces: list[bytes] = []
    while not isinstance(event := decoder.next_event(), Epilogue | NeedData):
        if found is None:
            found = event if isinstance(event, File) and event.name == field else None
        elif isinstance(event, Data):
            pieces.append(event.data)
            if not event.more_data:
                mime_type, _ = parse_options_header(found.headers.get("content-type", ""))
                return FormFile(found.filename, mime_type, b"".join(pieces))
    return None
