"""Hash slots of a Redis Cluster, and who serves which."""

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

Address = tuple[str, int]
SLOTS: Final = 16384


def key_slot(key: str) -> int:
    """The hash slot of a key: of its hash tag if it has one that is not empty (Redis Cluster specification).

    The standard library's CRC is the one that Redis uses (polynomial 0x1021, starting at 0).
    """
    start = key.find("{") + 1
    if start:
        end = key.find("}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key.encode("utf-8", "surrogatepass"), 0) % SLOTS


class SlotMap:
    """Which node serves each slot, as one node told it, corrected by what others told since."""

    def __init__(self, ranges: Iterable[tuple[int, int, Address]]) -> None:
        self._owners: list[Address | None] = [None] * SLOTS
        for first, last, address in ranges:
            self._owners[first : last + 1] = [address] * (last + 1 - first)
        self.nodes: set[Address] = {address for address in self._owners if address is not None}

    @classmethod
    def parse(cls, reply: object, asked: Address) -> "SlotMap":
        """Read the answer to CLUSTER SLOTS. A node that does not know its own host is at the one that was asked.

        Raises:
            ValueError: the answer is none of a cluster.
        """
        try:
            rows = cast("Sequence[Sequence[Any]]", reply)
            return cls((int(first), int(last), _address(node, asked)) for first, last, node, *_ in rows)
        except (TypeError, LookupError, ValueError) as error:
            raise ValueError("the slots of the cluster cannot be read") from error

    def owner(self, slot: int) -> Address | None:
        """The node that serves a slot; None when nobody does."""
        return self._owners[slot]

    def move(self, slot: int, address: Address) -> None:
        """Take over what a node answered: this slot is served there now."""
        self._owners[slot] = address
        self.nodes.add(address)


def _address(node: Sequence[Any], asked: Address) -> Address:
    host = node[0].decode() if node[0] else ""
    return ("" if host == "?" else host) or asked[0], int(node[1])
