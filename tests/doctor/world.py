"""A small deployment: a living owner with healthy runs, and a doctor that looks at it."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from tests.contracts.store_support import CREATED, MS, intent, run_id, running, terminal

from dify_agent.doctor.checks import Bounds, Finding
from dify_agent.doctor.keyspace import ExecutorKeyspace
from dify_agent.doctor.repair import Repairs
from dify_agent.doctor.scan import Scan, ScanResult
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import AppendBatch, Claim, IdempotencyKey, Owner, StoredEvent
from dify_agent.store.executor import Executor
from dify_agent.store.keys import Keys
from dify_agent.store.redis import RedisRunStore

RETENTION: Final = 600
BOUNDS: Final = Bounds(retention=RETENTION, lease=15)
LIVING: Final = Owner("replica-1", 7)
DEAD: Final = Owner("replica-0", 3)
"""Nothing tells that it ever lived."""
FROZEN: Final = Owner("replica-2", 5)
KEY: Final = IdempotencyKey("tenant", "key")


def payload(run: str, type_: str = "pydantic_ai_event", **data: Any) -> bytes:
    """An event's JSON as the envelope writes it."""
    created = CREATED.isoformat().replace("+00:00", "Z")
    return json.dumps(
        {"run_id": run, "created_at": created, "type": type_, "data": data}, separators=(",", ":")
    ).encode()


def event(run: str, n: int, type_: str = "pydantic_ai_event", **data: Any) -> StoredEvent:
    return StoredEvent(EventId(MS, n), payload(run, type_, **data))


@dataclass
class World:
    """Everything is written by the store itself; tests then break it by hand, with the witness."""

    store: RedisRunStore
    executor: Executor
    witness: Any
    prefix: str
    healthy: list[str] = field(default_factory=list)

    @property
    def keys(self) -> Keys:
        return Keys(self.prefix)

    async def settle(self) -> None:
        """A running run, one of each ending, one with a waiting cancel, a trimmed one, and a claim."""
        await self.store.heartbeat(LIVING, 60)
        for status in ("running", "succeeded", "failed", "cancelled"):
            self.healthy.append(await self.run(status))
        waiting = await self.run("running")
        await self.store.request_cancel(waiting, intent())
        self.healthy += [waiting, await self.run("running", events=450)]
        await self.store.claim(KEY, Claim(waiting, "d" * 64, "holder"))

    async def run(self, status: str = "running", *, owner: Owner = LIVING, events: int = 3) -> str:
        """A healthy run with so many events before its end."""
        run = run_id()
        await self.store.create_run(running(run), owner)
        log = [event(run, n, "run_started" if n == 1 else "pydantic_ai_event", number=n) for n in range(1, events + 1)]
        await self.store.append([AppendBatch(run, START, tuple(log))])
        if status == "cancelled":
            await self.store.request_cancel(run, intent())
        if status != "running":
            await self.end(run, status)
        return run

    async def end(self, run: str, status: str) -> None:
        item = terminal(run, status)  # type: ignore[arg-type]
        data = {"error": "it broke", "reason": None} if status == "failed" else {"message": "stop"}
        item = type(item)(run, item.record, payload(run, f"run_{status}", **data), item.ms)
        await (self.store.finalize_cancel(item) if status == "cancelled" else self.store.finalize(item))

    def scan(self) -> Scan:
        return Scan(ExecutorKeyspace(self.executor), self.keys, BOUNDS, recheck_seconds=0.01)

    async def look(self) -> ScanResult:
        return await self.scan().run()

    async def repair(self) -> tuple[list[Finding], list[Finding]]:
        """What is found, and what of it is repaired."""
        scan = self.scan()
        found = (await scan.run()).findings
        return found, await Repairs(ExecutorKeyspace(self.executor), self.keys, scan).apply(found)

    def all_keys(self) -> list[bytes]:
        return [key for key in self.witness.scan_iter(count=1000) if key.startswith(f"{self.prefix}:".encode())]

    def values(self, *but: str) -> dict[bytes, Any]:
        """Every key's content, except those whose name has one of these texts."""
        kept = [key for key in self.all_keys() if not any(text.encode() in key for text in but)]
        return {key: self._value(key) for key in kept}

    def ttls(self) -> dict[bytes, int]:
        """Of every key, in milliseconds, as PTTL answers."""
        return {key: self.witness.pttl(key) for key in self.all_keys()}

    def _value(self, key: bytes) -> Any:
        match self.witness.type(key):
            case b"string":
                return self.witness.get(key)
            case b"stream":
                return self.witness.xrange(key), self.witness.xinfo_stream(key)
            case b"set":
                return self.witness.smembers(key)
        return self.witness.lrange(key, 0, -1)

    def add(self, run: str, n: int, type_: str = "pydantic_ai_event", *, ms: int = MS, **data: Any) -> None:
        """An event written past the store."""
        self.raw(run, f"{ms}-{n}", payload(run, type_, **data))

    def raw(self, run: str, event_id: str, text: bytes, field_name: str = "payload") -> None:
        self.witness.xadd(self.keys.events(run), {field_name: text}, id=event_id)

    def set_record(self, run: str, **changes: Any) -> None:
        key = self.keys.record(run)
        record = json.loads(self.witness.get(key))
        self.witness.set(key, json.dumps({**record, **changes}), keepttl=True)

    def record(self, run: str) -> dict[str, Any]:
        return dict(json.loads(self.witness.get(self.keys.record(run))))
