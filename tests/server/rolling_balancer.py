"""A TCP load balancer as far as a rolling restart meets one: its list of endpoints is behind, and it hides nothing."""

from collections import Counter
from itertools import count

import trio

LINGER_SECONDS = 2.0
"""How long a client may go on sending after the server has ended its direction."""


class Balancer:
    """Sends each connection to the next endpoint of its list. ``serve`` is its whole life."""

    def __init__(self) -> None:
        self.port = 0
        self.endpoints: list[int] = []
        self.refused: list[str] = []
        """Connections that no endpoint took: what a caller would see as 502 or a reset."""
        self.taken: Counter[int] = Counter()
        """Connections by endpoint."""
        self._turn = count()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._handle, listeners)

    async def _handle(self, client: trio.SocketStream) -> None:
        endpoint = self.endpoints[next(self._turn) % len(self.endpoints)]
        async with client:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", endpoint)
            except OSError as error:
                self.refused.append(f"{endpoint}: {error}")
                return
            self.taken[endpoint] += 1
            async with server:
                await _join(client, server)


async def _join(client: trio.SocketStream, server: trio.SocketStream) -> None:
    """Pass bytes and ends of file on, both ways; a reset of one side ends both."""
    async with trio.open_nursery() as nursery:

        async def answers() -> None:
            if await _pump(server, client):
                await trio.sleep(LINGER_SECONDS)
            nursery.cancel_scope.cancel(reason="the server has ended")

        async def requests() -> None:
            await _pump(client, server)
            nursery.cancel_scope.cancel(reason="the client has ended")

        nursery.start_soon(answers)
        nursery.start_soon(requests)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> bool:
    """Whether the end was an orderly one."""
    try:
        while data := await source.receive_some(65536):
            await sink.send_all(data)
        await sink.send_eof()
    except trio.BrokenResourceError:
        return False
    return True
