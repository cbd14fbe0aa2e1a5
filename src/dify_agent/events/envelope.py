"""The exact JSON of each run event, as bytes, without its ``id``.

Events are stored as the text that readers get; only the id is spliced in when they leave. The member order is
``run_id``, ``created_at``, ``type``, ``data`` and, on ``pydantic_ai_event`` alone, ``agent_message_delta`` (protocol
2.8). What JSON cannot hold is replaced as ``events.json_text`` says. ``created_at`` is an aware datetime everywhere.
"""

from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    AgentStreamEvent,
    FinalResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    OutputToolCallEvent,
    OutputToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_core import SchemaSerializer

from dify_agent.events.json_text import encode
from dify_agent.protocol.schemas import AgentRunUsage, RunCancelledEventData, RunFailedEventData, RunSucceededEventData
from dify_agent.protocol.stream_events import text_of

PUBLISHED_KINDS: Final = frozenset(
    {
        "part_start",
        "part_delta",
        "part_end",
        "final_result",
        "function_tool_call",
        "function_tool_result",
        "output_tool_call",
        "output_tool_result",
        "builtin_tool_call",
        "builtin_tool_result",
    }
)
"""Values of ``event_kind`` that every generation of callers parses (protocol appendix B, decision R16)."""

_NEWER_PART_KINDS: Final = frozenset({"speech", "compaction"})
"""Parts inside published kinds that older callers' unions reject, hence treated as their events would be."""

_DELTA_EXTRAS: Final = tuple(
    f.name for f in fields(TextPartDelta) if f.name not in {"content_delta", "part_delta_kind"}
)
_delta_extras = attrgetter(*_DELTA_EXTRAS)
_NO_EXTRAS: Final = (None,) * len(_DELTA_EXTRAS)


_LINE_ENDS: Final = tuple((chr(code).encode(), b"\\u%04x" % code) for code in (0x85, 0x2028, 0x2029))


_serializers: dict[type, SchemaSerializer] = {}


def _serializer(event_class: type) -> SchemaSerializer:
    """Serializer of one event class: nearly half the cost of going through the union of all."""
    found = _serializers.get(event_class)
    if found is None:
        adapter: TypeAdapter[Any] = TypeAdapter(event_class)
        found = _serializers[event_class] = adapter.serializer
    return found


# Building one takes tens of milliseconds, in which no run would move: better at import than at the first event.
for _event_class in (
    PartStartEvent,
    PartDeltaEvent,
    PartEndEvent,
    FinalResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    OutputToolCallEvent,
    OutputToolResultEvent,
):
    _serializer(_event_class)


def _split_delta() -> tuple[bytes, bytes, bytes]:
    """A plain text delta's JSON around its two variables, index and text, as the installed Pydantic AI writes it."""
    event = PartDeltaEvent(index=0, delta=TextPartDelta(content_delta=""))
    before, after = encode(event, _serializer(PartDeltaEvent)).split(b'"content_delta":""')
    head, tail = before.split(b"0")
    return head, tail + b'"content_delta":', after


_DELTA_HEAD, _DELTA_MIDDLE, _DELTA_TAIL = _split_delta()
_DELTA_TAIL += b',"agent_message_delta":'


def agent_event(run_id: str, created_at: datetime, event: AgentStreamEvent) -> bytes | None:
    """A ``pydantic_ai_event``, or None when callers of some generation could not parse the event (decision R16).

    Raises:
        ValueError: a value inside contains itself, is nested too deeply, or has too long an integer.
    """
    if (
        type(event) is PartDeltaEvent
        and type(event.delta) is TextPartDelta
        and _delta_extras(event.delta) == _NO_EXTRAS
    ):
        return _text_delta(run_id, created_at, event.index, event.delta.content_delta)
    if event.event_kind not in PUBLISHED_KINDS or _has_newer_part(event):
        return None
    head = _head(run_id, created_at, b"pydantic_ai_event")
    return b'%b%b,"agent_message_delta":%b}' % (head, _event_data(event), encode(text_of(event)))


def run_started(run_id: str, created_at: datetime) -> bytes:
    """The first event of every run that executes."""
    return _head(run_id, created_at, b"run_started") + b"{}}"


def run_succeeded(run_id: str, created_at: datetime, data: RunSucceededEventData) -> bytes:
    """The terminal event of a success. Exactly one of ``output`` and ``deferred_tool_call`` is written."""
    branch = "output" if data.deferred_tool_call is None else "deferred_tool_call"
    members = (("session_snapshot", data.session_snapshot), (branch, getattr(data, branch)))
    return _terminal(run_id, created_at, b"run_succeeded", members, data.usage)


def run_failed(run_id: str, created_at: datetime, data: RunFailedEventData) -> bytes:
    """The terminal event of a failure. ``usage`` is left out when unknown (decision D3)."""
    names = ("error", "error_type", "reason", "session_snapshot")
    return _terminal(run_id, created_at, b"run_failed", ((name, getattr(data, name)) for name in names), data.usage)


def run_cancelled(run_id: str, created_at: datetime, data: RunCancelledEventData) -> bytes:
    """The terminal event of a cancellation. ``usage`` is left out when unknown (decision D3)."""
    names = ("reason", "message", "session_snapshot")
    return _terminal(run_id, created_at, b"run_cancelled", ((name, getattr(data, name)) for name in names), data.usage)


def splice_id(event_id: str, payload: bytes) -> bytes:
    """The event as readers get it: ``payload`` with ``id`` as its first member. ``event_id`` needs no escaping."""
    return b'{"id":"%b",%b' % (event_id.encode(), payload[1:])


def sse_frame(event_id: str, event_type: str, payload: bytes) -> bytes:
    """One server-sent event. ``payload`` is the stored text, without ``id``.

    The three characters that some readers take for line ends are escaped. That is safe on the bytes: in UTF-8 no
    character's encoding occurs inside another's, and outside its strings JSON has none of them.
    """
    data = splice_id(event_id, payload)
    if not data.isascii():  # a quarter of the cost where there is nothing to look for
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id.encode(), event_type.encode(), data)


def _text_delta(run_id: str, created_at: datetime, index: int, text: str) -> bytes:
    """The hot path, equal to the general one (a test compares them): half of all events are these."""
    content = encode(text)
    head = _head(run_id, created_at, b"pydantic_ai_event")
    return b"".join((head, _DELTA_HEAD, b"%d" % index, _DELTA_MIDDLE, content, _DELTA_TAIL, content, b"}"))


def _head(run_id: str, created_at: datetime, event_type: bytes) -> bytes:
    """Everything up to the value of ``data``."""
    return b'{"run_id":%b,"created_at":"%b","type":"%b","data":' % (encode(run_id), _timestamp(created_at), event_type)


def _timestamp(moment: datetime) -> bytes:
    """RFC 3339 in UTC with ``Z``, without a fraction when the microseconds are zero (protocol 2)."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat().encode()[: -len("+00:00")] + b"Z"


def _event_data(event: AgentStreamEvent) -> bytes:
    if isinstance(event, (FunctionToolResultEvent, OutputToolResultEvent)) and event.part.outcome == "retried":
        return _retried_result(event)
    return encode(event, _serializer(type(event)))


def _retried_result(event: FunctionToolResultEvent | OutputToolResultEvent) -> bytes:
    """A result that asks for another try, in the form all callers parse (decision R24)."""
    members: list[tuple[str, Any]] = [("part", _retry_prompt(event.part))]
    if isinstance(event, FunctionToolResultEvent):
        members.append(("content", event.content))
    return _object([*members, ("event_kind", event.event_kind)])


def _retry_prompt(part: ToolReturnPart[Any]) -> dict[str, Any]:
    content = part.content if _is_feedback(part.content) else encode(part.content).decode()
    return {
        "tool_name": part.tool_name,
        "content": content,
        "tool_call_id": part.tool_call_id,
        "timestamp": part.timestamp,
        "part_kind": "retry-prompt",
    }


def _is_feedback(content: Any) -> bool:
    """Whether a ``retry-prompt`` can carry ``content`` as it is: a text or a list of validation errors."""
    if isinstance(content, list):
        return all(isinstance(item, dict) and {"type", "loc", "msg", "input"} <= item.keys() for item in content)
    return isinstance(content, str)


def _has_newer_part(event: AgentStreamEvent) -> bool:
    if isinstance(event, PartDeltaEvent):
        return event.delta.part_delta_kind not in {"text", "thinking", "tool_call"}
    return isinstance(event, (PartStartEvent, PartEndEvent)) and event.part.part_kind in _NEWER_PART_KINDS


def _terminal(
    run_id: str,
    created_at: datetime,
    event_type: bytes,
    members: Iterable[tuple[str, Any]],
    usage: AgentRunUsage | None,
) -> bytes:
    known = list(members)
    if usage is not None:
        known.append(("usage", usage))
    return _head(run_id, created_at, event_type) + _object(known) + b"}"


def _object(members: Iterable[tuple[str, Any]]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), encode(value)) for name, value in members)
