"""A caller of a replica: creates runs and reads their event streams to the end."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio

from bench.model import PIECE
from bench.replica import Replica

RUN_SECONDS = 30.0
"""A run that takes longer is stuck."""


def compose(*layers: dict[str, Any]) -> bytes:
    """A create request with a prompt and these layers."""
    prompt = {"name": "prompt", "type": "plain.prompt", "config": {"user": "Hello."}}
    return json.dumps({"composition": {"layers": [prompt, *layers]}}).encode()


def run_of(turn: dict[str, Any]) -> bytes:
    """A create request whose model does one turn."""
    return compose({"name": "llm", "type": "scripted.model", "config": {"turns": [turn]}})


def text_run(deltas: int) -> bytes:
    """A run whose model says so many deltas as fast as it can."""
    return run_of({"chunks": deltas, "chunk": PIECE})


HELD_RUN = run_of({"hang": True, "after_chunks": 1, "chunk": PIECE})
"""A run whose model says one delta and then nothing for ever."""


class Caller:
    """Requests to one replica over connections that are kept alive. Made by `open_caller`."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def create(self, body: bytes) -> str:
        """Create a run and give its id."""
        response = await self._http.post("/runs", content=body, headers={"Content-Type": "application/json"})
        if response.status_code != httpx2.codes.ACCEPTED:
            raise RuntimeError(f"create was answered {response.status_code}: {response.text}")
        return str(response.json()["run_id"])

    async def run(self, body: bytes) -> None:
        """Create a run and read its stream from the first event to the last.

        Raises:
            RuntimeError: the run did not succeed.
        """
        await self.read(await self.create(body))

    async def read(self, run_id: str) -> None:
        """Read a run's stream from the first event to the last.

        Raises:
            RuntimeError: the run did not succeed.
        """
        with trio.fail_after(RUN_SECONDS):
            async with self._http.stream("GET", f"/runs/{run_id}/events/sse") as response:
                text = b"".join([chunk async for chunk in response.aiter_bytes()])
        if b"event: run_started\n" not in text or b"event: run_succeeded\n" not in text:
            raise RuntimeError(f"the run's stream is not that of a run that succeeded:\n{text.decode()}")

    async def runs(self, body: bytes, count: int, *, at_once: int = 1) -> None:
        """So many runs, ``at_once`` at any time."""

        async def one_after_another(number: int) -> None:
            for _ in range(number):
                await self.run(body)

        async with trio.open_nursery() as nursery:
            for position in range(at_once):
                nursery.start_soon(one_after_another, len(range(position, count, at_once)))


@asynccontextmanager
async def open_caller(replica: Replica) -> AsyncIterator[Caller]:
    """A caller for as long as the body runs."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=replica.url, timeout=RUN_SECONDS, limits=limits) as http:
        yield Caller(http)
