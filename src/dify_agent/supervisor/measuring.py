"""What the supervisor tells the metrics: which series there will be, and why a create was refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, get_args

from dify_agent.actors.lifecycle import Phase
from dify_agent.errors import (
    ActiveRunsLimit,
    IdempotencyConflictError,
    SchedulerStoppingError,
    StoreUnavailableError,
    TooManyActiveRunsError,
)
from dify_agent.metrics import Metrics, Refusal
from dify_agent.protocol.schemas import RunStatus
from dify_agent.store.base import VerdictOutcome

_LIMITS: Final[dict[ActiveRunsLimit, Refusal]] = {"process": "process_limit", "tenant": "tenant_limit"}


def announce_series(metrics: Metrics) -> None:
    """Show every series of runs and verdicts from the start."""
    metrics.announce(
        phases=[phase for phase in Phase if phase is not Phase.DONE],  # a run that is done is in no phase
        statuses=[status for status in get_args(RunStatus) if status != "running"],
        outcomes=get_args(VerdictOutcome),
    )


@contextmanager
def counting_refusals(metrics: Metrics) -> Iterator[None]:
    """Count the create that ends in here with a refusal."""
    try:
        yield
    except TooManyActiveRunsError as error:
        metrics.create_refused(_LIMITS[error.limit])
        raise
    except SchedulerStoppingError:
        metrics.create_refused("draining")
        raise
    except StoreUnavailableError:
        metrics.create_refused("store_unavailable")
        raise
    except IdempotencyConflictError:
        metrics.create_refused("idempotency_conflict")
        raise
