"""The run routes: create, status, cancel, events as pages and as a stream (protocol 1.3 to 1.7, 4.5).

Order of checks: text that is not JSON (422), credentials (401), schema and query (422), then the run's state (404, 409,
503). A body that is too long to be judged without credentials is refused for their lack first (``http.reading``). A
request owns no run: its handler may be cancelled at any point without consequence for one.
"""

from collections.abc import Callable
from contextlib import closing

import trio
from pydantic_core import to_json
from quart import request
from quart.wrappers import Response

from dify_agent.errors import EMPTY_PROMPT, RunNotFoundError, SchedulerStoppingError
from dify_agent.events.envelope import splice_id
from dify_agent.http.auth import BearerAuth
from dify_agent.http.body import ModelT
from dify_agent.http.errors import HttpError, json_response
from dify_agent.http.query import PageQuery, parse_page_query, parse_stream_cursor
from dify_agent.http.reading import BodyReader
from dify_agent.http.settings import HttpSettings
from dify_agent.http.streams import event_stream
from dify_agent.metrics import Metrics
from dify_agent.protocol.event_id import missing_between
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest
from dify_agent.store.base import RunStore, StoredEvent
from dify_agent.supervisor.handle import RunService, TailBatch

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends early at so many bytes; the next cursor goes on behind its last event."""

BlankPromptCheck = Callable[[CreateRunRequest], bool]
"""Whether the request's effective prompt is provably blank (decision D1)."""


class RunRoutes:
    """Handlers of ``/runs``, over the supervisor's handle and the store."""

    def __init__(
        self,
        service: RunService,
        store: RunStore,
        settings: HttpSettings,
        *,
        blank_prompt_check: BlankPromptCheck,
        metrics: Metrics,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._store = store
        self._heartbeat_seconds = settings.heartbeat_seconds
        self._is_blank = blank_prompt_check
        self._auth = BearerAuth(settings.token)
        self._bodies = BodyReader()

    async def create(self) -> Response:
        """``POST /runs``."""
        body = await self._read(CreateRunRequest)
        if self._service.draining:
            self._metrics.create_refused("draining")
            raise SchedulerStoppingError  # wins over everything beyond the schema (protocol 1.3)
        if self._is_blank(body):
            raise HttpError(422, EMPTY_PROMPT)
        run_id = await self._service.create(body)
        return json_response(b'{"run_id":%b,"status":"running"}' % to_json(run_id), 202)

    async def status(self, run_id: str) -> Response:
        """``GET /runs/{run_id}``."""
        self._authorize()
        record = await self._store.read_record(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        return json_response(record.model_dump_json().encode())

    async def cancel(self, run_id: str) -> Response:
        """``POST /runs/{run_id}/cancel``."""
        body = await self._read(CancelRunRequest)
        await self._service.cancel(run_id, body)
        return json_response(b'{"run_id":%b,"status":"cancelled"}' % to_json(run_id))

    async def events(self, run_id: str) -> Response:
        """``GET /runs/{run_id}/events``: a page, at once or, with ``wait``, when there is an event to put on it."""
        self._authorize()
        query = parse_page_query(request.query_string)
        page = await self._store.read_events(run_id, query.after, query.limit, PAGE_BYTES)
        events, trimmed = page.events, 0
        if events:
            trimmed = missing_between(query.after, events[0].id)
        elif query.wait_seconds and page.status == "running":
            batch = await self._wait_for_events(run_id, query)
            events, trimmed = batch.events[: query.limit], batch.trimmed
        headers = {"X-Events-Trimmed": str(trimmed)} if trimmed else None
        return json_response(page_body(run_id, events, query.after_text), headers=headers)

    async def stream(self, run_id: str) -> Response:
        """``GET /runs/{run_id}/events/sse``. Errors are JSON answers; once the stream has started there are none."""
        self._authorize()
        after = parse_stream_cursor(request.query_string, request.headers.get("Last-Event-ID"))
        tail = await self._service.open_tail(run_id, after)
        return event_stream(tail, self._heartbeat_seconds, self._metrics)

    async def _wait_for_events(self, run_id: str, query: PageQuery) -> TailBatch:
        batch = TailBatch()
        with trio.move_on_after(query.wait_seconds):
            tail = await self._service.open_tail(run_id, query.after)
            with closing(tail):
                while not batch.events and batch.end is None:
                    batch = await tail.next()
        if batch.end == "expired":
            raise RunNotFoundError(run_id)
        return batch

    async def _read(self, model: type[ModelT]) -> ModelT:
        refusal = self._auth.judge(request.headers.get("Authorization"))
        if refusal is None:
            return await self._bodies.read(request, model)
        raise await self._bodies.refuse(request, refusal)

    def _authorize(self) -> None:
        self._auth.check(request.headers.get("Authorization"))


def page_body(run_id: str, events: tuple[StoredEvent, ...], after: str) -> bytes:
    """A page's JSON: stored payloads as they lie in the log, with their ids spliced in (protocol 2.10)."""
    items = b",".join([splice_id(str(event.id), event.payload) for event in events])
    next_cursor = str(events[-1].id) if events else after
    return b'{"run_id":%b,"events":[%b],"next_cursor":%b}' % (to_json(run_id), items, to_json(next_cursor))
