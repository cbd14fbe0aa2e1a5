"""Readers of one run's stream, in a process of their own: ``python -m bench.readers HOST PORT PATH COUNT``.

Plain sockets that count and keep nothing, so that what is measured is the server. Prints ``attached`` once every reader
has the head of its answer, and what they counted, as a JSON object, once every stream has ended.
"""

import json
import selectors
import socket
import sys
import time

RECEIVE_BYTES = 1 << 18
STUCK_SECONDS = 30.0
"""Nothing for anyone in so long: the stream does not end."""

FIRST_DELTA = b'"event_kind":"part_delta"'
LAST_EVENT = b'"type":"run_succeeded"'
EVENT_OF = {"sse": b"\ndata: ", "ws": b'{"id":"'}
"""What every event holds once: JSON has no raw line end, and no quotation mark inside its strings without a backslash.
No object in the events of a scripted run begins with ``id``."""
OVERLAP = max(map(len, (FIRST_DELTA, LAST_EVENT, *EVENT_OF.values()))) - 1

HANDSHAKE = {
    "sse": "Connection: close\r\n",
    "ws": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
}


class Reader:
    """One connection. Counts until its end."""

    def __init__(self, host: str, port: int, path: str) -> None:
        kind = path.rpartition("/")[2]
        self._mark = EVENT_OF[kind]
        self._head = bytearray()
        self._overlap = b""
        self.attached = False
        self.complete = False
        self.saw_delta = False
        self.events = 0
        self.socket = socket.create_connection((host, port))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{HANDSHAKE[kind]}\r\n".encode())
        self.socket.setblocking(False)

    def receive(self) -> bool:
        """Take what has arrived; False at the end of file."""
        data = self.socket.recv(RECEIVE_BYTES)
        if self.attached:
            self._count(data)
        else:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if end or not data:
                if bytes(head[9:12]) not in (b"200", b"101"):
                    sys.exit(f"a reader was answered {bytes(self._head)!r}")
                self.attached = True
                self._count(bytes(rest))
        return bool(data)

    def _count(self, data: bytes) -> None:
        """Marks may lie across two pieces: the end of one, too short for a whole mark, is looked at again."""
        self.events += (self._overlap[1 - len(self._mark) :] + data).count(self._mark)
        seen = self._overlap + data
        self.saw_delta = self.saw_delta or FIRST_DELTA in seen
        if not self.complete and LAST_EVENT in seen:
            self.complete = True
            self.socket.shutdown(socket.SHUT_WR)  # a WebSocket's server waits for an answer to its closing frame
        self._overlap = seen[-OVERLAP:]


def read(host: str, port: int, path: str, count: int) -> dict[str, float]:
    """Read ``count`` streams to their ends: events of each, seconds from the first delta to the last event."""
    readers = [Reader(host, port, path) for _ in range(count)]
    waiting = count
    began = 0.0
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        while selector.get_map():
            ready = selector.select(STUCK_SECONDS)
            if not ready:
                sys.exit("the streams are stuck")
            for key, _ in ready:
                reader = key.data
                was_attached = reader.attached
                if not reader.receive():
                    selector.unregister(reader.socket)
                    reader.socket.close()
                if reader.attached and not was_attached:
                    waiting -= 1
                    if not waiting:
                        print("attached", flush=True)
                if not began and reader.saw_delta:
                    began = time.monotonic()
    seconds = time.monotonic() - began
    counts = {reader.events for reader in readers}
    if len(counts) > 1 or not all(reader.complete for reader in readers):
        sys.exit(f"the streams differ or were cut: {sorted(counts)} events")
    return {"events": counts.pop(), "seconds": seconds, "cpu_seconds": time.process_time()}


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
