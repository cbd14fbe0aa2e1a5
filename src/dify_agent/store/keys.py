"""Every key name of the store, in one place (decision R1).

The keys of one run share a hash tag, and so do those of one owner, so that each script and each MULTI touches one slot
of a Redis Cluster. Two servers share a prefix only if they use these very names.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_PLAIN_TENANT: Final = re.compile(r"[\w.-]{0,100}", re.ASCII)
"""Tenants that stand in a key name as they are: all of Dify's, which are UUIDs."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under ``prefix``.

    Raises:
        ValueError: for a prefix that is empty or has a brace: it would displace the hash tags.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix or "{" in self.prefix or "}" in self.prefix:
            raise ValueError("DIFY_AGENT_REDIS_PREFIX must not be empty and must not contain '{' or '}'")

    def record(self, run_id: str) -> str:
        """String: the run record's JSON."""
        return f"{self.prefix}:runs:{{{_tag(run_id)}}}:record"

    def events(self, run_id: str) -> str:
        """Stream: one entry per event, field ``payload``."""
        return f"{self.prefix}:runs:{{{_tag(run_id)}}}:events"

    def intent(self, run_id: str) -> str:
        """Stream of at most one entry: the accepted cancellation, field ``payload``."""
        return f"{self.prefix}:runs:{{{_tag(run_id)}}}:cancel-intent"

    def owner(self, run_id: str) -> str:
        """String ``<epoch>:<owner id>``: the replica that executes the run."""
        return f"{self.prefix}:runs:{{{_tag(run_id)}}}:owner"

    def run(self, run_id: str) -> tuple[str, str, str, str]:
        """Record, events, owner and intent: the order in which every script takes them."""
        return self.record(run_id), self.events(run_id), self.owner(run_id), self.intent(run_id)

    @property
    def owners(self) -> str:
        """Set: ids of all owners that may have runs."""
        return f"{self.prefix}:owners"

    def alive(self, owner_id: str) -> str:
        """String with a short TTL, the lease: the owner's epoch."""
        return f"{self.prefix}:owners:{{{owner_id}}}:alive"

    def seen(self, owner_id: str) -> str:
        """String with the retention as TTL: the owner has renewed its lease within that time."""
        return f"{self.prefix}:owners:{{{owner_id}}}:seen"

    def runs(self, owner_id: str) -> str:
        """Set: ids of the runs that the owner executes."""
        return f"{self.prefix}:owners:{{{owner_id}}}:runs"

    def inbox(self, owner_id: str) -> str:
        """Stream, field ``run``: runs whose intent the owner should look at."""
        return f"{self.prefix}:owners:{{{owner_id}}}:inbox"

    def doorbell(self, owner_id: str) -> str:
        """Stream: wakes the owner's blocking read over remote runs."""
        return f"{self.prefix}:owners:{{{owner_id}}}:doorbell"

    def idempotency(self, tenant: str, key: str) -> str:
        """String ``<run id>:<SHA-256 of the request>:<holder>``: which run an idempotency key stands for.

        A tenant with other characters than identifiers have, or a very long one, stands there as ``sha256-…``: the
        caller states it, and a brace would displace the hash tag.
        """
        if not _PLAIN_TENANT.fullmatch(tenant):
            tenant = f"sha256-{_sha256(tenant)}"
        return f"{self.prefix}:idempotency:{{{tenant}:{_sha256(key)}}}"


def _tag(run_id: str) -> str:
    # Ids that no run has, but a path can: an empty hash tag is none, and the keys would lie in different slots.
    return run_id if run_id[:1] not in ("", "}") else f"-{run_id}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
