"""Keys that another program has written: a clear answer, one line of the log each time, and nobody else is harmed."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trio
from tests.server.bodies import HANG, run_of, text_run
from tests.server.clients import Api, open_api, open_stream
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, launched, serving, stored_records, until
from tests.unit.http import ws

from dify_agent.store.keys import Keys

pytestmark = pytest.mark.slow

TOKEN = "t0ken"
ANNOUNCED = ["cannot be read", "run's events refused", "run given up", "record_lost", "left alone"]
LEASE = 1.0
WITHIN = LEASE + 15

Break = Callable[[Any, Keys, str], str]
"""Breaks a key of a run by hand; returns it."""


def overwrite(text: bytes) -> Break:
    def break_it(witness: Any, keys: Keys, run_id: str) -> str:
        witness.set(keys.record(run_id), text, keepttl=True)
        return keys.record(run_id)

    return break_it


def retype(which: int) -> Break:
    def break_it(witness: Any, keys: Keys, run_id: str) -> str:
        name = keys.run(run_id)[which]
        witness.delete(name)
        witness.hset(name, "status", "succeeded")
        return name

    return break_it


def garble_field(witness: Any, keys: Keys, run_id: str) -> str:
    """JSON, but not in every field what belongs there."""
    name = keys.record(run_id)
    witness.set(name, json.dumps({**json.loads(witness.get(name)), "created_at": {"s3cret": "}{"}}), keepttl=True)
    return name


RECORDS: dict[str, Break] = {
    "no JSON": overwrite(b"\xff\x00 s3cret {"),
    "other JSON": overwrite(b'["s3cret"]'),
    "empty": overwrite(b""),
    "a field": garble_field,
    "a hash": retype(0),
}


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    with serving(store.url, api_token=TOKEN, announced=ANNOUNCED, owner_lease_seconds=LEASE) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with open_api(server) as opened:
        opened.client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield opened


def told(server: Server, key: str) -> list[dict[str, Any]]:
    """The lines about a key; none of any has a traceback, or shows what the key holds."""
    assert "s3cret" not in server.log
    assert "Traceback" not in server.log
    lines = [each for each in server.records() if each.get("key") == key]
    assert not [each for each in lines if "exception" in each]
    return lines


@pytest.mark.parametrize("breaking", RECORDS.values(), ids=RECORDS.keys())
async def test_every_route_of_a_run_whose_record_is_none_says_so(
    store: StoreServer, server: Server, api: Api, breaking: Break
) -> None:
    run_id = await api.create(text_run())
    await api.finished(run_id)
    await until(lambda: not owned(server, store), "its owner has let go of it")
    key = breaking(store.witness, Keys(server.prefix), run_id)
    requests = [
        ("GET", f"/runs/{run_id}"),
        ("GET", f"/runs/{run_id}/events"),
        ("GET", f"/runs/{run_id}/events?wait=5"),
        ("GET", f"/runs/{run_id}/events/sse"),
        ("POST", f"/runs/{run_id}/cancel"),
    ]
    for method, path in requests:
        response = await api.client.request(method, path, **({"json": {}} if method == "POST" else {}))
        if method == "POST" and breaking is garble_field:  # its status can be read, and that is all a cancel asks
            assert response.status_code == 409
            requests.pop()
            continue
        assert response.status_code == 500, path
        assert response.headers["content-type"] == "application/json"
        assert response.json() == {"detail": "the run's record in the store cannot be read"}
        assert "retry-after" not in response.headers
    lines = told(server, key)
    assert [(each["event"], each["level"], each["run_id"]) for each in lines] == [
        ("a key of the store cannot be read", "error", run_id)
    ] * len(requests)
    assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


def owned(server: Server, store: StoreServer) -> bool:
    keys = store.witness.scan_iter(match=f"{server.prefix}:owners:*:runs")
    return any(store.witness.scard(key) for key in keys)


@pytest.mark.parametrize(("which", "what"), [(1, "log"), (3, "cancel intent")], ids=["log", "intent"])
async def test_another_key_of_a_run_is_named_by_what_it_is(
    store: StoreServer, server: Server, api: Api, which: int, what: str
) -> None:
    run_id = await api.create(text_run())
    await api.finished(run_id)
    key = retype(which)(store.witness, Keys(server.prefix), run_id)
    assert (await api.client.get(f"/runs/{run_id}")).status_code == 200
    response = await api.client.get(f"/runs/{run_id}/events")
    if what == "log":
        assert response.status_code == 500
        assert response.json() == {"detail": "the run's log in the store cannot be read"}
        assert [each["run_id"] for each in told(server, key)] == [run_id]
    else:  # which concerns nobody: the run has ended
        assert response.status_code == 200
        assert (await api.client.post(f"/runs/{run_id}/cancel", json={})).status_code == 409


async def test_a_websocket_is_refused_with_the_answer_or_for_browsers_with_a_close(
    store: StoreServer, server: Server, api: Api
) -> None:
    run_id = await api.create(text_run())
    await api.finished(run_id)
    retype(0)(store.witness, Keys(server.prefix), run_id)
    path = f"/runs/{run_id}/events/ws"
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(ws.handshake(path, f"Authorization: Bearer {TOKEN}"))
        answer = await read_until(stream, b"}")
    assert answer.startswith(b"HTTP/1.1 500")
    assert answer.endswith(b'{"detail":"the run\'s record in the store cannot be read"}')

    token = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(ws.handshake(path, f"Sec-WebSocket-Protocol: dify-agent.v1, bearer.{token}"))
        head, _, rest = (await read_until(stream, b"\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        with trio.fail_after(BOUND_SECONDS):
            opcode, payload = await ws.RawSocket(stream, rest).frame()
    assert opcode == ws.CLOSE
    assert (int.from_bytes(payload[:2], "big"), payload[2:]) == (1011, b"the run's record in the store cannot be read")


async def read_until(stream: trio.SocketStream, end: bytes) -> bytes:
    answer = b""
    with trio.fail_after(BOUND_SECONDS):
        while end not in answer:
            answer += await stream.receive_some()
    return answer


@pytest.mark.parametrize("value", ["text", "hash"])
async def test_a_claim_that_is_none_refuses_its_key_alone(
    store: StoreServer, server: Server, api: Api, value: str
) -> None:
    name = Keys(server.prefix).idempotency("", f"broken-{value}")
    if value == "text":
        store.witness.set(name, b"s3cret", ex=60)
    else:
        store.witness.hset(name, "s3cret", "1")
    for _ in range(2):
        response = await api.client.post("/runs", json=text_run(idempotency_key=f"broken-{value}"))
        assert response.status_code == 500
        assert response.json() == {"detail": "the idempotency key's claim in the store cannot be read"}
    assert [each["run_id"] for each in told(server, name)] == [None, None]
    store.witness.delete(name)
    other = (await api.client.post("/runs", json=text_run(idempotency_key=f"broken-{value}"))).json()
    assert (await api.finished(other["run_id"]))[-1]["type"] == "run_succeeded"


@pytest.mark.parametrize("breaking", [overwrite(b"x"), retype(0), retype(1)], ids=["record", "hash", "log"])
async def test_a_run_whose_keys_break_while_it_goes_on_stops_alone(
    store: StoreServer, server: Server, api: Api, breaking: Break
) -> None:
    """It notices when it writes, or within the sweep; its open stream ends, the streams of others go on."""
    turns = {"chunks": 400, "delay_ms": 20}
    run_id, healthy = await api.create(run_of(turns)), await api.create(run_of({"chunks": 150, "delay_ms": 20}))
    await api.events_until(run_id, "part_delta")
    key = breaking(store.witness, Keys(server.prefix), run_id)
    assert (await api.finished(healthy))[-1]["type"] == "run_succeeded"
    await until(lambda: bool(told(server, key)) or run_id in server.log, "it is told")
    await until(lambda: not owned(server, store), "nobody executes it")
    told(server, key)


@pytest.mark.full
@pytest.mark.parametrize(
    "breaking", [overwrite(b"{"), retype(0), retype(1), retype(2), retype(3)],
    ids=["no JSON", "record", "log", "owner", "intent"],
)  # fmt: skip
async def test_verdicts_step_over_what_they_cannot_read(store: StoreServer, breaking: Break) -> None:
    """Of a replica that was killed: one broken run among healthy ones, and an owner whose set of runs is none."""
    options = {"owner_lease_seconds": LEASE}
    with launched(store.url, **options) as lost:
        lost.wait_listening()
        async with open_api(lost) as api:
            runs = sorted([await api.create(run_of(HANG)) for _ in range(7)])
            for run_id in runs:
                await api.events_until(run_id, "run_started")
        lost.process.kill()
        keys = Keys(lost.prefix)
        broken, healthy = runs[3], runs[:3] + runs[4:]
        breaking(store.witness, keys, broken)
        store.witness.sadd(keys.owners, "0-alien")
        store.witness.hset(keys.runs("0-alien"), "a", "b")
        with serving(store.url, prefix=lost.prefix, announced=["left alone"], **options) as judge:
            async with open_api(judge) as api:
                for run_id in healthy:
                    await until(lambda r=run_id: status(store, keys, r) == "failed", "it is judged", WITHIN)
                    assert (await api.finished(run_id))[-1]["data"]["reason"] == "owner_lost"
                await until(lambda: broken in judge.log, "the broken one is told of", WITHIN)
                said = len(lines_of(judge, broken))
                await trio.sleep(2 * LEASE)  # two more looks at lost owners
                assert len(lines_of(judge, broken)) == said == 1
                assert "exception" not in lines_of(judge, broken)[0]
                alien = [each for each in judge.records() if each.get("owner") == "0-alien"]
                assert {(each["level"], each["key"]) for each in alien} == {("error", keys.runs("0-alien"))}
                assert len(alien) <= 4, "once in a lease"
                assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"


def status(store: StoreServer, keys: Keys, run_id: str) -> str:
    return str(json.loads(store.witness.get(keys.record(run_id)))["status"])


def lines_of(server: Server, run_id: str) -> list[dict[str, Any]]:
    return [each for each in server.records() if each.get("run_id") == run_id]


async def test_a_followed_log_that_becomes_none_ends_its_stream_and_no_other(store: StoreServer) -> None:
    """One read covers the logs of all runs of other replicas."""
    with serving(store.url, announced=ANNOUNCED) as owner:
        options = {"prefix": owner.prefix, "announced": ANNOUNCED}
        with serving(store.url, **options) as reader:
            async with open_api(owner) as api, open_api(reader) as remote:
                broken = await api.create(run_of(HANG))
                healthy = await api.create(run_of({"chunks": 100, "delay_ms": 20}))
                await api.events_until(broken, "run_started")
                async with open_stream(reader, broken) as stream, open_stream(reader, healthy) as other:
                    assert await stream.frame() is not None
                    retype(1)(store.witness, Keys(owner.prefix), broken)
                    frames = await other.rest()
                    assert frames[-1].event == "run_succeeded"
                    response = await remote.client.get(f"/runs/{broken}/events")
                    assert response.status_code == 500
                    # Its replica has neither lost a service over it nor stopped following.
                    again = await api.create(text_run())
                    async with open_stream(reader, again) as third:
                        assert (await third.rest())[-1].event == "run_succeeded"
                assert "service" not in {each["event"].split()[0] for each in reader.records()}


def spoil(store: StoreServer, key: str) -> None:
    store.witness.delete(key)
    store.witness.set(key, b"s3cret", ex=600)


def owner_of(server: Server) -> str:
    """The owner that the server is, by its own word."""
    return next(str(each["owner"]) for each in server.records() if each["event"] == "listening")


async def told_once(server: Server, key: str) -> None:
    """Of a key of the replica's own, within a beat; and no service was started again over it."""
    await until(lambda: bool(told(server, key)), "it is told", WITHIN)
    await trio.sleep(2 * LEASE)
    assert [each["level"] for each in told(server, key)] == ["error"]
    assert not [each for each in server.records() if each["event"].startswith("service")]


async def test_an_own_set_of_runs_that_is_none_ends_no_replica(store: StoreServer) -> None:
    """New runs are refused, since nobody would judge them; the others go on. It is mended by deleting the key."""
    with serving(store.url, announced=ANNOUNCED, owner_lease_seconds=LEASE) as server:
        key = Keys(server.prefix).runs(owner_of(server))
        async with open_api(server) as api:
            ending, staying = await api.create(run_of(HANG)), await api.create(run_of(HANG))
            await api.events_until(ending, "run_started")
            spoil(store, key)
            await trio.sleep(2 * LEASE)
            response = await api.client.post("/runs", json=text_run())
            assert response.status_code == 500
            assert response.json() == {"detail": "an owner's set of runs in the store cannot be read"}
            await api.cancel(ending)
            assert (await api.finished(ending))[-1]["type"] == "run_cancelled"
            await trio.sleep(LEASE)
            lines = [each["event"] for each in told(server, key)]
            assert sorted(set(lines)) == [
                "a key of the store cannot be read",
                "a key of this replica cannot be read, it is left alone",
                "own set of runs cannot be read, it is left alone",
            ]
            assert len(lines) <= 8
            assert not [each for each in server.records() if each["event"].startswith("service")]
            assert store.witness.get(key) == b"s3cret"
            store.witness.delete(key)
            await until(lambda: store.witness.sismember(key, staying), "the next beat writes it anew", LEASE)
            assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"
        refused = [record for record in stored_records(store, server.prefix) if record["status"] == "failed"]
        assert len(refused) == 1, "the create that was refused had written its record: it is ended"


async def test_a_list_of_owners_that_is_none_ends_no_replica(store: StoreServer) -> None:
    """Nobody is judged meanwhile, and all is as before when it has been deleted."""
    with launched(store.url, owner_lease_seconds=LEASE) as lost:
        lost.wait_listening()
        with serving(store.url, prefix=lost.prefix, announced=ANNOUNCED, owner_lease_seconds=LEASE) as server:
            key = Keys(server.prefix).owners
            async with open_api(lost) as api, open_api(server) as other:
                spoil(store, key)
                run_id = await api.create(run_of(HANG))
                await api.events_until(run_id, "run_started")
                assert (await other.run(text_run()))[-1]["type"] == "run_succeeded"
                await trio.sleep(3 * LEASE)
                for replica in (lost, server):
                    lines = [each["event"] for each in told(replica, key)]
                    assert lines.count("a key of this replica cannot be read, it is left alone") == 1
                    assert lines.count("list of owners cannot be read, nobody is judged") >= 2
                    assert len(lines) <= 6
                    assert not [each for each in replica.records() if each["event"].startswith("service")]
                store.witness.delete(key)
                await until(lambda: store.witness.scard(key) == 2, "both are listed again", LEASE)
                lost.process.kill()
                assert (await other.finished(run_id))[-1]["data"]["reason"] == "owner_lost"


async def test_an_inbox_and_a_doorbell_that_are_none_end_no_replica(store: StoreServer) -> None:
    """Cancels are found by the sweep, runs of other replicas are followed by polling."""
    options = {"announced": [*ANNOUNCED, "owner not rung"], "owner_lease_seconds": LEASE}
    with serving(store.url, **options) as server, serving(store.url, prefix=server.prefix, **options) as other:
        keys, owner = Keys(server.prefix), owner_of(server)
        async with open_api(server) as api, open_api(other) as remote:
            run_id = await api.create(run_of(HANG))
            await api.events_until(run_id, "run_started")
            spoil(store, keys.inbox(owner))
            spoil(store, keys.doorbell(owner))
            with trio.fail_after(5):
                await remote.cancel(run_id)
                assert (await api.finished(run_id))[-1]["type"] == "run_cancelled"
            run_id = await remote.create(run_of({"chunks": 60, "delay_ms": 50}))
            async with open_stream(server, run_id) as stream:
                frames = await stream.rest()
            assert frames[-1].event == "run_succeeded"
            assert [frame.id for frame in frames] == [event["id"] for event in await remote.finished(run_id)]
        for key in (keys.inbox(owner), keys.doorbell(owner)):
            await told_once(server, key)
