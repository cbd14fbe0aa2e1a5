"""Which owners are lost: for how long the store has told, without a break, of each owner's lease."""

from typing import Final

import trio

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.base import KeyUnreadableError, RunStore

POLL_SECONDS: Final = 1.0
"""Between two looks at the leases; a verdict is late by at most this and the time of its writing."""
BREAK_POLLS: Final = 3
"""An answer that comes later than so many polls after the one before is a break: this process was not watching."""
LEAST_POLLS: Final = 2 * BREAK_POLLS
"""Polls of a lease. So what is no break is at most half a lease, and no outage in it has cost a living owner its lease,
which is renewed at a third."""


class LeaseWatch:
    """An owner is lost when its lease is gone although the store has told of it, without a break, for a whole lease.

    Its heartbeats had every chance then. An answer that did not come starts the time anew; on a cluster, where one node
    may be away, for the owners it has. So does an owner that is new in the list, and for all of them a time in which
    this replica's own lease does not hold: a store that is full or read-only answers, and takes no heartbeat.
    """

    def __init__(self, store: RunStore, own_id: str, lease_seconds: float) -> None:
        self._store = store
        self._own_id = own_id
        self._lease_seconds = lease_seconds
        self.poll_seconds = min(POLL_SECONDS, lease_seconds / LEAST_POLLS)
        self._leases: dict[str, bool | None] = {}
        self._since: dict[str, float] = {}
        """By owner: when the answers about its lease began that have not been interrupted."""
        self._healthy_since = self._read_at = -float("inf")

    async def read(self) -> dict[str, bool | None]:
        """Ask for all leases, and note who was answered for.

        Raises:
            StoreUnavailableError: the store is away, and the time of every owner starts anew.
            KeyUnreadableError: the list of owners is none; likewise.
        """
        try:
            leases = await self._store.read_leases()
        except (StoreUnavailableError, KeyUnreadableError):
            self._read_at = -float("inf")
            raise
        now = trio.current_time()
        if now - self._read_at > BREAK_POLLS * self.poll_seconds or leases.get(self._own_id) is not True:
            self._since.clear()
            self._healthy_since = now
        self._read_at, self._leases = now, leases
        self._since = {
            owner_id: self._since.get(owner_id, now) for owner_id, held in leases.items() if held is not None
        }
        return leases

    @property
    def has_settled(self) -> bool:
        """Whether the store has been seen healthy for a whole lease."""
        return self._lasts_since(self._healthy_since)

    @property
    def is_due(self) -> bool:
        """Whether the last answer is as old as one may become."""
        return trio.current_time() - self._read_at >= self.poll_seconds

    def is_lost(self, owner_id: str) -> bool:
        """Whether the owner is, by the last answer."""
        since = self._since.get(owner_id)
        return self._leases.get(owner_id) is False and since is not None and self._lasts_since(since)

    def _lasts_since(self, since: float) -> bool:
        return self._read_at - since >= self._lease_seconds
