"""What the store keeps of owners: leases, their sets of runs, inboxes and doorbells."""

from collections.abc import Sequence
from typing import Any, cast

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import KeyUnreadableError, Owner
from dify_agent.store.executor import Command, Lane, Reply
from dify_agent.store.faults import is_wrong_type
from dify_agent.store.lua import TOUCH
from dify_agent.store.questions import Questions, check_answered, chunks, sound
from dify_agent.store.replies import entries_of, names_of

_INBOX_LENGTH = 1000
_INBOX_READ = 100
_DOORBELL_LENGTH = 10
_KINDS = {"runs": "set of runs", "inbox": "inbox", "doorbell": "doorbell"}
_LATE_SECONDS = 60
"""A request of a replica that is gone may still reach the store; after so long none does."""


class OwnerOperations(Questions):
    """The part of `dify_agent.store.base.RunStore` that concerns owners. See there."""

    async def heartbeat(self, owner: Owner, lease_seconds: float, run_ids: Sequence[str] = ()) -> None:
        keys, owned = self._keys, self._keys.runs(owner.id)
        # In order: an owner in the list whose lease is not there yet would look lost. One command for all runs, however
        # many, and last: it is what may wait.
        named = [Command(b"SADD", (owned, *run_ids))] if run_ids else []
        await self._of_owners(
            Command(b"SET", (keys.alive(owner.id), owner.epoch, "PX", max(1, round(lease_seconds * 1000)))),
            Command(b"SET", (keys.seen(owner.id), owner.epoch, "EX", self._retention)),
            *map(self._expire, (keys.inbox(owner.id), keys.doorbell(owner.id))),
            Command(b"SADD", (keys.owners, owner.id)),
            self._expire(keys.owners),
            *named,
            self._expire(owned),
            in_order=True,
        )

    async def touch_runs(self, owner: Owner, run_ids: Sequence[str]) -> None:
        # The set is written anew as well: a failover may have lost the entry that create had made.
        owned = self._keys.runs(owner.id)
        replies: list[Reply] = []
        for chunk in chunks(run_ids):
            refresh = (self._call(TOUCH, run_id, self._retention) for run_id in chunk)
            entry = Command(b"SADD", (owned, *chunk))
            named, *touched = await self._answers([entry, self._expire(owned), *refresh], lane=Lane.SERVICES)
            # A set that is none is told with each heartbeat.
            replies += touched if is_wrong_type(named) else [named, *touched]
        for reply in replies:  # only now: a run whose server is away holds up none of the others
            sound(reply)

    async def release_runs(self, owner_id: str, run_ids: Sequence[str]) -> None:
        for chunk in chunks(run_ids):
            await self._of_owners(Command(b"SREM", (self._keys.runs(owner_id), *chunk)))

    async def read_leases(self) -> dict[str, bool | None]:
        (members,) = await self._of_owners(Command(b"SMEMBERS", (self._keys.owners,)))
        owners = names_of(members)
        held = await self._answers(
            [Command(b"EXISTS", (self._keys.alive(owner),)) for owner in owners], lane=Lane.SERVICES
        )
        check_answered(held)
        return {
            owner: None if isinstance(reply, StoreUnavailableError) else sound(reply) == 1
            for owner, reply in zip(owners, held, strict=True)
        }

    async def read_owned(self, owner_id: str) -> Sequence[str]:
        (members,) = await self._of_owners(Command(b"SMEMBERS", (self._keys.runs(owner_id),)))
        return names_of(members)

    async def forget_owner(self, owner_id: str) -> None:
        keys = self._keys
        seen, left = await self._of_owners(
            Command(b"EXISTS", (keys.seen(owner_id),)), Command(b"SCARD", (keys.runs(owner_id),))
        )
        if not seen and not left:
            await self._of_owners(Command(b"SREM", (keys.owners, owner_id)))

    async def retire(self, owner: Owner) -> None:
        keys = self._keys
        own = (keys.alive(owner.id), keys.inbox(owner.id), keys.doorbell(owner.id))
        linger = Command(b"EXPIRE", (keys.seen(owner.id), min(_LATE_SECONDS, self._retention)))
        await self._all(Command(b"DEL", own), linger, lane=Lane.SERVICES)

    async def ring(self, owner_id: str, run_id: str) -> None:
        inbox = self._keys.inbox(owner_id)
        add = Command(b"XADD", (inbox, "MAXLEN", "~", _INBOX_LENGTH, "*", "run", run_id))
        await self._of_owners(add, self._expire(inbox), lane=Lane.REQUESTS)

    async def read_inbox(self, owner: Owner, after: str, block_seconds: float) -> list[tuple[str, str]]:
        """See the port. ``after`` is the last entry id read, ``0-0`` at the start; ``$`` would miss earlier ones."""
        inbox = self._keys.inbox(owner.id)
        block = max(1, round(block_seconds * 1000))  # 0 would mean for ever
        read = Command(b"XREAD", ("COUNT", _INBOX_READ, "BLOCK", block, "STREAMS", inbox, after))
        (reply,) = await self._of_owners(read, block_seconds=block_seconds)
        streams = cast("dict[bytes, Any]", reply or {})
        return [(key.decode(), value.decode()) for entries in streams.values() for key, value in entries_of(entries)]

    async def ring_doorbell(self, owner: Owner) -> None:
        bell = self._keys.doorbell(owner.id)
        add = Command(b"XADD", (bell, "MAXLEN", "~", _DOORBELL_LENGTH, "*", "bell", ""))
        await self._of_owners(add, self._expire(bell))

    async def _of_owners(
        self, *commands: Command, lane: Lane = Lane.SERVICES, block_seconds: float = 0, in_order: bool = False
    ) -> list[Reply]:
        """As `_all`, of keys that are owners'.

        Raises:
            KeyUnreadableError: one of them has a wrong type.
        """
        replies = await self._executor.execute(commands, lane=lane, block_seconds=block_seconds, in_order=in_order)
        for command, reply in zip(commands, replies, strict=True):
            if is_wrong_type(reply):
                raise self._unreadable_of_owner(str(command.key))
            sound(reply)
        return replies

    def _unreadable_of_owner(self, key: str) -> KeyUnreadableError:
        kind = "the list of owners" if key == self._keys.owners else f"an owner's {_KINDS[key.rpartition(':')[2]]}"
        return KeyUnreadableError(kind, key)
