"""The composition root's parts that need no server: watchdog, limits, what ends a replica, how it drains."""

import resource
import subprocess
import sys

import pytest
import trio
from tests.unit.actors.world import model, prompt, text, world
from trio.testing import MockClock

from dify_agent import main
from dify_agent.main import ExitStatus, Watchdog
from dify_agent.settings import ServerSettings
from dify_agent.supervisor.specs import RestartBudget, ServiceBudgetSpentError

BITE = """
import time
from dify_agent.main import Watchdog
with Watchdog(0.05) as watchdog:
    watchdog.arm()
    time.sleep(30)
"""


def test_exit_statuses() -> None:
    assert {status.name: int(status) for status in ExitStatus} == {
        "DRAINED": 0,
        "START_FAILED": 1,
        "BUDGET_SPENT": 70,
        "WATCHDOG": 75,
    }


@pytest.mark.slow
def test_the_watchdog_bites_a_process_that_does_not_turn() -> None:
    assert subprocess.run([sys.executable, "-c", BITE], timeout=60, check=False).returncode == 75


@pytest.mark.parametrize(
    ("address", "text"), [(("127.0.0.1", 5050), "127.0.0.1:5050"), (("::1", 37755), "[::1]:37755")]
)
def test_an_address_is_written_as_in_urls(address: tuple[str, int], text: str) -> None:
    assert main.authority(*address) == text


def test_a_watchdog_that_was_not_armed_is_called_off() -> None:
    with Watchdog(0.001):
        pass


def test_leaving_calls_an_armed_watchdog_off() -> None:
    with Watchdog(3600) as watchdog:
        watchdog.arm()
    assert not watchdog._thread.is_alive()


def test_what_leaves_a_watchdog_that_was_armed_twice_is_not_bitten() -> None:
    with Watchdog(0.05) as watchdog:
        watchdog.arm()
        watchdog.arm()
    watchdog._thread.join(10)
    assert not watchdog._thread.is_alive()


@pytest.mark.parametrize(("soft", "hard", "set_to"), [(1024, 4096, (4096, 4096)), (4096, 4096, None)])
def test_raises_the_descriptor_limit(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, set_to: tuple[int, int] | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: asked.append(limits))
    main.raise_descriptor_limit()
    assert asked == ([] if set_to is None else [set_to])


@pytest.mark.parametrize("why", ["signal", "program", "service"])
async def test_what_ends_a_replica(autojump_clock: MockClock, why: str) -> None:
    async with world() as w, trio.open_nursery() as nursery:
        send, signals = trio.open_memory_channel[int](0)
        stop, told = trio.Event(), trio.Event()

        async def wait() -> None:
            await main._until_told(signals, w.supervisor, stop)
            told.set()

        with send, signals:
            nursery.start_soon(wait)
            await trio.sleep(10)
            assert not told.is_set()
            if why == "signal":
                await send.send(15)
            elif why == "program":
                stop.set()
            else:
                w.supervisor._give_up(ServiceBudgetSpentError("x", RestartBudget()))
            with trio.fail_after(1):
                await told.wait()


def settings(**members: float) -> ServerSettings:
    return ServerSettings.for_development(**members)


async def test_the_listener_stays_open_for_its_minimum(autojump_clock: MockClock) -> None:
    async with world() as w:
        began = trio.current_time()
        await main._drain(settings(drain_listen_seconds=5, shutdown_grace_seconds=30), w.supervisor)
        assert trio.current_time() - began == pytest.approx(5)
        assert w.supervisor.draining


async def test_the_drain_gives_runs_their_grace_and_then_ends_streams(autojump_clock: MockClock) -> None:
    async with world() as w:
        run_id = await w.create(prompt(), model({"hang": True}))
        began = trio.current_time()
        await main._drain(settings(drain_listen_seconds=5, shutdown_grace_seconds=20), w.supervisor)
        assert trio.current_time() - began == pytest.approx(20)
        assert w.run(run_id).types[-1] == "run_failed"
        assert w.supervisor._streams_end.is_set()


async def test_after_a_given_up_service_the_grace_is_short(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.create(prompt(), model({"chunks": 1, "chunk": "x", "delay_ms": 60_000}, text()))
        w.supervisor._give_up(ServiceBudgetSpentError("x", RestartBudget()))
        began = trio.current_time()
        await main._drain(settings(drain_listen_seconds=0, shutdown_grace_seconds=600), w.supervisor)
        assert trio.current_time() - began == pytest.approx(main.SPENT_GRACE_SECONDS)
