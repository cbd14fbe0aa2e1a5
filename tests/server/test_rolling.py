"""A rolling restart under load: what ``docs/operations.md`` promises about upgrades, to the letter."""

import random
import signal
from collections import Counter

import pytest
import trio
from tests.server.bodies import HANG, run_of
from tests.server.clients import open_api
from tests.server.endings import StoredRun, assert_ended_once, stored_run
from tests.server.harness import StoreServer, serving, stored_records, until
from tests.server.rolling_balancer import Balancer
from tests.server.rolling_clients import Callers, Reading
from tests.server.rolling_fleet import GRACE_SECONDS, LAG_SECONDS, LISTEN_SECONDS, Fleet, Restart, fleet

REPLICAS = 3
CREATORS = 4
"""Together four or five runs a second."""
SEED = 20261130
STEADY_SECONDS = 1.0
"""Load before the first signal."""


async def roll(fleet_: Fleet, balancer: Balancer, callers: Callers, rounds: int) -> None:
    """Restart all replicas in turn, again and again, under load."""
    async with trio.open_nursery() as balancing:
        await balancing.start(balancer.serve)
        await fleet_.ready()
        async with trio.open_nursery() as nursery:
            for _ in range(CREATORS):
                nursery.start_soon(callers.create_runs)
            await trio.sleep(STEADY_SECONDS)
            for _ in range(rounds):
                for place in range(REPLICAS):
                    await fleet_.restart(place)
            callers.stop()
        balancing.cancel_scope.cancel()


def check(run: StoredRun, reading: Reading, restarts: list[Restart]) -> None:
    assert_ended_once(run)
    assert reading.events == run.events
    if run.status != "succeeded":
        assert run.ending == "failed: shutdown", run.events[-1]
        assert run.seconds >= GRACE_SECONDS, f"stopped {run.seconds} s after its start, before the grace was over"
    if reading.transport != "poll":
        met = sum(restart.meets(reading.began, reading.ended) for restart in restarts)
        assert reading.connections - 1 <= met, f"{reading.transport}: {reading.connections} connections, {met} restarts"


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(5, id="5-rounds", marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param(100, id="100-rounds", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
async def test_a_rolling_restart_refuses_nobody_and_loses_nothing(store: StoreServer, rounds: int) -> None:
    prefix = f"rolling-{rounds}"
    balancer = Balancer()
    callers = Callers(balancer, random.Random(SEED))
    with fleet(store, prefix, balancer, REPLICAS) as replicas:
        await roll(replicas, balancer, callers, rounds)
        replicas.check_logs()
    assert balancer.refused == []
    runs: dict[str, StoredRun] = {}
    reconnects: Counter[int] = Counter()
    for reading in callers.readings:
        run = runs[reading.run_id] = stored_run(store.witness, prefix, reading.run_id)
        check(run, reading, replicas.restarts)
        reconnects[reading.connections - 1] += 1
    endings = Counter(run.ending for run in runs.values())
    print(
        f"\n{len(replicas.restarts)} restarts, {sum(balancer.taken.values())} connections; runs: {dict(endings)}; "
        f"creates by refusals: {dict(callers.refusals)}; readers by reconnects: {dict(reconnects)}"
    )
    assert {record["run_id"] for record in stored_records(store, prefix)} == set(runs), "a run that nobody was told of"
    assert endings["succeeded"] > 10 * rounds
    seen = (endings["failed: shutdown"], len(callers.readings) - reconnects[0], callers.refusals[1])
    assert all(seen), f"no run was stopped, no reader had to reconnect, or no create was refused: {seen}"


@pytest.mark.slow
async def test_a_reader_reconnects_once_although_the_balancer_still_has_the_replica_that_leaves(store: StoreServer):
    """Nothing runs on it, so it has drained long before the balancer hears of it: its streams stay until the end of
    its listening all the same, or the reader would be sent to it again and again."""
    with (
        serving(store.url) as home,
        serving(store.url, prefix=home.prefix, drain_listen_seconds=LISTEN_SECONDS) as leaving,
    ):
        balancer = Balancer()
        callers = Callers(balancer, random.Random(SEED))
        balancer.endpoints = [leaving.port]
        async with open_api(home) as api, trio.open_nursery() as balancing:
            await balancing.start(balancer.serve)
            run_id = await api.create(run_of(HANG))
            readings = [Reading(run_id, transport) for transport in ("sse", "ws")]
            async with trio.open_nursery() as nursery:
                for reading in readings:
                    nursery.start_soon(callers.read, reading)
                await until(lambda: sum(balancer.taken.values()) == 2, "both are connected")
                leaving.tell(signal.SIGTERM)
                await trio.sleep(LAG_SECONDS)
                balancer.endpoints = [home.port]
                assert await leaving.exit_status() == 0
                await until(lambda: balancer.taken[home.port] == 2, "both are connected again")
                await api.cancel(run_id)
            balancing.cancel_scope.cancel()
        stored = stored_run(store.witness, home.prefix, run_id)
        for reading in readings:
            assert reading.events == stored.events
            assert reading.connections == 2
    assert balancer.refused == []
