"""WebSocket clients for tests: one that knows nothing but bytes, and trio-websocket."""

import json
import struct
from contextlib import asynccontextmanager

import trio
import trio_websocket
from tests.unit.http.test_server import read_until

HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
MASK = b"\x37\xfa\x21\x3d"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def handshake(target, *headers, drop=()):
    kept = [line for line in HANDSHAKE if line.partition(":")[0] not in drop]
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: server.test", *kept, *headers, "", ""]).encode("latin-1")


def frame(opcode, payload=b"", *, fin=True, masked=True, length=None, rsv=0):
    """A client's frame. ``length`` is what the header claims, when it lies."""
    size = len(payload) if length is None else length
    mask_bit = 0x80 if masked else 0
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if size <= 125:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", mask_bit | 126, size)
    else:
        head += struct.pack("!BQ", mask_bit | 127, size)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))


def text(payload, **options):
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return frame(TEXT, data, **options)


def close(code, reason=b""):
    return frame(CLOSE, struct.pack("!H", code) + reason)


class RawSocket:
    """The client's end of a connection that has been upgraded."""

    def __init__(self, stream, buffer=b""):
        self.stream = stream
        self.buffer = buffer

    async def send(self, data):
        await self.stream.send_all(data)

    async def frame(self):
        """The next frame as opcode and payload; None at the end of file."""
        while True:
            if len(self.buffer) >= 2:
                size, start = self.buffer[1], 2
                if size == 126:
                    size, start = int.from_bytes(self.buffer[2:4], "big"), 4
                elif size == 127:
                    size, start = int.from_bytes(self.buffer[2:10], "big"), 10
                if len(self.buffer) >= start + size:
                    opcode, payload = self.buffer[0] & 15, self.buffer[start : start + size]
                    self.buffer = self.buffer[start + size :]
                    return opcode, payload
            piece = await self.stream.receive_some()
            if not piece:
                assert not self.buffer, "the stream ends inside a frame"
                return None
            self.buffer += piece

    async def json(self):
        opcode, payload = await self.frame()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    async def closed(self):
        """Code and reason of the close frame, which must be the next frame but pings; then nothing may follow."""
        while (got := await self.frame()) is not None and got[0] in (PING, PONG):
            pass
        opcode, payload = got
        assert opcode == CLOSE, got
        await self.send(frame(CLOSE, payload))
        assert await self.frame() is None
        return (int.from_bytes(payload[:2], "big"), payload[2:].decode()) if payload else None


@asynccontextmanager
async def raw_socket(server, target, *headers, early=b""):
    async with await server.connect() as stream:
        await stream.send_all(handshake(target, *headers) + early)
        head, _, rest = (await read_until(stream, b"\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        assert ACCEPT in head
        yield RawSocket(stream, rest)


@asynccontextmanager
async def client(server, target, **options):
    """A real client, on a socket of ours: the client's own stays open when the server was the one to close."""
    host = f"{server.address[0]}:{server.address[1]}"
    async with await server.connect() as stream, trio.open_nursery() as nursery:
        websocket = await trio_websocket.wrap_client_stream(nursery, stream, host, target, **options)
        yield websocket
        with trio.move_on_after(2):
            await websocket.aclose()
        nursery.cancel_scope.cancel()


async def messages(websocket):
    """Everything up to the close, and how it closed."""
    got = []
    with trio.fail_after(8):
        try:
            while True:
                got.append(json.loads(await websocket.get_message()))
        except trio_websocket.ConnectionClosed as closed:
            reason = closed.reason
    return got, (reason.code, reason.reason or "")
