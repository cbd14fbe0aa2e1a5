"""Bytes of an event stream to its data lines.

Lines end at LF or CRLF only. A text line iterator would also split at U+0085, U+2028 and others, which stand unescaped
inside the JSON of a chunk (integrations 3.6).
"""

from typing import Final

MAX_LINE_BYTES: Final = 1 << 20
"""Longest line of a model's answer, beside what it may repeat of the request: the Dify API echoes the prompt in every
chunk. A chunk is a few tokens, and one line is held several times over while it is read. Replies of tools, which bring
texts and files whole, have a larger limit of their own (`dify_agent.layers.dify_plugin.tools_client`)."""

_SILENT_FIELDS: Final = (b":", b"event:", b"id:", b"retry:")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class LineTooLongError(ValueError):
    """A line did not end within the allowed number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"a line is longer than {max_bytes} bytes")


class LineSplitter:
    """Cuts a byte stream into lines, however the bytes are packeted. Looks at each byte once."""

    def __init__(self, max_bytes: int) -> None:
        """Take the longest line allowed, in bytes without its end."""
        self._max_bytes: Final = max_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their ends.

        Raises:
            LineTooLongError: a line is longer than allowed, ended or not. Later lines are lost.
        """
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
            self._rest_bytes = 0
        if tail:
            self._rest.append(tail)
            self._rest_bytes += len(tail)
        if self._rest_bytes > self._max_bytes or self._is_too_long(lines, len(data)):
            raise LineTooLongError(self._max_bytes)
        return lines

    def _is_too_long(self, lines: list[bytes], read: int) -> bool:
        """Whether one of the lines is, of which the first alone is longer than what was read."""
        looked_at = lines if read > self._max_bytes else lines[:1]
        return any(len(line) > self._max_bytes for line in looked_at)

    def finish(self) -> bytes:
        """What came after the last line end."""
        rest = b"".join(self._rest)
        self._rest.clear()
        self._rest_bytes = 0
        return rest


def payload(line: bytes) -> bytes:
    """The JSON that a line carries, with or without the prefix ``data:``; empty for blank lines, comments and the other
    fields of an event stream."""
    line = line.strip().removeprefix(_BYTE_ORDER_MARK)
    if line.startswith(b"data:"):
        return line[5:].strip()
    return b"" if line.startswith(_SILENT_FIELDS) else line
