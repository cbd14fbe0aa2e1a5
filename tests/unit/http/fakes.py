"""A run log in memory with the two ports that the HTTP front talks to, and an ASGI client."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import trio

from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.http.app import RunApp, create_app
from dify_agent.http.settings import HttpSettings
from dify_agent.protocol.event_id import EventId
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest, RunStatusResponse
from dify_agent.store.base import EventPage, StoredEvent
from dify_agent.supervisor.handle import TailBatch

CREATED = "2026-11-30T09:00:00.120001Z"
PROMPT = {"composition": {"layers": [{"name": "p", "type": "plain.prompt", "config": {"user": "Ping?"}}]}}


def event(n: int, event_type: str = "pydantic_ai_event", *, ms: int = 1_000, data: str = "{}") -> StoredEvent:
    """An event as it lies in the log. ``data`` is JSON text."""
    payload = f'{{"run_id":"R","created_at":"{CREATED}","type":"{event_type}","data":{data}}}'
    return StoredEvent(EventId(ms, n), payload.encode())


@dataclass
class FakeRun:
    status: str = "running"
    events: list[StoredEvent] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def add(self, *events: StoredEvent) -> None:
        self.events.extend(events)
        if self.events[-1].is_terminal:
            self.status = self.events[-1].type.removeprefix("run_")
        self.changed.set()
        self.changed = trio.Event()

    def after(self, cursor: EventId) -> tuple[StoredEvent, ...]:
        return tuple(item for item in self.events if item.id > cursor)


@dataclass
class FakeTail:
    """Hands out all that is behind the cursor. ``cancelled`` counts waits that were cut short."""

    service: "FakeService"
    run: FakeRun
    cursor: EventId
    waits: int = 0
    cancelled: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.start = self.cursor

    def close(self) -> None:
        self.closed = True

    async def next(self) -> TailBatch:
        while True:
            await trio.lowlevel.checkpoint()
            events = self.run.after(self.cursor)
            if events:
                trimmed = max(events[0].id.n - self.cursor.n - 1, 0)
                self.cursor = events[-1].id
                return TailBatch(events, trimmed, "terminal" if events[-1].is_terminal else None)
            if self.run.status != "running":
                return TailBatch(end="terminal")
            if self.service.draining:
                return TailBatch(end="drain")
            self.waits += 1
            try:
                await self.run.changed.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise


class FakeService:
    """`RunService` and `RunStore` (as far as HTTP reads it) over runs in a dict."""

    def __init__(self, **runs: FakeRun) -> None:
        self.runs = runs
        self.draining = False
        self.down = False
        self.ready = "ready"
        self.created: list[CreateRunRequest] = []
        self.cancels: list[CancelRunRequest] = []
        self.tails: list[FakeTail] = []
        self.error: Exception | None = None
        self.read_ids: list[str] = []

    async def create(self, request: CreateRunRequest) -> str:
        await self._reach()
        self.created.append(request)
        self.runs["new"] = FakeRun()
        return "new"

    async def cancel(self, run_id: str, request: CancelRunRequest) -> None:
        await self._reach()
        self._run(run_id)
        self.cancels.append(request)

    async def open_tail(self, run_id: str, after: EventId) -> FakeTail:
        await self._reach()
        tail = FakeTail(self, self._run(run_id), after)
        self.tails.append(tail)
        return tail

    async def readiness(self) -> str:
        return self.ready

    async def read_record(self, run_id: str) -> RunStatusResponse | None:
        await self._reach()
        self.read_ids.append(run_id)
        run = self.runs.get(run_id)
        if run is None:
            return None
        fields = {"run_id": run_id, "status": run.status, "created_at": CREATED, "updated_at": CREATED}
        return RunStatusResponse.model_validate(fields)

    async def read_events(self, run_id: str, after: EventId, limit: int, max_bytes: int = 0) -> EventPage:
        await self._reach()
        run = self._run(run_id)
        return EventPage(run.status, run.after(after)[:limit])  # type: ignore[arg-type]

    def drain(self) -> None:
        self.draining = True
        for run in self.runs.values():
            run.changed.set()
            run.changed = trio.Event()

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise StoreUnavailableError("the test says so")
        if self.error is not None:
            raise self.error

    def _run(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise RunNotFoundError(run_id)
        return self.runs[run_id]


def make_app(service: FakeService, *, blank: bool = False, **settings: Any) -> RunApp:
    return create_app(
        service=service,  # type: ignore[arg-type]
        store=service,  # type: ignore[arg-type]
        settings=HttpSettings(**settings),
        blank_prompt_check=lambda _request: blank,
    )


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> Any:
        return self.json["detail"]

    @property
    def item(self) -> dict[str, Any]:
        (only,) = self.detail
        assert isinstance(only, dict)
        return only


async def call(
    app: RunApp,
    method: str,
    target: str,
    *,
    body: bytes | Sequence[bytes] = b"",
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request straight into the app. A body gets a JSON content type unless ``headers`` names another."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    fields = {k.lower(): v for k, v in (headers or {}).items()}
    if any(pieces):
        fields.setdefault("content-type", "application/json")
        if isinstance(body, bytes):
            fields.setdefault("content-length", str(len(body)))
    raw_path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"server.test"), *((k.encode(), v.encode("latin-1")) for k, v in fields.items())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "root_path": "",
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if not pieces:
            await trio.sleep_forever()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]
    answer_headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    chunks = [message["body"] for message in sent[1:] if message["body"]]
    assert not sent[-1].get("more_body", False)
    return Answer(sent[0]["status"], answer_headers, b"".join(chunks), chunks)
