"""Callers of a fleet behind a balancer: they create runs, and read each to its end through whatever comes between."""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
import trio
from tests.server.bodies import run_of
from tests.server.clients import TERMINALS, Api, open_stream
from tests.server.harness import BOUND_SECONDS
from tests.server.rolling_balancer import Balancer
from tests.unit.http import ws

Transport = Literal["sse", "ws", "poll"]
TRANSPORTS: tuple[Transport, ...] = ("sse", "ws", "poll")
WEIGHTS = (8, 1, 1)
"""Of a short run's reader. A long run has one of each kind."""

CHUNK_MS = 100
SHORT_CHUNKS = (2, 19)
"""0.2 to 1.9 s."""
LONG_CHUNKS = 60
"""Outlives the grace wherever in its first two thirds the signal comes; a reader of it may meet two restarts."""
LONG_SHARE = 0.15
PAUSE_SECONDS = (0.5, 1.0)
"""Between a creator's runs."""
READ_SECONDS = 30.0
MOST_REFUSALS = 3
"""A repeat comes a second later, and the balancer's list is two seconds behind: two, and one for a busy machine."""


@dataclass
class Reading:
    """What one reader of one run has got."""

    run_id: str
    transport: Transport
    began: float = field(default_factory=trio.current_time)
    ended: float = float("inf")
    events: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    """Polling counts none: each of its pages may be on another one."""

    @property
    def cursor(self) -> str:
        return self.events[-1]["id"] if self.events else "0-0"

    @property
    def over(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] in TERMINALS


class Callers:
    """The load. Each creator is one task with one connection; each run has a reader or three."""

    def __init__(self, balancer: Balancer, dice: random.Random) -> None:
        self._balancer = balancer
        self._dice = dice
        self._stopped = False
        self.readings: list[Reading] = []
        self.refusals: Counter[int] = Counter()
        """How many creates were refused so many times."""

    def stop(self) -> None:
        """No further run is created."""
        self._stopped = True

    async def create_runs(self) -> None:
        """Until stopped; returns when the last run has been read."""
        limits = httpx2.Limits(max_connections=1)
        async with httpx2.AsyncClient(base_url=self._balancer.url, timeout=BOUND_SECONDS, limits=limits) as client:
            async with trio.open_nursery() as readers:
                while not self._stopped:
                    is_long = self._dice.random() < LONG_SHARE
                    run_id = await self._create(client, LONG_CHUNKS if is_long else self._dice.randint(*SHORT_CHUNKS))
                    for transport in TRANSPORTS if is_long else self._dice.choices(TRANSPORTS, WEIGHTS):
                        self.readings.append(Reading(run_id, transport))
                        readers.start_soon(self.read, self.readings[-1])
                    await trio.sleep(self._dice.uniform(*PAUSE_SECONDS))

    async def _create(self, client: httpx2.AsyncClient, chunks: int) -> str:
        body = run_of({"chunks": chunks, "delay_ms": CHUNK_MS})
        refused = 0
        while True:
            response = await client.post("/runs", json=body)
            if response.status_code == 202:
                self.refusals[refused] += 1
                return str(response.json()["run_id"])
            assert response.status_code == 503, response.text
            assert response.json() == {"detail": "run scheduler is shutting down"}
            refused += 1
            assert refused <= MOST_REFUSALS
            await trio.sleep(int(response.headers["retry-after"]))

    async def read(self, reading: Reading) -> None:
        """Until the terminal event; reconnects at once, as `docs/streams.md` says."""
        connect = {"sse": self._event_stream, "ws": self._websocket, "poll": self._pages}[reading.transport]
        with trio.fail_after(READ_SECONDS):
            while not reading.over:
                reading.connections += 1
                await connect(reading)
        reading.ended = trio.current_time()

    async def _event_stream(self, reading: Reading) -> None:
        """Up to the regular end; a response that is cut off is an error."""
        async with open_stream(self._balancer, reading.run_id, last_event_id=reading.cursor) as stream:
            reading.events += [frame.json for frame in await stream.rest()]

    async def _websocket(self, reading: Reading) -> None:
        target = f"/runs/{reading.run_id}/events/ws?after={reading.cursor}"
        async with await trio.open_tcp_stream("127.0.0.1", self._balancer.port) as stream:
            await stream.send_all(ws.handshake(target))
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some(1)
            assert head.startswith(b"HTTP/1.1 101"), head
            socket = ws.RawSocket(stream)
            while (frame := await socket.frame()) is not None:
                opcode, payload = frame
                if opcode == ws.CLOSE:
                    code = int.from_bytes(payload[:2], "big")
                    assert code == (1000 if reading.over else 1001), payload
                    await socket.send(ws.close(code))
                    return
                assert opcode == ws.TEXT
                reading.events.append(json.loads(payload))
        raise AssertionError("no close frame")

    async def _pages(self, reading: Reading) -> None:
        async with httpx2.AsyncClient(base_url=self._balancer.url, timeout=BOUND_SECONDS) as client:
            while not reading.over:
                page = await Api(client).page(reading.run_id, after=reading.cursor, wait=5)
                reading.events += page["events"]
