"""What every DTO of the run protocol has in common: strict members, UTC timestamps."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict


class WireModel(BaseModel):
    """Base of all DTOs. An unknown member is an error, on the way in and on the way back (quirk Q1)."""

    model_config = ConfigDict(extra="forbid")


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


def _to_utc(value: datetime) -> datetime:
    """Read a zoneless time as UTC and move any other zone to UTC, so that JSON output always ends in ``Z``."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


UtcDatetime = Annotated[datetime, AfterValidator(_to_utc)]
"""A point in time. Any ISO 8601 form is read; JSON output is RFC 3339 with ``Z`` and six fraction digits, or none when
the microseconds are zero (quirk Q11)."""

ZonedUtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""As `UtcDatetime`, for members that must carry a zone."""
