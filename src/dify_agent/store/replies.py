"""Replies of Redis as they come from the parser, read."""

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from dify_agent.protocol.event_id import EventId
from dify_agent.store.executor import Reply


def word_of(text: bytes) -> str:
    """A word that a script answers."""
    return text.decode("utf-8", "replace")


def type_of(reply: Reply) -> str:
    """What TYPE answers."""
    return word_of(reply) if isinstance(reply, bytes) else str(reply)


def words_of(reply: Reply) -> list[str]:
    """The words of a list."""
    return [word_of(text) for text in cast("list[bytes]", reply)]


def names_of(members: Reply) -> list[str]:
    """A set's members, sorted. No id of ours is anything else than UTF-8."""
    found = []
    for member in cast("set[bytes]", members):
        with suppress(UnicodeDecodeError):
            found.append(member.decode())
    return sorted(found)


def entries_of(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    """Id and the one field's value of each entry of a stream range."""
    for key, fields in cast("list[tuple[bytes, list[bytes]]]", reply):
        yield key, fields[1]


def event_id_of(text: bytes) -> EventId:
    """An entry's id."""
    ms, _, n = text.partition(b"-")
    return EventId(int(ms), int(n))


def evicting(reply: Reply) -> str | None:
    """The policy by which a server deletes keys, from what INFO answers; None when it deletes none or does not say."""
    if not isinstance(reply, bytes | bytearray):
        return None
    facts = dict(line.split(":", 1) for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)
    policy = facts.get("maxmemory_policy", "noeviction")
    return policy if policy != "noeviction" and facts.get("maxmemory", "0") != "0" else None
