"""A run log in memory for tests on a virtual clock: the transitions of protocol 5.5, faults on demand, calls counted.

The real store has its own contract suite; what is tested with this one are the actors.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.protocol.schemas import RunStatusResponse
from dify_agent.store.base import (
    DEFAULT_PAGE_BYTES,
    AppendBatch,
    AppendOutcome,
    CancelIntent,
    CancelOutcome,
    Claim,
    EventPage,
    FinalizeOutcome,
    IdempotencyKey,
    Owner,
    RunExistsError,
    RunLook,
    StoredEvent,
    TailsRead,
    Terminal,
    Verdict,
    VerdictOutcome,
)


@dataclass
class FakeRun:
    record: RunStatusResponse
    owner: Owner
    events: list[StoredEvent] = field(default_factory=list)
    intent: CancelIntent | None = None

    @property
    def top(self) -> EventId:
        return self.events[-1].id if self.events else START

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


class FakeStore:
    """`RunStore` in memory. ``down`` makes every call fail; ``lose_replies`` makes that many succeed silently."""

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.claims: dict[IdempotencyKey, Claim] = {}
        self.calls: Counter[str] = Counter()
        self.down = False
        self.lose_replies: dict[str, int] = {}
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.after_create: Callable[[str], Awaitable[None]] | None = None
        self.rung: list[tuple[str, str]] = []
        self.inboxes: dict[str, list[tuple[str, str]]] = {}
        self.owned: dict[str, set[str]] = {}
        self.leases: dict[str, float] = {}
        """Until when each known owner's lease holds."""
        self.retention = 100.0
        self.unreachable: set[str] = set()
        """Runs and owners whose node of a cluster does not answer."""
        self.unreadable: set[str] = set()
        """Runs whose keys hold something else."""
        self.bell = trio.lowlevel.ParkingLot()
        self.appended = trio.lowlevel.ParkingLot()
        self.reading = 0
        self.doorbell = 0
        self.sealed = trio.lowlevel.ParkingLot()

    async def _enter(self, name: str) -> None:
        self.calls[name] += 1
        if self.before is not None:
            await self.before(name)
        await trio.lowlevel.checkpoint()
        if self.down:
            raise StoreUnavailableError("down on purpose")

    def _leave(self, name: str) -> None:
        if self.lose_replies.get(name, 0) > 0:
            self.lose_replies[name] -= 1
            raise StoreUnavailableError("reply lost on purpose")

    def _run(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise RunNotFoundError(run_id)
        return self.runs[run_id]

    async def ping(self) -> None:
        await self._enter("ping")

    async def create_run(self, record: RunStatusResponse, owner: Owner) -> None:
        await self._enter("create_run")
        self.owned.setdefault(owner.id, set()).add(record.run_id)
        run = self.runs.setdefault(record.run_id, FakeRun(record, owner))
        if (run.record, run.owner) != (record, owner):
            raise RunExistsError(record.run_id)
        if self.after_create is not None:
            await self.after_create(record.run_id)
        self._leave("create_run")

    async def claim(self, key: IdempotencyKey, claim: Claim, *, over: Claim | None = None) -> Claim:
        await self._enter("claim")
        if self.claims.get(key) in (None, claim, over):
            self.claims[key] = claim
        self._leave("claim")
        return self.claims[key]

    async def read_claim(self, key: IdempotencyKey) -> Claim | None:
        await self._enter("read_claim")
        return self.claims.get(key)

    async def release_claim(self, key: IdempotencyKey, claim: Claim) -> None:
        await self._enter("release_claim")
        if self.claims.get(key) == claim:
            del self.claims[key]

    async def read_record(self, run_id: str) -> RunStatusResponse | None:
        await self._enter("read_record")
        run = self.runs.get(run_id)
        return None if run is None else run.record

    async def append(self, batches: Sequence[AppendBatch]) -> Sequence[AppendOutcome | Exception]:
        await self._enter("append")
        outcomes: list[AppendOutcome | Exception] = []
        for batch in batches:
            outcomes.append(self._append(batch))
            try:
                self._leave("append")
            except StoreUnavailableError as error:
                outcomes[-1] = error
        return outcomes

    def _append(self, batch: AppendBatch) -> AppendOutcome:
        ids = [batch.expected_top, *(event.id for event in batch.events)]
        assert ids == sorted(set(ids)), "the ids of a batch must ascend from its expected top"
        run = self.runs.get(batch.run_id)
        if run is None:
            return "missing"
        if run.record.status != "running":
            return "sealed"
        if run.top != batch.expected_top and run.top not in {event.id for event in batch.events}:
            return "gap"
        run.events.extend(event for event in batch.events if event.id > run.top)
        self.appended.unpark_all()
        return "appended"

    async def read_tops(self, run_ids: Sequence[str]) -> dict[str, EventId]:
        await self._enter("read_tops")
        return {run_id: self._run(run_id).top for run_id in run_ids}

    async def finalize(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        return await self._end("finalize", terminal, last)

    async def finalize_cancel(self, terminal: Terminal, last: AppendBatch | None = None) -> FinalizeOutcome:
        return await self._end("finalize_cancel", terminal, last)

    async def _end(self, name: str, terminal: Terminal, last: AppendBatch | None) -> FinalizeOutcome:
        await self._enter(name)
        run, cancels = self._run(terminal.run_id), name == "finalize_cancel"
        if run.record == terminal.record:
            self._leave(name)
            return FinalizeOutcome(True, run.record.status, run.top)
        if run.record.status != "running" or cancels == (run.intent is None):
            return FinalizeOutcome(False, run.record.status, None)
        if last is not None and run.top != last.expected_top:
            return FinalizeOutcome(False, run.record.status, None, gap=True)
        if cancels:
            run.intent = None
        return self._seal(run, terminal, name, () if last is None else last.events)

    def _seal(self, run: FakeRun, terminal: Terminal, name: str, last: Sequence[StoredEvent] = ()) -> FinalizeOutcome:
        terminal.record.model_dump_json()  # a record that has no JSON cannot be stored
        run.events.extend(last)
        event_id = EventId(max(terminal.ms, run.top.ms), run.top.n + 1)
        run.events.append(StoredEvent(event_id, terminal.payload))
        run.record = terminal.record
        self.sealed.unpark_all()
        self.appended.unpark_all()
        self._leave(name)
        return FinalizeOutcome(True, run.record.status, event_id)

    async def request_cancel(self, run_id: str, intent: CancelIntent) -> CancelOutcome:
        await self._enter("request_cancel")
        run = self._run(run_id)
        if run.record.status == "running" and run.intent is None:
            run.intent = intent
        return CancelOutcome(run.record.status, run.owner.id)

    async def read_intent(self, run_id: str) -> CancelIntent | None:
        await self._enter("read_intent")
        run = self.runs.get(run_id)
        return None if run is None else run.intent

    async def read_intents(self, run_ids: Sequence[str]) -> dict[str, CancelIntent]:
        await self._enter("read_intents")
        found = {run_id: self.runs[run_id].intent for run_id in run_ids if run_id in self.runs}
        return {run_id: intent for run_id, intent in found.items() if intent is not None}

    async def read_events(
        self, run_id: str, after: EventId, limit: int, max_bytes: int = DEFAULT_PAGE_BYTES
    ) -> EventPage:
        await self._enter("read_events")
        run = self._run(run_id)
        found: list[StoredEvent] = []
        for event in [event for event in run.events if event.id > after][:limit]:
            size = sum(len(earlier.payload) for earlier in found) + len(event.payload)
            if found and size > max_bytes:
                break
            found.append(event)
        return EventPage(run.record.status, tuple(found))

    async def heartbeat(self, owner: Owner, lease_seconds: float, run_ids: Sequence[str] = ()) -> None:
        await self._enter("heartbeat")
        self.leases[owner.id] = trio.current_time() + lease_seconds
        if run_ids:
            self.owned.setdefault(owner.id, set()).update(run_ids)

    async def touch_runs(self, owner: Owner, run_ids: Sequence[str]) -> None:
        await self._enter("touch_runs")

    async def release_runs(self, owner_id: str, run_ids: Sequence[str]) -> None:
        await self._enter("release_runs")
        self.owned.setdefault(owner_id, set()).difference_update(run_ids)
        self._leave("release_runs")

    async def look(self, run_ids: Sequence[str]) -> dict[str, RunLook | None]:
        await self._enter("look")
        found: dict[str, RunLook | None] = {}
        for run_id in run_ids:
            if run_id not in self.unreachable:
                run = self.runs.get(run_id)
                found[run_id] = None if run is None else RunLook(run.record, run.owner, run.intent)
                if run_id in self.unreadable:
                    found[run_id] = RunLook(None, None, None)
        return found

    async def read_leases(self) -> dict[str, bool | None]:
        await self._enter("read_leases")
        now = trio.current_time()
        return {
            owner_id: None if owner_id in self.unreachable else now < until for owner_id, until in self.leases.items()
        }

    async def read_owned(self, owner_id: str) -> Sequence[str]:
        await self._enter("read_owned")
        return sorted(self.owned.get(owner_id, ()))

    async def judge(self, verdict: Verdict) -> VerdictOutcome:
        await self._enter("judge")
        run = self.runs.get(verdict.run_id)
        if run is None:
            return "missing"
        if run.record.status != "running" or run.owner != verdict.owner:
            return "unapplied"
        if run.intent is None:
            self._seal(run, verdict.failed, "judge")
            return "failed"
        if verdict.cancelled is None:
            return "intent"
        run.intent = None
        self._seal(run, verdict.cancelled, "judge")
        return "cancelled"

    async def forget_owner(self, owner_id: str) -> None:
        await self._enter("forget_owner")
        if not self.owned.get(owner_id) and trio.current_time() - self.leases.get(owner_id, 0) > self.retention:
            self.leases.pop(owner_id, None)

    async def retire(self, owner: Owner) -> None:
        await self._enter("retire")
        self.leases.pop(owner.id, None)

    async def ring(self, owner_id: str, run_id: str) -> None:
        await self._enter("ring")
        inbox = self.inboxes.setdefault(owner_id, [])
        inbox.append((f"{len(inbox) + 1}-0", run_id))
        self.rung.append((owner_id, run_id))
        self.bell.unpark_all()

    async def read_inbox(self, owner: Owner, after: str, block_seconds: float) -> list[tuple[str, str]]:
        await self._enter("read_inbox")
        with trio.move_on_after(block_seconds):
            while True:
                entries = self.inboxes.get(owner.id, [])
                new = [entry for entry in entries if int(entry[0].split("-")[0]) > int(after.split("-", maxsplit=1)[0])]
                if new:
                    return new
                await self.bell.park()
        return []

    async def read_tails(
        self, owner: Owner, positions: Mapping[str, EventId], doorbell: str, block_seconds: float
    ) -> TailsRead:
        await self._enter("read_tails")
        self.reading += 1
        try:
            with trio.move_on_after(block_seconds):
                while True:
                    news = {
                        run_id: tuple(event for event in self.runs[run_id].events if event.id > after)[:100]
                        for run_id, after in positions.items()
                        if run_id in self.runs
                    }
                    found = {run_id: events for run_id, events in news.items() if events}
                    if found or self.doorbell > int(doorbell.split("-", maxsplit=1)[0]):
                        return TailsRead(found, f"{self.doorbell}-0")
                    await self.appended.park()
        finally:
            self.reading -= 1
        return TailsRead({}, doorbell)

    async def ring_doorbell(self, owner: Owner) -> None:
        await self._enter("ring_doorbell")
        self.doorbell += 1
        self.appended.unpark_all()
