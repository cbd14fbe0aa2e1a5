"""A real server whose store is killed, freezes, falls silent on some connections, or is far away."""

import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run
from tests.server.clients import TERMINALS, Api, EventStream, open_api, open_stream, stream_of
from tests.server.harness import BOUND_SECONDS, Server, serving, until
from tests.server.store_wire import store_wire
from tests.server.stores import DurableStore, durable_store
from tests.server.test_metrics import read
from tests.server.test_websocket import connect, path_of
from tests.unit.http import ws
from tests.unit.http.test_server import read_until

from dify_agent.actors.cancel_observer import SWEEP_SECONDS
from dify_agent.actors.outage_watch import LAST_CHANCE_SECONDS

HEARTBEAT_SECONDS = 15
COMMAND_SECONDS = 5
"""How long a command may wait for its answer."""
CREATE_TRIES = 2
READY_SECONDS = 2
SLACK = 2
"""Of a loaded machine."""
SAID = 60
"""Chunks of the run that talks; it takes three seconds, so most of them fall into an outage."""

pytestmark = pytest.mark.slow


class Reader:
    """Follows a run over both transports, in the background, to the end."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.controls: list[dict[str, Any]] = []
        self.pings = 0
        self.socket: ws.RawSocket | None = None
        self.stream: EventStream | None = None
        self.ended = 0

    @property
    def beats(self) -> int:
        """Heartbeats that both transports have had."""
        return min(self.pings, len(self.stream.comments) if self.stream else 0)

    @property
    def began(self) -> bool:
        return bool(self.frames and self.messages)

    def follow(self, nursery: trio.Nursery, server: Server, run_id: str) -> None:
        nursery.start_soon(self._read_frames, server, run_id)
        nursery.start_soon(self._read_messages, server, run_id)

    async def _read_frames(self, server: Server, run_id: str) -> None:
        async with open_stream(server, run_id) as self.stream:
            while (frame := await self.stream.frame(3 * BOUND_SECONDS)) is not None:
                self.frames.append(frame.json)
        self.ended += 1

    async def _read_messages(self, server: Server, run_id: str) -> None:
        async with await connect(server) as stream:
            await stream.send_all(ws.handshake(path_of(run_id)))
            _, _, rest = (await read_until(stream, b"\r\n\r\n")).partition(b"\r\n\r\n")
            self.socket = ws.RawSocket(stream, rest)
            while (frame := await self.socket.frame()) is not None and frame[0] != ws.CLOSE:
                if frame[0] == ws.PING:
                    self.pings += 1
                    await self.socket.send(ws.frame(ws.PONG, frame[1]))
                else:
                    message = json.loads(frame[1])
                    (self.messages if "type" in message else self.controls).append(message)
        self.ended += 1


def assert_whole(events: list[dict[str, Any]], status: str) -> None:
    assert [event["type"] for event in events if event["type"] in TERMINALS] == [f"run_{status}"]
    assert events[-1]["type"] == f"run_{status}"
    assert [int(event["id"].split("-")[1]) for event in events] == list(range(1, len(events) + 1))


async def answers(api: Api, run_id: str) -> dict[str, tuple[httpx2.Response, float]]:
    """What each route of R13 says, and after how long; all asked at once."""
    routes = {
        "create": ("POST", "/runs", text_run()),
        "status": ("GET", f"/runs/{run_id}", None),
        "cancel": ("POST", f"/runs/{run_id}/cancel", {}),
        "page": ("GET", f"/runs/{run_id}/events", None),
        "stream": ("GET", f"/runs/{run_id}/events/sse", None),
    }
    got: dict[str, tuple[httpx2.Response, float]] = {}
    began = trio.current_time()

    async def ask(name: str, method: str, path: str, body: Any) -> None:
        response = await api.client.request(method, path, json=body)
        got[name] = (response, trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for name, route in routes.items():
            nursery.start_soon(ask, name, *route)
    return got


async def seen(condition: Callable[[], Awaitable[bool]], what: str, within: float = BOUND_SECONDS) -> None:
    """Ask again and again, within a bound."""
    with trio.move_on_after(within):
        while not await condition():  # noqa: ASYNC110 - another process's state has no event to wait for
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {within:g} s: {what}")


async def is_ready(api: Api) -> bool:
    return await readiness(api) == (200, "ready")


async def is_cancelled(api: Api, run_id: str) -> bool:
    return (await api.try_cancel(run_id)).status_code == 200


async def are_finalising(api: Api, count: int) -> bool:
    return (await read(api))["runs_active", "finalising"] == count


async def has_queued(api: Api, events: int) -> bool:
    found = await read(api)
    waiting = found["queue_events",]
    return found["queue_stuck_runs",] == 1 and waiting >= events and found["queue_bytes",] > 100 * waiting


async def readiness(api: Api) -> tuple[int, str]:
    response = await api.client.get("/readyz")
    return response.status_code, response.json()["status"]


async def check_outage(api: Api, ended: str, how: str) -> None:
    """Everything that an open replica answers meanwhile."""
    limit = 0 if how == "killed" else COMMAND_SECONDS
    for name, (response, took) in (await answers(api, ended)).items():
        assert (response.status_code, response.json()) == (503, {"detail": "run store is unavailable"}), name
        assert response.headers["retry-after"] == "1"
        assert response.headers["content-type"] == "application/json"
        assert took < limit * (CREATE_TRIES if name == "create" else 1) + SLACK, name
    began = trio.current_time()
    assert await readiness(api) == (503, "store_unavailable")
    assert trio.current_time() - began < READY_SECONDS + SLACK
    assert (await api.client.get("/healthz")).status_code == 200
    await seen(lambda: has_queued(api, 5), "events pile up")


@pytest.mark.parametrize("beats", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_routes_say_503_and_open_streams_go_on(beats: int) -> None:
    """R13, on the owner and, for the run that talks, on a replica that follows it through the store."""
    with ExitStack() as stack:
        places = []
        for how in ("killed", "frozen"):  # both at once: it is mostly waiting
            store = stack.enter_context(durable_store())
            server = stack.enter_context(serving(store.url, stream_text_delta_coalescing_enabled="false"))
            other = stack.enter_context(serving(store.url, prefix=server.prefix))
            places.append((how, store, server, other))
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(check_open_replica, *place, beats)


async def check_open_replica(how: str, store: DurableStore, server: Server, other: Server, beats: int) -> None:
    async with open_api(server) as api, trio.open_nursery() as nursery:
        ended = await api.create(text_run())
        await api.finished(ended)
        talking = await api.create(run_of({"chunks": SAID, "chunk": "w", "delay_ms": 50}))
        silent = await api.create(run_of(HANG))
        readers = {name: Reader() for name in ("talking", "silent", "followed")}
        readers["talking"].follow(nursery, server, talking)
        readers["silent"].follow(nursery, server, silent)
        readers["followed"].follow(nursery, other, talking)
        await until(lambda: all(reader.began for reader in readers.values()), "all streams have begun")
        with store.outage(how):
            socket = readers["silent"].socket
            assert socket is not None
            await socket.send(ws.text({"type": "cancel"}))
            await check_outage(api, ended, how)
            refused = {"control": "error", "detail": "run store is unavailable"}
            assert readers["silent"].controls == [refused]
            async with open_stream(server, silent) as fresh:  # from memory, so that is no store's matter
                assert (await fresh.frame()).event == "run_started"
            within = beats * HEARTBEAT_SECONDS + SLACK
            await until(lambda: all(reader.beats >= beats for reader in readers.values()), "heartbeats go on", within)
            assert [reader.ended for reader in readers.values()] == [0, 0, 0]
        await seen(lambda: is_ready(api), "the replica is ready again")
        await seen(lambda: is_cancelled(api, silent), "the cancel is accepted")
        await until(lambda: all(reader.ended == 2 for reader in readers.values()), "all streams have ended")
        for name, run_id, status in (
            ("talking", talking, "succeeded"),
            ("followed", talking, "succeeded"),
            ("silent", silent, "cancelled"),
        ):
            events = await api.finished(run_id)
            assert_whole(events, status)
            assert readers[name].frames == readers[name].messages == events, name
        assert events_text(await api.finished(talking)) == "w" * SAID
        assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


def events_text(events: list[dict[str, Any]]) -> str:
    return str(events[-1]["data"]["output"])


BOUND = 1
"""Of an outage, in seconds."""
DOINGS = {
    "silent": run_of(HANG),
    "fell silent": run_of(STREAM_THEN_HANG),
    "in a tool": tool_run(hang=True),
    "streaming": run_of({"chunks": 100_000, "delay_ms": 20}),
}


async def test_past_the_bound_every_run_ends_whatever_it_does() -> None:
    """R12: told by a timer while the store is away, written when it is back; runs that begin later know nothing."""
    with ExitStack() as stack:
        stores = {how: stack.enter_context(durable_store()) for how in ("killed", "frozen")}
        servers = {
            how: stack.enter_context(serving(store.url, store_outage_seconds=BOUND)) for how, store in stores.items()
        }
        async with trio.open_nursery() as nursery:  # both at once: it is mostly waiting
            for how, store in stores.items():
                nursery.start_soon(check_past_the_bound, how, store, servers[how])
        for server in servers.values():
            assert sum(record["event"] == "run failed" for record in server.records()) == len(DOINGS)


async def check_past_the_bound(how: str, store: DurableStore, server: Server) -> None:
    within = SWEEP_SECONDS + LAST_CHANCE_SECONDS + (BOUND if how == "killed" else COMMAND_SECONDS)
    async with open_api(server) as api:
        runs = {name: await api.create(body) for name, body in DOINGS.items()}
        for run_id in runs.values():
            await api.events_until(run_id, "part_delta", "function_tool_call", "run_started")
        with store.outage(how):
            stopped = lambda: are_finalising(api, len(runs))  # noqa: E731
            await seen(stopped, f"all runs are told while the store is {how}", within + SLACK)
        later = await first_created(api)
        for name, run_id in runs.items():
            events = await api.finished(run_id)
            assert_whole(events, "failed")
            data = events[-1]["data"]
            assert data["reason"] == "store_unavailable", name
            assert data["error"].startswith(f"The run store was unavailable for {BOUND} s")
            assert (await api.status(run_id))["error"] == data["error"]
        assert (await api.finished(later))[-1]["type"] == "run_succeeded"


async def first_created(api: Api) -> str:
    """A run that is created as soon as the store takes one."""
    created: list[str] = []

    async def is_created() -> bool:
        response = await api.client.post("/runs", json=text_run())
        assert response.status_code in (202, 503)
        created.extend([response.json()["run_id"]] if response.status_code == 202 else ())
        return bool(created)

    await seen(is_created, "the store is back")
    return created[0]


async def test_half_open_connections_cost_one_command_each_and_no_run() -> None:
    with durable_store() as store, store_wire(store.socket) as wire, serving(wire.url) as server:
        async with open_api(server) as api:
            ended = await api.create(text_run())
            await api.finished(ended)
            silent = await api.create(run_of(HANG))
            talking = await api.create(run_of({"chunks": SAID, "chunk": "w", "delay_ms": 50}))
            await api.events_until(silent, "run_started")
            await api.events_until(talking, "part_delta")
            async with open_stream(server, talking) as stream:
                wire.silence()
                began = trio.current_time()
                got = await answers(api, ended)
                for name, (response, took) in got.items():
                    assert response.status_code in (200, 202, 409, 503), name
                    assert took < COMMAND_SECONDS * (CREATE_TRIES if name == "create" else 1) + SLACK, name
                assert 503 in [response.status_code for response, _ in got.values()], "somebody has met one"
                frames = await stream.rest()
                assert trio.current_time() - began < 2 * COMMAND_SECONDS + SLACK
            assert frames[-1].json["data"]["output"] == "w" * SAID
            assert frames == await stream_of(server, talking)
            assert_whole(await api.finished(talking), "succeeded")
            assert await readiness(api) == (200, "ready")
            assert (await api.status(silent))["status"] == "running"
            await api.cancel(silent)
            assert_whole(await api.finished(silent), "cancelled")


async def test_a_store_far_away_is_slow_and_nothing_else() -> None:
    """Each reply is 200 ms late, the lease's too."""
    with durable_store() as store, store_wire(store.socket) as wire, serving(wire.url, owner_lease_seconds=3) as server:
        async with open_api(server) as api:
            wire.delay = 0.2
            silent = await api.create(run_of(HANG))
            reader = Reader()
            async with trio.open_nursery() as nursery:
                reader.follow(nursery, server, silent)
                body = run_of({"chunks": SAID, "chunk": "w", "delay_ms": 20}, idempotency_key="k")
                talking = await api.create(body)
                assert await api.create(body) == talking
                frames = await stream_of(server, talking)
                assert frames[-1].json["data"]["output"] == "w" * SAID
                assert_whole(await api.finished(talking), "succeeded")
                assert await readiness(api) == (200, "ready")
                with trio.fail_after(5):
                    await api.cancel(silent)
                    await until(lambda: reader.ended == 2, "both streams have ended")
            events = await api.finished(silent)
            assert_whole(events, "cancelled")
            assert reader.frames == reader.messages == events
            wire.delay = 0  # the drain is not what is measured
        assert not any(record["level"] == "warning" for record in server.records())
