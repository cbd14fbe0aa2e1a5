"""What callers have stored in the fakes, within a bound of bytes."""

from collections import OrderedDict
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from dify_agent.testing.refusals import refusal

STATE_BYTES: Final = 64 * 1024 * 1024
"""Default bound. One upload of the size that the Agent Stub allows by default (50 MiB) fits."""
ENTRY_BYTES: Final = 512
"""Counted for an entry beside what it holds: empty ones are bounded too."""


Key: TypeAlias = str | tuple[str, ...]


def text_bytes(*texts: str) -> int:
    """What texts count for: their UTF-8."""
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


class Storable(Protocol):
    """An immutable value that knows its size."""

    @property
    def kept_bytes(self) -> int:
        """Of all that it holds."""


StorableT = TypeVar("StorableT", bound=Storable)


class KeptState:
    """Values by type and key. The entries written longest ago make room for new ones."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[type[Any], Key], Storable] = OrderedDict()
        self.kept_bytes = 0

    def put(self, key: Key, value: Storable) -> None:
        """Store a value in the place of the one of its type and key.

        Raises:
            Refused: 413, it is larger than everything that may be kept.
        """
        size = _size(key, value)
        if size > self._max_bytes:
            raise refusal(413, "file_too_large", f"the fakes keep at most {self._max_bytes} bytes (--state-bytes)")
        place = (type(value), key)
        self._drop(place)
        self._entries[place] = value
        self.kept_bytes += size
        while self.kept_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def get(self, kind: type[StorableT], key: Key) -> StorableT | None:
        """The value, if it is still kept."""
        value = self._entries.get((kind, key))
        return value if isinstance(value, kind) else None

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.kept_bytes = 0

    def _drop(self, place: tuple[type[Any], Key]) -> None:
        value = self._entries.pop(place, None)
        if value is not None:
            self.kept_bytes -= _size(place[1], value)


def _size(key: Key, value: Storable) -> int:
    return text_bytes(*((key,) if isinstance(key, str) else key)) + value.kept_bytes + ENTRY_BYTES
