"""Terminal transitions as the store takes them: the record's last text and the event's payload."""

from datetime import datetime

from pydantic_core import from_json

from agenton.compositor import CompositorSessionSnapshot
from dify_agent.actors.messages import Failed, Succeeded
from dify_agent.events import envelope
from dify_agent.events.json_text import encode
from dify_agent.protocol.schemas import (
    AgentRunUsage,
    RunCancelledEventData,
    RunFailedEventData,
    RunFailureType,
    RunStatus,
    RunStatusResponse,
    RunSucceededEventData,
)
from dify_agent.store.base import CancelIntent, Terminal

UNWRITABLE = (ValueError, RecursionError)
"""What serialising raises for values that contain themselves or are nested too deeply."""


def success_terminal(
    record: RunStatusResponse,
    now: datetime,
    ending: Succeeded,
    snapshot: CompositorSessionSnapshot,
    usage: AgentRunUsage | None,
) -> Terminal:
    """The run has a result; raises one of `UNWRITABLE` when it is no JSON."""
    if ending.deferred is not None:
        data = RunSucceededEventData(deferred_tool_call=ending.deferred, session_snapshot=snapshot, usage=usage)
    else:
        data = RunSucceededEventData(output=ending.output, session_snapshot=snapshot, usage=usage)
    return _terminal(record, "succeeded", now, envelope.run_succeeded(record.run_id, now, data))


def failure_terminal(
    record: RunStatusResponse,
    now: datetime,
    ending: Failed,
    snapshot: CompositorSessionSnapshot | None = None,
    usage: AgentRunUsage | None = None,
) -> Terminal:
    """The run failed; raises one of `UNWRITABLE` when the snapshot is no JSON."""
    data = RunFailedEventData(
        error=ending.error,
        error_type=ending.error_type,
        reason=ending.reason,
        session_snapshot=snapshot,
        usage=usage,
    )
    payload = envelope.run_failed(record.run_id, now, data)
    return _terminal(record, "failed", now, payload, error=ending.error, error_type=ending.error_type)


def cancellation_terminal(
    record: RunStatusResponse,
    now: datetime,
    intent: CancelIntent,
    snapshot: CompositorSessionSnapshot | None = None,
    usage: AgentRunUsage | None = None,
) -> Terminal:
    """The run was cancelled. A snapshot that is no JSON is left out."""
    data = RunCancelledEventData(reason=intent.reason, message=intent.message, session_snapshot=snapshot, usage=usage)
    try:
        payload = envelope.run_cancelled(record.run_id, now, data)
    except UNWRITABLE:
        payload = envelope.run_cancelled(record.run_id, now, data.model_copy(update={"session_snapshot": None}))
    return _terminal(record, "cancelled", now, payload, error=intent.message or intent.reason)


def _terminal(
    record: RunStatusResponse,
    status: RunStatus,
    now: datetime,
    payload: bytes,
    *,
    error: str | None = None,
    error_type: RunFailureType | None = None,
) -> Terminal:
    if error is not None:
        error = from_json(encode(error))  # as the event has it: an error's text may hold what UTF-8 cannot
    changes = {"status": status, "updated_at": now, "error": error, "error_type": error_type}
    ended = record.model_copy(update=changes)
    return Terminal(record.run_id, ended, payload, int(now.timestamp() * 1000))
