"""A run whose code holds the event loop when the process is to end: what still ends it, and how soon.

The first watchdog is a thread, so it needs the interpreter; behind it stands a timer that needs nothing
(docs/shutdown.md, "When code holds the process"). For a process in which not even a signal is handled, only the outside
is left: the parent of its workers, or whoever runs it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.server import holding_layer
from tests.server.bodies import calling, layer, run_of
from tests.server.clients import open_api
from tests.server.harness import Server, StoreServer, launched, until
from tests.server.packages import install_package

from dify_agent.cli.workers import KILL_SECONDS
from dify_agent.main import FAULT_SECONDS, STOP_SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.full]

MARK = "held"
LIMIT = 1.0
LATE = 10.0
"""How much later than documented a loaded machine may be."""
PROJECT = """
[project]
name = "holding"
version = "1"
[project.entry-points."dify_agent.layers"]
"test.holding" = "holding_layer:HoldingLayer"
"""


@contextmanager
def holding(store: StoreServer, folder: Path, **options: Any) -> Iterator[Server]:
    source = Path(holding_layer.__file__).read_text()
    env = {**install_package(folder, PROJECT, {"holding_layer.py": source}), "HOLDING_MARK": str(folder / MARK)}
    with launched(store.url, env=env, shutdown_limit_seconds=LIMIT, **options) as server:
        server.wait_listening()
        yield server


async def call(server: Server, folder: Path, tool: str, how: str) -> None:
    """Start a run that holds the loop; return when it does, or may be told to."""
    body = run_of(calling(tool, how=how))
    body["composition"]["layers"].insert(2, layer("holding", "test.holding"))
    async with open_api(server) as api:
        run_id = await api.create(body)
        await api.events_until(run_id, "function_tool_call")
    if tool == "hold_soon":
        await until((folder / MARK).exists, "the loop is held")


async def ending(server: Server, number: int = signal.SIGTERM) -> tuple[int, float]:
    """The status after a signal, and how long it took."""
    began = trio.current_time()
    server.tell(number)
    return await server.exit_status(), trio.current_time() - began


@pytest.mark.parametrize("tool", ["hold_when_cancelled", "hold_soon"])
@pytest.mark.parametrize(("how", "status", "after"), [("python", 75, 0.0), ("re", 1, FAULT_SECONDS)])
async def test_code_that_holds_the_loop_cannot_keep_the_process(
    store: StoreServer, tmp_path: Path, tool: str, how: str, *, status: int, after: float
) -> None:
    """From within the drain, or since before the signal."""
    with holding(store, tmp_path) as server:
        await call(server, tmp_path, tool, how)
        ended, seconds = await ending(server)
        assert ended == status
        assert LIMIT + after <= seconds < LIMIT + after + LATE
        if status == 75:
            assert server.records()[-1]["event"].startswith("shutdown took longer than DIFY_AGENT_SHUTDOWN_LIMIT")
        else:
            assert "Timeout (0:00:03)!" in server.log
            assert f"in {holding_layer.match_for_ever.__name__}" in server.log, "the traceback tells whose code it is"


async def test_native_code_that_handles_no_signal_is_ended_by_the_second_timer(
    store: StoreServer, tmp_path: Path
) -> None:
    with holding(store, tmp_path) as server:
        await call(server, tmp_path, "hold_when_cancelled", "sum")
        ended, seconds = await ending(server)
        assert ended == 1
        assert LIMIT + FAULT_SECONDS <= seconds < LIMIT + FAULT_SECONDS + LATE
        assert f"in {holding_layer.add_for_ever.__name__}" in server.log


@pytest.mark.parametrize("number", sorted(set(STOP_SIGNALS) - {signal.SIGTERM}))
async def test_every_signal_that_drains_arms_the_watchdog(store: StoreServer, tmp_path: Path, number: int) -> None:
    with holding(store, tmp_path) as server:
        await call(server, tmp_path, "hold_soon", "python")
        assert (await ending(server, number))[0] == 75


async def test_a_worker_in_which_no_signal_is_handled_is_killed_by_its_parent(
    store: StoreServer, tmp_path: Path
) -> None:
    with holding(store, tmp_path, arguments=("--workers", "2")) as server:
        await until(lambda: any("workers" in each for each in server.records()), "all workers listen")
        await call(server, tmp_path, "hold_soon", "sum")
        ended, seconds = await ending(server)
        assert ended == 75
        assert LIMIT + KILL_SECONDS <= seconds < LIMIT + KILL_SECONDS + LATE
        assert server.log.count("worker does not end, it is killed") == 1
