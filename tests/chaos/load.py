"""What clients do meanwhile: create runs of every shape at any replica, cancel some of them at any other one."""

from dataclasses import dataclass, field
from typing import Any

import httpx2
import trio

from tests.chaos.world import World
from tests.server.bodies import calling, run_of

CLIENT_SECONDS = 8.0
TRIES = 40

_ERRORS = (httpx2.TransportError,)


@dataclass
class Book:
    """What the clients were told."""

    created: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    """Accepted: answered with 200."""
    unanswered: int = 0


def body(world: World) -> dict[str, Any]:
    """A run of up to some seconds."""
    dice = world.dice
    shapes = [
        run_of({"chunks": dice.randint(1, 40), "chunk": "word ", "delay_ms": dice.uniform(0, 80)}),
        run_of(
            calling("probe"),
            {"text": "done"},
            tools=({"name": "probe", "result": [1, 2], "delay_ms": dice.uniform(0, 2000)},),
        ),
        run_of({"error": "the model fails", "after_chunks": dice.randint(0, 20), "delay_ms": 20}),
        run_of(calling("probe"), tools=({"name": "probe", "hang": True},)),
        run_of({"hang": True, "after_chunks": dice.randint(0, 5)}),
    ]
    return shapes[dice.choices(range(len(shapes)), [5, 4, 2, 1, 1])[0]]


def hangs(body: dict[str, Any]) -> bool:
    """Whether only a cancel ends it."""
    return '"hang": True' in str(body).replace("'", '"')


class Clients:
    """The load. Runs that would not end by themselves are always cancelled."""

    def __init__(self, world: World, client: httpx2.AsyncClient) -> None:
        self._world = world
        self._client = client
        self.book = Book()

    async def run(self) -> None:
        """One run: create, perhaps cancel."""
        request = body(self._world)
        run_id = await self._create(request)
        if run_id is None:
            return
        if hangs(request) or self._world.dice.random() < 0.3:
            await trio.sleep(self._world.dice.uniform(0, 2))
            await self._cancel(run_id)

    async def _create(self, request: dict[str, Any]) -> str | None:
        for _ in range(TRIES):
            answer = await self._post("/runs", request)
            if answer is not None and answer.status_code == 202:
                run_id = str(answer.json()["run_id"])
                self.book.created.append(run_id)
                return run_id
            if answer is None:
                self.book.unanswered += 1
            await trio.sleep(self._world.dice.uniform(0.05, 0.5))
        return None

    async def _cancel(self, run_id: str) -> None:
        for _ in range(TRIES):
            answer = await self._post(f"/runs/{run_id}/cancel", {"reason": "chaos"})
            if answer is not None and answer.status_code == 200:
                self.book.cancelled.add(run_id)
                return
            if answer is not None and answer.status_code in (404, 409):
                return
            await trio.sleep(self._world.dice.uniform(0.05, 0.5))

    async def _post(self, path: str, content: dict[str, Any]) -> httpx2.Response | None:
        """The answer of some replica, or None when none came."""
        reachable = self._world.reachable()
        if not reachable:
            return None
        url = self._world.dice.choice(reachable).url
        try:
            return await self._client.post(f"{url}{path}", json=content)
        except _ERRORS:
            return None


async def load(world: World, clients: Clients, *, runs: int, seconds: float) -> None:
    """Start ``runs`` runs, evenly over ``seconds``; return when every client has its answers."""
    async with trio.open_nursery() as nursery:
        for _ in range(runs):
            nursery.start_soon(clients.run)
            await trio.sleep(world.dice.expovariate(runs / seconds))
