"""Admission: how many runs this replica has at a time, in total and per tenant. Counting only; nothing here waits."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dify_agent.errors import ActiveRunsLimit, TooManyActiveRunsError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How many runs may be active at a time; 0 is no limit."""

    total: int = 0
    per_tenant: int = 0
    """Runs without a tenant share one count."""


NO_LIMITS: Final = RunLimits()


class ActiveRuns:
    """The runs that take up capacity, from just before their record is written until they have ended.

    Between ``admit`` and what it protects there is no checkpoint, so parallel creates cannot exceed a limit.
    """

    def __init__(self, limits: RunLimits = NO_LIMITS) -> None:
        self._limits = limits
        self._tenants: dict[str, str] = {}
        """Run id to tenant."""
        self._per_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tenants)

    def reached(self, tenant: str) -> ActiveRunsLimit | None:
        """The limit that a run of the tenant would exceed now, None when it would be admitted."""
        limits = self._limits
        if 0 < limits.total <= len(self._tenants):
            return "process"
        return "tenant" if 0 < limits.per_tenant <= self._per_tenant.get(tenant, 0) else None

    def admit(self, run_id: str, tenant: str) -> None:
        """Count one run more.

        Raises:
            TooManyActiveRunsError: there is no room; nothing has changed.
        """
        if (limit := self.reached(tenant)) is not None:
            raise TooManyActiveRunsError(limit)
        self._tenants[run_id] = tenant
        self._per_tenant[tenant] += 1

    def release(self, run_id: str) -> None:
        """The run has ended, or was never created. May be called again."""
        tenant = self._tenants.pop(run_id, None)
        if tenant is None:
            return
        self._per_tenant[tenant] -= 1
        if not self._per_tenant[tenant]:
            del self._per_tenant[tenant]
