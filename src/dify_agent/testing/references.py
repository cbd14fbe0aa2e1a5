"""Canonical file references: ``dify-file-ref:`` and the base64 of a JSON object (integrations 9.3)."""

import json
from base64 import b64decode, urlsafe_b64encode
from typing import Final

PREFIX: Final = "dify-file-ref:"


def reference_to(record_id: str) -> str:
    """The reference of a record."""
    text = json.dumps({"record_id": record_id}, separators=(",", ":"))
    return PREFIX + urlsafe_b64encode(text.encode()).decode()


def record_of(reference: str) -> str:
    """The record that a reference names.

    Raises:
        ValueError: it is no canonical reference.
    """
    problem = "the reference is not canonical"
    if not reference.startswith(PREFIX):
        raise ValueError(problem)
    try:
        value = json.loads(b64decode(reference.removeprefix(PREFIX), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise ValueError(problem) from None
    record_id = value.get("record_id") if isinstance(value, dict) else None
    if not isinstance(record_id, str) or not record_id:
        raise ValueError(problem)
    return record_id
