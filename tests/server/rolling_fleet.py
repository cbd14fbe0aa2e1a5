"""Replicas behind a balancer, restarted one at a time as a cluster does it."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx2
import trio
from tests.server.harness import BOUND_SECONDS, START_SECONDS, Server, StoreServer, launched, until
from tests.server.rolling_balancer import Balancer

LAG_SECONDS = 2.0
"""How long a replica that was told to stop still gets connections."""
LISTEN_SECONDS = 3.0
GRACE_SECONDS = 2.0
STOP_SECONDS = 15.0


@dataclass
class Restart:
    """From the signal to the end of the process."""

    began: float
    ended: float = float("inf")

    def meets(self, began: float, ended: float) -> bool:
        return self.began <= ended and began <= self.ended


class Fleet:
    """Made by `fleet`. A place is one of its replicas, whichever process that is."""

    def __init__(self, store: StoreServer, prefix: str, balancer: Balancer, stack: ExitStack, size: int) -> None:
        self._store = store
        self._prefix = prefix
        self._balancer = balancer
        self._stack = stack
        self._folders: list[ExitStack] = []
        self.servers: list[Server] = []
        self.restarts: list[Restart] = []
        for _ in range(size):
            server, folder = self._launch()
            self.servers.append(server)
            self._folders.append(folder)

    def _launch(self) -> tuple[Server, ExitStack]:
        folder = self._stack.enter_context(ExitStack())
        settings = {"drain_listen_seconds": LISTEN_SECONDS, "shutdown_grace_seconds": GRACE_SECONDS}
        # Kept longer than the longest of these tests, which look at everything once more at their end.
        server = launched(self._store.url, prefix=self._prefix, run_retention_seconds=7200, **settings)
        return folder.enter_context(server), folder

    async def ready(self) -> None:
        """Return when the balancer has all replicas."""
        for server in self.servers:
            await self._join(server)

    async def _join(self, server: Server) -> None:
        started = lambda: '"listening"' in server.log or server.process.poll() is not None  # noqa: E731
        await until(started, "the replica starts", 2 * START_SECONDS)
        server.wait_listening()
        async with httpx2.AsyncClient(base_url=server.url, timeout=BOUND_SECONDS) as client:
            with trio.fail_after(BOUND_SECONDS):
                while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        self._balancer.endpoints.append(server.port)

    async def restart(self, place: int) -> None:
        """SIGTERM, and at once another process in its place, as a ReplicaSet starts one."""
        old, folder = self.servers[place], self._folders[place]
        restart = Restart(trio.current_time())
        self.restarts.append(restart)
        old.tell(signal.SIGTERM)
        self.servers[place], self._folders[place] = self._launch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave, old, restart.began + LAG_SECONDS)
            nursery.start_soon(self._join, self.servers[place])
            assert await old.exit_status(STOP_SECONDS) == 0
            restart.ended = trio.current_time()
        old.check_log()
        folder.close()

    async def _leave(self, server: Server, moment: float) -> None:
        await trio.sleep_until(moment)
        self._balancer.endpoints.remove(server.port)

    def check_logs(self) -> None:
        """Of the replicas that still live; those that were stopped have been looked at."""
        for server in self.servers:
            server.check_log()


@contextmanager
def fleet(store: StoreServer, prefix: str, balancer: Balancer, size: int) -> Iterator[Fleet]:
    """The processes are started, not yet ready; none is left behind."""
    with ExitStack() as stack:
        yield Fleet(store, prefix, balancer, stack, size)
