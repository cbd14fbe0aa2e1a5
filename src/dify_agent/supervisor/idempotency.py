"""Idempotent creates: a repeat with the same key and request gets the first run's id (decision R5).

A create first claims its key for a run id, then creates the run under it. A repeat finds the claim and waits for the
run's record. If none comes, whoever held the claim has died between the two steps; the repeat displaces the claim and
creates the run itself, under the same id. Nothing here relies on a holder being dead, though: a claim is displaced by
comparing it, which one of several rivals wins, and of two that create the run all the same the store lets one through.

Who gives a claim up must be certain that it will never create the run. That is so for a claim of one's own making which
nobody displaced, and never for a displaced holder's, who may only be slow; such a claim stays, for the next repeat to
displace.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

import structlog
import trio

from dify_agent.errors import (
    ActiveRunsLimit,
    IdempotencyConflictError,
    SchedulerStoppingError,
    StoreUnavailableError,
    TooManyActiveRunsError,
)
from dify_agent.protocol.schemas import CreateRunRequest
from dify_agent.store.base import Claim, IdempotencyKey, RunExistsError, RunStore
from dify_agent.supervisor.request_digest import RequestDigests

TAKEOVER_SECONDS: Final = 5.0
"""How long a claim may be without a record before a repeat takes it over."""
LOOK_FIRST_SECONDS: Final = 0.02
LOOK_MOST_SECONDS: Final = 0.25
"""Pauses between looks for the record; they double."""
MAX_CLAIMS: Final = 4
"""Claims that one request meets before it gives up. Each but the first had displaced a dead one and was itself without
a record for `TAKEOVER_SECONDS`: the store or the replicas are in no state to create runs."""
RELEASE_SECONDS: Final = 1.0
"""For giving up a claim behind a refusal. Without a store it stays, and is displaced like one whose holder died."""

_log = structlog.get_logger()

Start = Callable[[CreateRunRequest, str, str], Awaitable[str]]
"""Starts a run, given request, run id and tenant. Nothing is awaited before its actor lives."""


class IdempotentCreates:
    """Creates runs under idempotency keys.

    Args:
        store: holds the claims and the records.
        start: see `Start`.
        reached: the limit that a run of the tenant would exceed now, if any; raises `SchedulerStoppingError` in a
            drain.
        is_housed: whether an actor of this process has the run id.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        start: Start,
        reached: Callable[[str], ActiveRunsLimit | None],
        is_housed: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._start = start
        self._reached = reached
        self._is_housed = is_housed
        self._digests = RequestDigests()

    async def create(self, request: CreateRunRequest, key: IdempotencyKey) -> str:
        """The id of the run that the key stands for, which is started if nobody has.

        Raises:
            IdempotencyConflictError: the key stands for another request.
            TooManyActiveRunsError: the run does not exist, and there is no room for it.
            SchedulerStoppingError: the run does not exist, and shutdown has begun.
            StoreUnavailableError: the store does not answer, or nobody gets the run created.
            ClaimUnreadableError: the key holds what is no claim.
        """
        digest = await self._digests.of(request)
        over: Claim | None = None
        for _ in range(MAX_CLAIMS):
            own = Claim(str(uuid4()) if over is None else over.run_id, digest, secrets.token_hex(8))
            standing = await self._claim(key, own, over)
            if standing == own:
                return await self._create(request, key, own, fresh=over is None)
            if standing.digest != digest:
                raise IdempotencyConflictError
            if await self._appears(key, standing):
                return standing.run_id
            over = standing
        raise StoreUnavailableError("an idempotency key's run is claimed again and again, and not created")

    async def _claim(self, key: IdempotencyKey, own: Claim, over: Claim | None) -> Claim:
        """What the key stands for now: ``own``, if it could be had. Without room for a run it is only looked at."""
        limit = self._reached(key.tenant)
        if over is not None and self._is_housed(over.run_id):
            standing = await self._store.read_claim(key)
            if standing is None or standing == over:
                # Its create goes on right here, or its outcome is being settled: the store is slow or away.
                raise StoreUnavailableError("the run of this idempotency key is still being created")
            return standing  # another taker of this process was faster
        if limit is not None:
            standing = await self._store.read_claim(key)
            if standing is None or standing == over:
                raise TooManyActiveRunsError(limit)
            return standing
        try:
            return await self._store.claim(key, own, over=over)
        except (StoreUnavailableError, trio.Cancelled):
            # The claim may have been made all the same; nobody will create its run.
            if over is None:
                with trio.move_on_after(RELEASE_SECONDS, shield=True):
                    await self._release(key, own)
            raise

    async def _create(self, request: CreateRunRequest, key: IdempotencyKey, own: Claim, *, fresh: bool) -> str:
        try:
            return await self._start(request, own.run_id, key.tenant)
        except RunExistsError:
            return own.run_id  # a claim was displaced although its holder lived: one of the two was faster
        except (TooManyActiveRunsError, SchedulerStoppingError, StoreUnavailableError) as error:
            may_exist = isinstance(error, StoreUnavailableError) and error.sent
            if fresh and not may_exist:
                with trio.move_on_after(RELEASE_SECONDS, shield=True):
                    await self._release(key, own)
            raise

    async def _appears(self, key: IdempotencyKey, claim: Claim) -> bool:
        """Wait for the claimed run's record. False when the claim is not seen to lead to one, or is no more."""
        deadline = trio.current_time() + TAKEOVER_SECONDS
        pause = LOOK_FIRST_SECONDS
        while True:
            overdue = trio.current_time() >= deadline  # before the look: a record that was written in time is seen
            if await self._store.read_record(claim.run_id) is not None:
                return True
            if overdue or await self._store.read_claim(key) != claim:
                return False
            await trio.sleep_until(min(trio.current_time() + pause, deadline))  # the looks may have outlasted it
            pause = min(pause * 2, LOOK_MOST_SECONDS)

    async def _release(self, key: IdempotencyKey, claim: Claim) -> None:
        try:
            await self._store.release_claim(key, claim)
        except StoreUnavailableError as error:
            _log.warning("claim of a refused create not released", run_id=claim.run_id, cause=error.cause)
