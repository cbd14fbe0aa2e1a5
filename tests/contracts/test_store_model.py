"""Random sequences of transitions against a model of one run: a status, an intent, a list of events."""

import uuid
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.store_support import (
    MS,
    OWNER,
    batch,
    event,
    finish,
    intent,
    run_id,
    running,
    terminal,
    texts,
    whole_log,
)

from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.redis import open_redis_store

OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(-3, 3), st.integers(1, 4)),
    st.tuples(st.just("request"), st.integers(1, 3), st.just(0)),
    st.tuples(st.sampled_from(["succeeded", "failed", "cancelled"]), st.integers(1, 3), st.integers(-2, 2)),
    st.tuples(st.just("repeat"), st.just(0), st.just(0)),
)


@dataclass
class Model:
    """What protocol 5.5 and 5.6 say, without a store."""

    run: str
    status: str = "running"
    ended_by: tuple | None = None
    intent: str | None = None
    log: list[tuple[EventId, bytes]] = field(default_factory=list)

    @property
    def top(self):
        return self.log[-1][0] if self.log else START

    def append(self, expected, items):
        if self.status != "running":
            return "sealed"
        ids = [item.id for item in items]
        if self.top != expected and self.top not in ids:
            return "gap"
        self.log += [(item.id, item.payload) for item in items if item.id > self.top]
        return "appended"

    def request(self, reason):
        if self.status == "running" and self.intent is None:
            self.intent = reason
        return self.status

    def end(self, status, item):
        key = (status, item.record.updated_at)
        if self.ended_by == key:
            return True, status, self.top
        if self.status != "running" or (self.intent is not None) != (status == "cancelled"):
            return False, self.status, None
        self.log.append((EventId(max(item.ms, self.top.ms), self.top.n + 1), item.payload))
        self.status, self.ended_by, self.intent = status, key, None
        return True, status, self.top


async def apply(store, model, operation):
    """One operation on the store and on the model; their results."""
    name, number, extra = operation
    if name == "append":
        first = max(1, model.top.n + 1 + number)
        items = [event(n, ms=max(MS, model.top.ms)) for n in range(first, first + extra)]
        expected = EventId(items[0].id.ms, first - 1) if first > 1 else START
        (outcome,) = await store.append([batch(model.run, expected, *items)])
        return outcome, model.append(expected, items)
    if name == "request":
        outcome = await store.request_cancel(model.run, intent(f"reason{number}"))
        return outcome.status, model.request(f"reason{number}")
    item = terminal(model.run, name, later=number, ms=MS + extra)
    outcome = await finish(store, item)
    return (outcome.applied, outcome.status, outcome.event_id), model.end(name, item)


async def play(url, operations):
    async with open_redis_store(url, prefix=f"t-{uuid.uuid4().hex}", max_length=1000) as store:
        model, last = Model(run_id()), ("request", 9, 0)
        await store.create_run(running(model.run), OWNER)
        for given_operation in operations:
            operation = last if given_operation[0] == "repeat" else given_operation
            last = operation
            found, expected = await apply(store, model, operation)
            assert found == expected
            stored = await store.read_intent(model.run)
            assert (stored and stored.reason) == model.intent
            assert (await store.read_record(model.run)).status == model.status
            assert texts(await whole_log(store, model.run)) == [(str(key), payload) for key, payload in model.log]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, max_size=12))
def test_any_sequence_of_transitions_agrees_with_the_model(store_server, operations):
    trio.run(play, store_server.url, operations)
