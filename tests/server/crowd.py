"""Many readers in a process of their own: ``python -m tests.server.crowd PORT POLLERS STREAMS RUN_ID...``.

Readers are spread evenly over the runs, and check nothing but that each gets its terminal event. Prints ``attached``
once all wait for events, and ``complete`` once all have had the end of their run.
"""

import re
import resource
import sys

import trio

TERMINAL = re.compile(rb'"type":"run_(succeeded|failed|cancelled)"')
CURSOR = re.compile(rb'"next_cursor":"([^"]+)"')
LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
LONGEST_MARK = 64
CONNECTING_AT_ONCE = 50


class Crowd:
    """The readers, and how many of them have not been answered yet."""

    def __init__(self, port: int, size: int) -> None:
        self._port = port
        self._waiting = size
        self._connecting = trio.CapacityLimiter(CONNECTING_AT_ONCE)

    async def poll(self, run_id: str) -> None:
        """Pages on one connection, each waited for."""
        async with self._connecting:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            page = await _page(stream, run_id, b"0-0")
        self._attached()
        while not TERMINAL.search(page):
            found = CURSOR.search(page)
            assert found is not None, page
            page = await _page(stream, run_id, found[1])
        await stream.aclose()

    async def stream(self, run_id: str) -> None:
        """One stream of server-sent events."""
        async with self._connecting:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            await stream.send_all(f"GET /runs/{run_id}/events/sse HTTP/1.1\r\nHost: t\r\n\r\n".encode())
            seen = bytes(await stream.receive_some())
        assert seen.startswith(b"HTTP/1.1 200"), seen
        self._attached()
        while not TERMINAL.search(seen):
            piece = await stream.receive_some()
            assert piece, "the stream ended without a terminal event"
            seen = seen[-LONGEST_MARK:] + piece
        await stream.aclose()

    def _attached(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            print("attached", flush=True)


async def _page(stream: trio.SocketStream, run_id: str, after: bytes) -> bytes:
    target = b"/runs/%b/events?after=%b&wait=30&limit=500" % (run_id.encode(), after)
    await stream.send_all(b"GET %b HTTP/1.1\r\nHost: t\r\n\r\n" % target)
    answer = b""
    while not (end := answer.find(b"\r\n\r\n") + 4) > 3 or len(answer) < end + _length(answer):
        piece = await stream.receive_some()
        assert piece, answer
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return answer[end:]


def _length(answer: bytes) -> int:
    found = LENGTH.search(answer)
    assert found is not None, answer
    return int(found[1])


async def main(port: int, pollers: int, streams: int, run_ids: list[str]) -> None:
    crowd = Crowd(port, pollers + streams)
    async with trio.open_nursery() as nursery:
        for number in range(pollers):
            nursery.start_soon(crowd.poll, run_ids[number % len(run_ids)])
        for number in range(streams):
            nursery.start_soon(crowd.stream, run_ids[number % len(run_ids)])
    print("complete", flush=True)


if __name__ == "__main__":
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
