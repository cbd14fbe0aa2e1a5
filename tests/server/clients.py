"""Two clients: JSON over httpx2, and a reader of event streams that keeps every byte as it came."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import h11
import httpx2
import trio
from tests.server.harness import BOUND_SECONDS, Server

TERMINALS: Final = ("run_succeeded", "run_failed", "run_cancelled")


class Api:
    """The run routes of one replica. Answers are checked for their status, nothing else."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def create(self, body: dict[str, Any]) -> str:
        response = await self.client.post("/runs", json=body)
        assert response.status_code == 202, response.text
        assert response.json()["status"] == "running"
        return str(response.json()["run_id"])

    async def status(self, run_id: str) -> dict[str, Any]:
        response = await self.client.get(f"/runs/{run_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def try_cancel(self, run_id: str, **body: str) -> httpx2.Response:
        return await self.client.post(f"/runs/{run_id}/cancel", json=body)

    async def cancel(self, run_id: str, **body: str) -> None:
        response = await self.try_cancel(run_id, **body)
        assert response.status_code == 200, response.text
        assert response.json() == {"run_id": run_id, "status": "cancelled"}

    async def page(self, run_id: str, **query: object) -> dict[str, Any]:
        response = await self.client.get(f"/runs/{run_id}/events", params={k: str(v) for k, v in query.items()})
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def events_until(self, run_id: str, *kinds: str) -> list[dict[str, Any]]:
        """Poll from the beginning until an event of one of the types or event kinds is there."""
        events: list[dict[str, Any]] = []
        cursor = "0-0"
        with trio.fail_after(BOUND_SECONDS):
            while not any(kind_of(event) in kinds for event in events):
                page = await self.page(run_id, after=cursor, wait=5, limit=500)
                cursor = page["next_cursor"]
                events += page["events"]
                assert not events or events[-1]["type"] not in TERMINALS or kind_of(events[-1]) in kinds, events[-1]
        return events

    async def finished(self, run_id: str) -> list[dict[str, Any]]:
        """The whole log of a run, when it has ended."""
        return await self.events_until(run_id, *TERMINALS)

    async def run(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Create a run and wait for its end."""
        return await self.finished(await self.create(body))


def kind_of(event: dict[str, Any]) -> str:
    """The type of an event, or the kind of the agent's event inside it."""
    return str(event["data"]["event_kind"] if event["type"] == "pydantic_ai_event" else event["type"])


@asynccontextmanager
async def open_api(server: Server) -> AsyncIterator[Api]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=server.url, timeout=BOUND_SECONDS, limits=limits) as client:
        yield Api(client)


@dataclass(frozen=True)
class Frame:
    """One frame of an event stream: its bytes, and the three lines every event has."""

    raw: bytes
    id: str
    event: str
    data: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.data))


class EventStream:
    """An SSE response on a bare socket. Made by `open_stream`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._buffer = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments: list[bytes] = []

    async def request(self, path: str, headers: list[tuple[str, str]]) -> None:
        request = h11.Request(method="GET", target=path, headers=[("Host", "test"), *headers])
        await self._stream.send_all(self._http.send(request) + self._http.send(h11.EndOfMessage()))
        response = await self._next_event()
        assert isinstance(response, h11.Response)
        self.status = response.status_code
        self.headers = {name.decode().lower(): value.decode() for name, value in response.headers}

    async def frame(self, within: float = BOUND_SECONDS) -> Frame | None:
        """The next event's frame; None at the regular end of the response. A response cut off raises."""
        with trio.fail_after(within):
            while True:
                while b"\n\n" not in self._buffer:
                    event = await self._next_event()
                    if isinstance(event, h11.EndOfMessage):
                        assert self._buffer == b"", "the response ends inside a frame"
                        return None
                    assert isinstance(event, h11.Data)
                    self._buffer += bytes(event.data)
                raw, self._buffer = self._buffer.split(b"\n\n", 1)
                if not raw.startswith(b":"):
                    return _parse(raw)
                self.comments.append(raw)

    async def rest(self) -> list[Frame]:
        """Every frame up to the regular end."""
        frames = []
        while (frame := await self.frame()) is not None:
            frames.append(frame)
        return frames

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(65536))
        return event


def _parse(raw: bytes) -> Frame:
    lines = raw.split(b"\n")
    assert [line.split(b": ")[0] for line in lines] == [b"id", b"event", b"data"], raw
    values = [line.split(b": ", 1)[1].decode() for line in lines]
    return Frame(raw, *values)


@asynccontextmanager
async def open_stream(
    server: Server, run_id: str, *, after: str | None = None, last_event_id: str | None = None
) -> AsyncIterator[EventStream]:
    """Open a run's event stream; leaving the block drops the connection, whatever the server is doing."""
    query = "" if after is None else "?" + urlencode({"after": after})
    headers = [] if last_event_id is None else [("Last-Event-ID", last_event_id)]
    with trio.fail_after(BOUND_SECONDS):
        connection = await trio.open_tcp_stream("127.0.0.1", server.port)
    try:
        stream = EventStream(connection)
        with trio.fail_after(BOUND_SECONDS):
            await stream.request(f"/runs/{run_id}/events/sse{query}", headers)
        assert stream.status == 200
        yield stream
    finally:
        connection.socket.close()


async def stream_of(server: Server, run_id: str, **cursor: str) -> list[Frame]:
    """All frames of a stream that the server ends."""
    async with open_stream(server, run_id, **cursor) as stream:
        return await stream.rest()
