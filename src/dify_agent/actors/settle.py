"""What becomes of a run whose create was refused or broken off with an unknown outcome: it must not stay running.

Nobody executes it here. If its record exists it is ended, as an orphan's is, by a verdict that names this replica as
its owner: under an idempotency key another replica may have created the run meanwhile, and then it is that replica's.
"""

from datetime import UTC, datetime

import structlog
import trio

from dify_agent.actors.finalize import RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, proposed_ending
from dify_agent.actors.messages import Failed, Interrupted, Stop, WorkDone
from dify_agent.actors.terminals import cancellation_terminal, failure_terminal
from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.base import Owner, RunStore, Terminal, Verdict

_log = structlog.get_logger()


async def settle_unknown(store: RunStore, owner: Owner, record: RunStatusResponse, stop: Stop) -> None:
    """End the run if it exists and is ``owner``'s. While the store is away it is tried again; the caller sets a bound.

    Args:
        store: where the record may be.
        owner: this replica.
        record: as it was to be created.
        stop: why the run was not executed; what its failure says.
    """
    ending = proposed_ending(WorkDone(Interrupted()), stop)
    assert isinstance(ending, Failed), "a run without a result has not succeeded"
    # Built once: a repeat after a lost reply must be the same transition, or the store could not recognise it.
    failed = failure_terminal(record, datetime.now(UTC), ending)
    cancelled: Terminal | None = None
    pause = RETRY_FIRST_SECONDS
    while True:
        try:
            outcome = await store.judge(Verdict(record.run_id, owner, failed, cancelled))
            if outcome != "intent":
                _log.info("create with an unknown outcome settled", run_id=record.run_id, outcome=outcome)
                return
            intent = await store.read_intent(record.run_id)
            cancelled = None if intent is None else cancellation_terminal(record, datetime.now(UTC), intent)
        except StoreUnavailableError:
            await trio.sleep(pause)
            pause = min(pause * 2, RETRY_MOST_SECONDS)
