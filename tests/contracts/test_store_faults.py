"""Lost replies, flushed scripts, servers that refuse, stall or vanish, and cancelled waits."""

import pytest
import redis
import trio
from tests.contracts.store_support import (
    MS,
    ONE_SERVER,
    OWNER,
    batch,
    events,
    finish,
    intent,
    run_id,
    running,
    terminal,
    texts,
    whole_log,
)

from dify_agent.errors import RunNotFoundError, StoreUnavailableError
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import Owner, RecordUnreadableError
from dify_agent.store.embedded import running_server, valkey_binary
from dify_agent.store.redis import open_redis_store


@pytest.fixture
async def proxy(store_server):
    async with store_server.proxy() as opened:
        yield opened


@pytest.fixture
async def far(proxy, prefix):
    """The same data as `store` sees, through the proxy; and the proxy."""
    async with open_redis_store(
        proxy.url, prefix=prefix, retention_seconds=600, max_length=100, command_timeout=2
    ) as opened:
        yield opened, proxy


async def appended(store, run):
    (outcome,) = await store.append([batch(run, EventId(MS, 2), *events(3, 5))])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def finalized(status):
    return lambda store, run: finish(store, terminal(run, status))


async def created(store, run):
    await store.create_run(running(run), OWNER)


async def cancel_requested(store, run):
    return await store.request_cancel(run, intent())


OPERATIONS = {
    "create": created,
    "append": appended,
    "succeeded": finalized("succeeded"),
    "failed": finalized("failed"),
    "request_cancel": cancel_requested,
    "cancelled": finalized("cancelled"),
}


async def prepare(store, name, run=None):
    run = run or run_id()
    if name != "create":
        await store.create_run(running(run), OWNER)
        await store.append([batch(run, START, *events(1, 2))])
    if name == "cancelled":
        await store.request_cancel(run, intent())
    return run


async def state(store, run):
    """Everything there is to see of a run, without the run's id."""
    record = await store.read_record(run)
    return record.model_copy(update={"run_id": ""}), texts(await whole_log(store, run)), await store.read_intent(run)


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "flushed"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_lost_reply_at_any_command_changes_nothing(store, far, store_server, name, loaded):
    """The operation is repeated as after any unknown outcome; result and data are those of an undisturbed one."""
    operation, (far_store, proxy) = OPERATIONS[name], far
    undisturbed = await prepare(store, name, *store_server.run_ids(1))
    expected = (await operation(store, undisturbed), await state(store, undisturbed))
    lost, more = 0, True
    while more:
        run = await prepare(store, name, *store_server.run_ids(1))
        if not loaded:
            store_server.witness.script_flush()
        await far_store.ping()  # so that the connection stands, and its handshake is not what gets counted
        proxy.arm(lost)
        try:
            await operation(far_store, run)
            more = False
        except StoreUnavailableError:
            lost += 1
        proxy.disarm()
        assert (await operation(far_store, run), await state(store, run)) == expected
    # One reply per command: create is SADD, EXPIRE and the script; a script that is not loaded is sent twice.
    assert proxy.cuts == lost == (3 if name == "create" else 1) + (0 if loaded else 1)


async def test_what_was_answered_before_the_connection_broke_stands(store, far, store_server):
    far_store, proxy = far
    runs = [await prepare(store, "append", run) for run in store_server.run_ids(4)]
    batches = [batch(run, EventId(MS, 2), *events(3, 5)) for run in runs]
    await far_store.ping()
    proxy.arm(2)
    first, second, *unknown = await far_store.append(batches)
    assert (first, second) == ("appended", "appended")
    assert [type(outcome) for outcome in unknown] == [StoreUnavailableError] * 2
    assert await far_store.append(batches) == ["appended"] * 4
    for run in runs:
        assert texts(await whole_log(store, run)) == texts(events(1, 5))


@pytest.mark.slow
async def test_scripts_flushed_at_any_time_lose_nothing(store, witness):
    run = run_id()
    await store.create_run(running(run), OWNER)
    other = await prepare(store, "append")
    done = False

    async def flush():
        while not done:
            await trio.to_thread.run_sync(witness.script_flush)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush)
        for n in range(1, 200):
            top = EventId(MS, n - 1) if n > 1 else START
            mixed = [batch(run, top, *events(n, n)), batch(other, EventId(MS, 2), *events(3, 3))]
            assert await store.append(mixed) == ["appended", "appended"]
        done = True
    ordinals = [entry.id.n for entry in await whole_log(store, run)]
    assert ordinals == list(range(ordinals[0], 200))


async def test_a_server_that_does_not_answer_is_unavailable_within_the_timeout(proxy, prefix, store_server):
    async with open_redis_store(proxy.url, prefix=prefix, command_timeout=0.1) as store:
        await store.ping()
        proxy.stall = True
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
        assert caught.value.cause == "no answer within 0.1 s"
        (outcome,) = await store.append([batch(run_id(), START, *events(1, 1))])
        assert isinstance(outcome, StoreUnavailableError)
        proxy.stall = False
        await store_server.recovered(store)
        await store.ping()


async def test_no_server_is_unavailable(store_server, prefix):
    async with open_redis_store(store_server.nowhere, prefix=prefix) as store:
        for operation in (store.ping(), store.read_record(run_id()), store.read_inbox(OWNER, "0-0", 1)):
            with pytest.raises(StoreUnavailableError) as caught:
                await operation
            assert "ConnectionError: Unable to establish a connection" in caught.value.cause


@pytest.mark.slow
async def test_the_store_works_again_after_its_connections_were_killed(bare_store, witness):
    async def read(results):
        try:
            await bare_store.read_inbox(OWNER, "0-0", 30)
        except StoreUnavailableError as error:
            results.append(error)

    for _ in range(3):
        results = []
        async with trio.open_nursery() as nursery:
            for _ in range(70):  # more than there are connections: the rest waits, fails to connect or is killed later
                nursery.start_soon(read, results)
            while len(results) < 70:
                witness.client_kill_filter(skipme=True, _type="normal")
                await trio.lowlevel.checkpoint()
    await bare_store.ping()


async def test_cancelled_blocking_reads_leave_the_pool_usable(store_server, prefix):
    async with open_redis_store(store_server.url, prefix=prefix, max_connections=10) as store:
        await store.ping()
        for attempt in range(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.read_inbox, OWNER, "0-0", 30)
                nursery.start_soon(store.read_inbox, OWNER, "0-0", 30)
                # At each stage: not begun, connecting, waiting for the reply.
                if attempt % 2:
                    with trio.move_on_after(0.001 * attempt):
                        await trio.sleep_forever()
                nursery.cancel_scope.cancel(reason="test")
        await store.ping()
        await store.ring(OWNER.id, "r")
        assert [run for _, run in await store.read_inbox(OWNER, "0-0", 1)] == ["r"]


async def test_cancelling_one_caller_leaves_the_others_alone(store):
    run = await prepare(store, "append")
    answers = []

    async def read(cancelled):
        with trio.CancelScope() as scope:
            if cancelled:
                scope.cancel(reason="test")
            answers.append(len((await store.read_events(run, START, 10)).events))

    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(read, number % 3 == 0)
    assert answers == [2] * 80


async def test_a_cancellation_while_connecting_stays_a_cancellation(store_server, prefix):
    """One, and not a group of them: that would pass by its caller's ``except trio.Cancelled``."""
    async with open_redis_store(store_server.url, prefix=prefix, max_connections=10) as store:
        for step in range(30):
            caught = []
            with trio.move_on_after(step / 20_000) as scope:
                try:
                    await store.read_inbox(Owner(f"o{step}", 1), "0-0", 30)
                except BaseException as error:
                    caught.append(type(error))
                    raise
            assert scope.cancelled_caught
            assert caught == [trio.Cancelled]


async def test_a_busy_server_is_unavailable(bare_store, witness):
    old = witness.config_get("busy-reply-threshold")
    witness.config_set("busy-reply-threshold", 1)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, endless_script, witness)
            with trio.fail_after(5), pytest.raises(StoreUnavailableError) as caught:
                await ping_until_refused(bare_store)
            witness.script_kill()
        assert "ResponseError: BUSY" in caught.value.cause
    finally:
        witness.config_set("busy-reply-threshold", old["busy-reply-threshold"])
    await bare_store.ping()


async def ping_until_refused(store):
    while True:
        await store.ping()


def endless_script(witness):
    with pytest.raises(Exception, match="killed"):
        witness.eval("while true do end", 0)


@ONE_SERVER
async def test_a_replica_refuses_writes_as_unavailable(bare_store, witness):
    run = await prepare(bare_store, "append")
    witness.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        (outcome,) = await bare_store.append([batch(run, EventId(MS, 2), *events(3, 3))])
        assert isinstance(outcome, StoreUnavailableError)
        with pytest.raises(StoreUnavailableError):
            await bare_store.finalize(terminal(run, "failed"))
        assert len(await whole_log(bare_store, run)) == 2
    finally:
        witness.execute_command("REPLICAOF", "NO", "ONE")
    assert await bare_store.append([batch(run, EventId(MS, 2), *events(3, 3))]) == ["appended"]


async def test_a_server_that_dies_is_unavailable():
    with running_server(valkey_binary(), {}) as server:
        await server.wait_ready()
        async with open_redis_store(server.url) as store:
            run = await prepare(store, "append")
            server.process.kill()
            server.process.wait()
            with pytest.raises(StoreUnavailableError):
                await store.read_record(run)


async def test_flushall_makes_runs_missing(prefix):
    with running_server(valkey_binary(), {}) as server:
        await server.wait_ready()
        async with open_redis_store(server.url, prefix=prefix) as store:
            run = await prepare(store, "append")
            with redis.Redis(unix_socket_path=str(server.socket)) as client:
                client.flushall()
            assert await store.append([batch(run, EventId(MS, 2), *events(3, 3))]) == ["missing"]
            with pytest.raises(RunNotFoundError):
                await store.read_events(run, START, 1)


async def test_a_wrong_password_is_reported_without_it():
    with running_server(valkey_binary(), {"requirepass": "right-secret"}) as server:
        await server.wait_ready()
        for login in ("", ":wrong-secret@", "user:wrong-secret@"):
            async with open_redis_store(f"unix://{login}{server.socket}") as store:
                with pytest.raises(StoreUnavailableError) as caught:
                    await store.ping()
            assert "secret" not in f"{caught.value} {caught.value.cause} {caught.value!r}"
        async with open_redis_store(f"unix://:right-secret@{server.socket}") as store:
            await store.ping()


async def test_a_key_of_a_wrong_type_is_no_outage(bare_store, witness, prefix):
    run = run_id()
    witness.lpush(f"{prefix}:runs:{{{run}}}:record", "a list")
    with pytest.raises(RecordUnreadableError, match="the run's record in the store cannot be read") as caught:
        await bare_store.read_record(run)
    assert not isinstance(caught.value, StoreUnavailableError)
    assert caught.value.key == f"{prefix}:runs:{{{run}}}:record"
