"""Every key name of the store, in one place (decision R1).

The keys of one run share a hash tag, and so do those of one owner, so that each script and each MULTI touches one slot
of a Redis Cluster. Two servers share a prefix only if they use these very names.
"""

from dataclasses import dataclass


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
        return f"{self.prefix}:runs:{{{run_id}}}:record"

    def events(self, run_id: str) -> str:
        """Stream: one entry per event, field ``payload``."""
        return f"{self.prefix}:runs:{{{run_id}}}:events"

    def intent(self, run_id: str) -> str:
        """Stream of at most one entry: the accepted cancellation, field ``payload``."""
        return f"{self.prefix}:runs:{{{run_id}}}:cancel-intent"

    def owner(self, run_id: str) -> str:
        """String ``<epoch>:<owner id>``: the replica that executes the run."""
        return f"{self.prefix}:runs:{{{run_id}}}:owner"

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

    def runs(self, owner_id: str) -> str:
        """Set: ids of the runs that the owner executes."""
        return f"{self.prefix}:owners:{{{owner_id}}}:runs"

    def inbox(self, owner_id: str) -> str:
        """Stream, field ``run``: runs whose intent the owner should look at."""
        return f"{self.prefix}:owners:{{{owner_id}}}:inbox"

    def doorbell(self, owner_id: str) -> str:
        """Stream: wakes the owner's blocking read over remote runs."""
        return f"{self.prefix}:owners:{{{owner_id}}}:doorbell"
