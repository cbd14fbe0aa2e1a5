"""Operations over many runs when some of the servers are away: what was answered stands."""

from collections.abc import Callable, Sequence

import pytest
from coredis.exceptions import ResponseError

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import AppendBatch, Owner, RunLook, StoredEvent
from dify_agent.store.executor import Call, Command, Item, Reply
from dify_agent.store.keys import Keys
from dify_agent.store.redis import RedisRunStore

AWAY = StoreUnavailableError("this node does not answer")
MISTAKE = ResponseError("ERR of this run's script")
MANY = [f"r{n}" for n in range(1200)]
"""More than go into one round trip."""

Answer = Callable[[Item], Reply]


class Servers:
    """Answers each item by itself. An error that ``answer`` raises is one of the whole round trip."""

    def __init__(self, answer: Answer) -> None:
        self.trips: list[int] = []
        self._answer = answer

    async def execute(self, items: Sequence[Item], **_options: object) -> list[Reply]:
        self.trips.append(len(items))
        return [self._answer(item) for item in items]


def store_on(answer: Answer) -> RedisRunStore:
    return RedisRunStore(Servers(answer), Keys("p"), retention_seconds=60, max_length=10)  # type: ignore[arg-type]


def by_key(answers: dict[str, Reply], rest: Reply = None) -> Answer:
    def answer(item: Item) -> Reply:
        return next((reply for name, reply in answers.items() if f"{{{name}}}" in str(item.key)), rest)

    return answer


def look_reply(*, owner: bytes = b"1:me") -> list[bytes | None]:
    record = (
        b'{"run_id":"r","status":"running","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}'
    )
    return [record, owner, None]


async def test_a_run_whose_node_is_away_is_left_out_of_a_look() -> None:
    answers = {"a": look_reply(), "b": AWAY, "c": [None, None, None], "d": MISTAKE, "e": look_reply(owner=b"\xff")}
    looks = await store_on(by_key(answers)).look([*answers])
    assert looks.keys() == {"a", "c", "d", "e"}
    assert looks["a"] is not None
    assert looks["a"].record is not None
    assert looks["c"] is None
    assert looks["d"] == looks["e"] == RunLook(None, None, None)


async def test_a_look_that_nobody_answered_fails() -> None:
    with pytest.raises(StoreUnavailableError):
        await store_on(by_key({}, AWAY)).look(["a", "b"])
    assert await store_on(by_key({}, AWAY)).look([]) == {}


async def test_what_one_round_trip_brought_stands_when_the_next_is_not_even_sent() -> None:
    def answer(item: Item) -> Reply:
        if "{r600}" in str(item.key):
            raise AWAY
        return [None, None, None]

    assert (await store_on(answer).look(MANY)).keys() == set(MANY[:500] + MANY[1000:])


async def test_a_run_whose_node_is_away_keeps_no_other_from_being_touched() -> None:
    touched = set()

    def answer(item: Item) -> Reply:
        if isinstance(item, Call):
            touched.add(str(item.key))
        return AWAY if "{r1}" in str(item.key) else 1

    with pytest.raises(StoreUnavailableError):
        await store_on(answer).touch_runs(Owner("me", 1), MANY)
    assert len(touched) == len(MANY)


async def test_a_lease_whose_node_is_away_is_not_known() -> None:
    answers: dict[str, Reply] = {"a": 1, "b": 0, "c": AWAY}
    leases = await store_on(by_key(answers, {b"b", b"a", b"c"})).read_leases()
    assert leases == {"a": True, "b": False, "c": None}


@pytest.mark.parametrize("members", [AWAY, {b"a", b"b"}], ids=["list", "leases"])
async def test_without_the_list_or_any_lease_there_is_no_answer(members: Reply) -> None:
    with pytest.raises(StoreUnavailableError):
        await store_on(by_key({"a": AWAY, "b": AWAY}, members)).read_leases()
    assert await store_on(by_key({}, set())).read_leases() == {}


async def test_intents_are_those_that_were_answered() -> None:
    entry = [(b"1-0", [b"payload", b"{}"])]
    found = await store_on(by_key({"a": entry, "b": AWAY, "c": MISTAKE}, [])).read_intents(["a", "b", "c", "d"])
    assert found.keys() == {"a"}
    with pytest.raises(StoreUnavailableError):
        await store_on(by_key({}, AWAY)).read_intents(["a", "b"])


async def test_a_batch_that_cannot_be_sent_is_told_in_its_place() -> None:
    first, second = (StoredEvent(EventId(1, n), b"{}") for n in (1, 2))
    good, bad = AppendBatch("a", START, (first, second)), AppendBatch("b", START, (second, first))
    servers = Servers(lambda item: b"appended" if isinstance(item, Call) else Command)
    store = RedisRunStore(servers, Keys("p"), retention_seconds=60, max_length=10)  # type: ignore[arg-type]
    before, sent, after = await store.append([bad, good, bad])
    assert (type(before), sent, type(after)) == (ValueError, "appended", ValueError)
    assert servers.trips == [1]
    (refused,) = await store.append([bad])
    assert isinstance(refused, ValueError)
    assert servers.trips == [1], "nothing was left to send"


async def test_an_append_that_was_not_sent_is_told_to_each_batch() -> None:
    def answer(_item: Item) -> Reply:
        raise AWAY

    batches = [AppendBatch(name, START, (StoredEvent(EventId(1, 1), b"{}"),)) for name in ("a", "b")]
    assert await store_on(answer).append(batches) == [AWAY, AWAY]
