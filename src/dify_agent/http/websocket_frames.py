"""WebSocket frames without I/O: how events leave, what may come in, which handshakes are refused (RFC 6455)."""

import binascii
import re
import struct
from base64 import b64decode
from collections.abc import Iterable
from typing import Final

from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Of one message from a client, however many frames it comes in."""

VERSION: Final = b"13"

_FINAL_TEXT: Final = 0x81
_SHORT: Final = 125
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127

_KEY_BYTES: Final = 16
_NO_BODY: Final = re.compile(rb"0+")

Refusal = tuple[int, str]
"""Status and detail of an HTTP answer."""


def text_frame(payload: bytes) -> bytes:
    """One unmasked, final text frame. Written by hand because wsproto wants text, which it would encode again, and
    copies it four times; events already lie here as bytes."""
    size = len(payload)
    if size <= _SHORT:
        head = bytes((_FINAL_TEXT, size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", _FINAL_TEXT, _TWO_BYTES, size)
    else:
        head = struct.pack("!BBQ", _FINAL_TEXT, _EIGHT_BYTES, size)
    return head + payload


class InboundPolicy(Extension):
    """Judges each frame by its header, before any of its payload is kept: text only, up to ``max_bytes`` a message.

    Not an extension on the wire; the interface is the place where wsproto lets a frame be refused with a close code.
    It stands alone: compression is not offered, since a compressed frame of 64 KiB may hold 64 MiB, and each
    compressor costs a connection about 300 KiB.
    """

    name = "inbound-policy"

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._message_bytes = 0

    def enabled(self) -> bool:
        """Always: nothing about it is negotiated."""
        return True

    def offer(self) -> bool:
        """Nothing to offer."""
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        """The reserved bits this accepts (none), or the code with which the connection ends."""
        if opcode is Opcode.BINARY:
            return CloseReason.UNSUPPORTED_DATA
        if not opcode.iscontrol():
            if opcode is Opcode.TEXT:
                self._message_bytes = 0
            self._message_bytes += payload_length
            if self._message_bytes > self._max_bytes:
                return CloseReason.MESSAGE_TOO_BIG
        return RsvBits(False, False, False)


def handshake_refusal(headers: Iterable[tuple[bytes, bytes]], http_version: str) -> Refusal | None:
    """Why a request to upgrade is no WebSocket handshake, or None.

    hypercorn looks at less: it fails with an exception where these headers are not ASCII, and reads the body of a
    request that has one as frames.
    """
    key, version, has_body, is_ascii = b"", b"", False, True
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"sec-websocket-key":
            key = value
        elif lowered == b"sec-websocket-version":
            version = value
        elif lowered == b"transfer-encoding" or (lowered == b"content-length" and not _NO_BODY.fullmatch(value)):
            has_body = True
        if lowered.startswith(b"sec-websocket-") or lowered in (b"connection", b"upgrade"):
            is_ascii = is_ascii and value.isascii()
    if http_version < "1.1" or not is_ascii or has_body:
        return 400, "Bad Request"
    if version != VERSION:
        return 426, "WebSocket version 13 is required"
    return None if _is_key(key) else (400, "Bad Request")


def _is_key(value: bytes) -> bool:
    try:
        return len(b64decode(value, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False
