"""What must hold for a run that has ended, read from the store by an independent client."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from tests.server.clients import TERMINALS


@dataclass(frozen=True)
class StoredRun:
    """A run as it lies in the store."""

    run_id: str
    record: dict[str, Any]
    events: list[dict[str, Any]]
    """As readers get them: each with its id."""

    @property
    def status(self) -> str:
        return str(self.record["status"])

    @property
    def data(self) -> dict[str, Any]:
        """Of the last event."""
        return dict(self.events[-1]["data"])

    @property
    def ending(self) -> str:
        """The status; of a failure its reason, or what it says when it has none."""
        if self.status != "failed":
            return self.status
        return f"failed: {self.data['reason'] or self.data['error']}"

    @property
    def seconds(self) -> float:
        """From the record to the terminal event."""
        return (moment(self.events[-1]) - datetime.fromisoformat(self.record["created_at"])).total_seconds()


def moment(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["created_at"])


def stored_run(witness: redis.Redis, prefix: str, run_id: str) -> StoredRun:
    keys = f"{prefix}:runs:{{{run_id}}}"
    text = witness.get(f"{keys}:record")
    assert isinstance(text, bytes), f"run {run_id} has no record"
    events = [
        {**json.loads(fields[b"payload"]), "id": event_id.decode()}
        for event_id, fields in witness.xrange(f"{keys}:events")
    ]
    return StoredRun(run_id, json.loads(text), events)


def assert_ended_once(run: StoredRun) -> None:
    """One terminal event, nothing behind it, the record says the same, and no ordinal is missing."""
    kinds = [event["type"] for event in run.events]
    assert [kind for kind in kinds if kind in TERMINALS] == [f"run_{run.status}"], (run.record, kinds)
    assert kinds[-1] in TERMINALS, kinds
    assert [int(event["id"].split("-")[1]) for event in run.events] == list(range(1, len(kinds) + 1)), run.run_id
    if run.status == "failed":
        assert run.record["error"] == run.data["error"]
