"""What the store's values look like as text, and how they are read back.

Readers take whatever another program may have written: what cannot be read is told by None or by an error that is
named, never by whatever a decoder raises.
"""

import re
from datetime import UTC, datetime
from typing import Final, cast

from pydantic import BaseModel, ValidationError

from dify_agent.protocol.schemas import RunStatus, RunStatusResponse
from dify_agent.store.base import CancelIntent, Claim, ClaimUnreadableError, Owner, RecordUnreadableError

# ASCII digits only, and few enough for `int`: it refuses thousands of them.
_OWNER: Final = re.compile(r"([0-9]{1,20}):(.+)", re.DOTALL)


class _Intent(BaseModel, extra="forbid"):
    """The intent's JSON (protocol 5.3)."""

    reason: str | None
    message: str | None
    requested_at: datetime


def record_text(record: RunStatusResponse) -> str:
    """The record's JSON."""
    return record.model_dump_json()


def read_record(text: bytes) -> RunStatusResponse | None:
    """The record, or None for what is none."""
    try:
        return RunStatusResponse.model_validate_json(text)
    except ValidationError:
        return None


def require_record(run_id: str, key: str, text: bytes) -> RunStatusResponse:
    """The record that ``key`` holds.

    Raises:
        RecordUnreadableError: it is none.
    """
    record = read_record(text)
    if record is None:
        raise RecordUnreadableError(run_id, key)
    return record


def require_status(run_id: str, key: str, word: str) -> RunStatus:
    """A status that a script has read from the record that ``key`` holds.

    Raises:
        RecordUnreadableError: it is none.
    """
    if word not in ("running", "succeeded", "failed", "cancelled"):
        raise RecordUnreadableError(run_id, key)
    return cast("RunStatus", word)


def owner_text(owner: Owner) -> str:
    """``<epoch>:<owner id>``."""
    return f"{owner.epoch}:{owner.id}"


def read_owner(text: bytes) -> Owner | None:
    """The owner, or None for what is none."""
    try:
        found = _OWNER.fullmatch(text.decode())
    except UnicodeDecodeError:
        return None
    return None if found is None else Owner(found[2], int(found[1]))


def claim_text(claim: Claim) -> str:
    """``<run id>:<SHA-256 of the request>:<holder>``."""
    return f"{claim.run_id}:{claim.digest}:{claim.holder}"


def require_claim(key: str, text: bytes) -> Claim:
    """The claim that ``key`` holds.

    Raises:
        ClaimUnreadableError: it is none.
    """
    parts = text.decode("utf-8", "replace").split(":")
    if len(parts) != 3:
        raise ClaimUnreadableError(key)
    return Claim(*parts)


def intent_text(intent: CancelIntent) -> str:
    """The intent's JSON."""
    return _Intent(reason=intent.reason, message=intent.message, requested_at=intent.requested_at).model_dump_json()


def read_intent(text: bytes) -> CancelIntent:
    """The intent. What is none is somebody's wish to cancel all the same: an accepted cancel must not end as a
    success."""
    try:
        intent = _Intent.model_validate_json(text)
    except ValidationError:
        return CancelIntent(reason=None, message="the cancel intent is unreadable", requested_at=datetime.now(UTC))
    return CancelIntent(reason=intent.reason, message=intent.message, requested_at=intent.requested_at)
