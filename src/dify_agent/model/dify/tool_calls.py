"""Tool calls that come whole, in fragments, or again (integrations 3.7, decision R15)."""

import re
from typing import Any, Final

from pydantic_core import from_json, to_json

from dify_agent.model.dify.chunks import ToolCallChunk

_ABSENT_IDS: Final = frozenset({"", "none", "null"})
_STRUCTURE: Final = re.compile(r'[{}\[\]"\\]')
_BLANK: Final = " \t\r\n"
"""JSON's own, which `str.isspace` is not."""
_MAX_BARE: Final = 64
"""Characters of JSON that is no object and no array. Arguments are objects; ``null`` in their place is short."""


class JsonProgress:
    """Whether text that arrives in pieces is complete JSON. Looks at each character once and parses once, when the
    brackets are closed: many small fragments of long arguments must not cost their square."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._first = ""
        self._verdict: bool | None = None
        """None as long as more of the text can change it."""
        self._depth = 0
        self._in_string = False
        self._escape_at = -1
        self._length = 0

    @property
    def text(self) -> str:
        """Everything so far."""
        if len(self._pieces) > 1:
            self._pieces[:] = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, piece: str) -> None:
        """Take the next piece."""
        if not self._first:
            self._first = piece.lstrip(_BLANK)[:1]
        if self._verdict is None:
            self._scan(piece)
        elif self._verdict and not is_blank(piece):
            self._verdict = False  # more than one value
        self._length += len(piece)
        if piece:
            self._pieces.append(piece)

    def _scan(self, piece: str) -> None:
        for match in _STRUCTURE.finditer(piece):
            place = self._length + match.start()
            if place == self._escape_at:
                continue  # the character behind a backslash
            self._see(match[0], place)

    def _see(self, character: str, place: int) -> None:
        if self._in_string:
            if character == "\\":
                self._escape_at = place + 1
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def is_complete(self) -> bool:
        """Whether the text so far is one JSON value."""
        if self._verdict is not None:
            return self._verdict
        if self._first not in ("{", "["):
            return self._length <= _MAX_BARE and self._is_json()
        if self._in_string or self._depth > 0:
            return False
        self._verdict = self._is_json()
        return self._verdict

    def _is_json(self) -> bool:
        try:
            from_json(self.text)
        except ValueError:
            return False
        return True


class ToolCallDraft:
    """A tool call as far as it has arrived, and its place among the parts."""

    def __init__(self, index: int, call_id: str, name: str, arguments: str) -> None:
        self.index: Final = index
        self.call_id: Final = call_id
        self.begin(name, arguments)

    def begin(self, name: str, arguments: str) -> None:
        """Start again with another call."""
        self.name = name
        self._arguments = JsonProgress()
        self._arguments.add(arguments)

    @property
    def arguments(self) -> str:
        """JSON text, perhaps not complete yet."""
        return self._arguments.text

    def goes_on_with(self, name: str) -> bool:
        """Whether a fragment with this name is more of the call, not the call again (decision R15)."""
        return name in ("", self.name) and not self._arguments.is_complete()

    def is_nothing_new(self, name: str, arguments: str) -> bool:
        """Whether a fragment says nothing: the call is complete, and it brings no other name and no arguments."""
        return name in ("", self.name) and is_blank(arguments) and self._arguments.is_complete()

    def append(self, arguments: str) -> None:
        """More of the arguments."""
        self._arguments.add(arguments)


def is_blank(text: str) -> bool:
    """Whether arguments have nothing but JSON's white space."""
    return not text.strip(_BLANK)


def call_id(call: ToolCallChunk) -> str:
    """The id that a call was sent with, or empty: some providers write ``none`` or ``null``."""
    given = (call.get("id") or "").strip()
    return "" if given.lower() in _ABSENT_IDS else given


def call_index(call: ToolCallChunk) -> int | None:
    """The position that a call was sent with, if it is one."""
    index = call.get("index")
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def name_and_arguments(call: ToolCallChunk) -> tuple[str, str]:
    """Name and arguments, empty where they are absent; arguments that came as an object are written as JSON."""
    function: Any = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else "" if arguments is None else to_json(arguments).decode()
    return function.get("name") or "", text
