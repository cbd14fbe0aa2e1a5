"""What was read of a run, an owner's key or a claim: plain values, for the checks to judge."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from dify_agent.protocol.event_id import START, EventId
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.base import Owner, StoredEvent
from dify_agent.store.texts import read_owner

TERMINAL_STATUS: Final = {"run_succeeded": "succeeded", "run_failed": "failed", "run_cancelled": "cancelled"}
EXAMPLES: Final = 3
"""Places of each fault that are remembered; the rest are counted."""
NO_TTL: Final = -1
NO_KEY: Final = -2


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """One key."""

    type: str
    """As TYPE names it; ``none`` for no key."""
    ttl_ms: int
    """As PTTL answers: `NO_TTL`, `NO_KEY`, or milliseconds."""

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self.type != "none"


@dataclass(slots=True)
class Places:
    """How often something was met, and where first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: object) -> None:
        """Note one more."""
        self.count += 1
        if len(self.first) < EXAMPLES:
            self.first.append(str(place))

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return ", ".join(self.first) + more


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log, whole or its head. Long payloads are judged by their head."""

    id: EventId
    size: int
    """Bytes of the payload; below 0: the entry has other fields."""
    text: bytes


@dataclass(slots=True)
class LogFacts:
    """A log, summed up entry by entry, so that no log is held as a whole."""

    run_id: str
    length: int = 0
    added: int | None = None
    """Entries ever added; None: the server does not say."""
    last_generated: EventId = START
    max_deleted: EventId = START
    """Highest id that was deleted by name. Trimming does not count (measured: Valkey 9.1, Redis 7.0)."""
    first: EventId | None = None
    top: EventId | None = None
    terminals: list[tuple[EventId, str]] = field(default_factory=list)
    terminal_count: int = 0
    behind_terminal: Places = field(default_factory=Places)
    """Events behind the first terminal one that are not terminal themselves."""
    gaps: Places = field(default_factory=Places)
    disorder: Places = field(default_factory=Places)
    unreadable: Places = field(default_factory=Places)
    foreign: Places = field(default_factory=Places)

    def add(self, entry: Entry) -> None:
        """Take the next entry in."""
        self._place(entry.id)
        run_id, kind = _read_head(entry) or (None, None)
        if run_id is None:
            self.unreadable.add(entry.id)
        elif run_id != self.run_id:
            self.foreign.add(entry.id)
        if kind in TERMINAL_STATUS:
            self.terminal_count += 1
            if len(self.terminals) < EXAMPLES:
                self.terminals.append((entry.id, kind))
        elif self.terminal_count:
            self.behind_terminal.add(entry.id)

    def _place(self, event_id: EventId) -> None:
        if self.top is None:
            self.first = event_id
            if event_id.n == 0:
                self.disorder.add(event_id)
        elif event_id.n <= self.top.n:
            self.disorder.add(f"{self.top} then {event_id}")
        elif event_id.n > self.top.n + 1:
            self.gaps.add(f"{self.top} then {event_id}")
        self.top = event_id


def _read_head(entry: Entry) -> tuple[str, str] | None:
    """The event's ``run_id`` and ``type``, None when it is no event."""
    if entry.size < 0:
        return None
    try:
        if len(entry.text) == entry.size:
            value: Any = from_json(entry.text)
            found = (value["run_id"], value["type"])
            return found if all(isinstance(text, str) for text in found) else None
        # The envelope begins with the run's id, and nothing but a date stands before the type.
        start = b'{"run_id":"'
        if not entry.text.startswith(start):
            return None
        run_id = entry.text[len(start) : entry.text.index(b'"', len(start))].decode()
        kind = StoredEvent(entry.id, entry.text).type
        return (run_id, kind) if kind else None
    except (ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class OwnerView:
    """What the store knows of a running run's owner."""

    alive: bool
    listed: bool
    """In the list of all owners, which reapers go through."""
    has_run: bool
    """Its set names the run."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run: its four keys in one step, and afterwards what concerns its owner."""

    run_id: str
    keys: Mapping[str, KeyFacts]
    """By key name, in the order record, events, owner, intent."""
    record_text: bytes | None
    owner_text: bytes | None
    intents: int
    log: LogFacts
    owner: OwnerView | None = None
    """Of a running run with an owner that can be read."""
    lost_owner_names_it: bool = False
    """For a running run without an owner key: a listed owner without a lease has it in its set."""

    @property
    def record(self) -> RunStatusResponse | None:
        """The record, None when there is none or it cannot be read."""
        if self.record_text is None:
            return None
        try:
            found = RunStatusResponse.model_validate_json(self.record_text)
        except ValidationError:
            return None
        return found if found.run_id == self.run_id else None

    @property
    def owner_of_record(self) -> Owner | None:
        """The owner key's content, None when there is none or it cannot be read."""
        return None if self.owner_text is None else read_owner(self.owner_text)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """One idempotency key."""

    name: str
    key: KeyFacts
    text: bytes | None
    has_run: bool
    """Whether the claimed run has a record."""

    @property
    def run_id(self) -> str | None:
        """The claimed run's id, None when the text is no claim."""
        parts = (self.text or b"").decode("utf-8", "replace").split(":")
        return parts[0] if len(parts) == 3 and parts[0] else None
