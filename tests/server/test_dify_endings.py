"""Shutdown and deadline while a run waits for Dify: how it ends, and that Dify is let go of at once.

Cancels are in `test_dify`.
"""

import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
import trio
from tests.server.clients import Frame, open_api, open_stream
from tests.server.dify_fakes import FakeDify, fake_dify
from tests.server.dify_faults import FIRST_SEARCH
from tests.server.dify_phases import PHASES, WAITING_A_WHILE, WAITING_FOR_EVER, all_left, in_phase, start
from tests.server.dify_results import ended
from tests.server.endings import assert_ended_once, moment, stored_run
from tests.server.harness import StoreServer, serving, until

from dify_agent.testing import Outcome

pytestmark = pytest.mark.slow

LIMIT_SECONDS: Final = 1.0
PROMPT_SECONDS: Final = 2.0


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    with fake_dify() as fakes:
        yield fakes


async def rests(streams: dict[str, Any]) -> dict[str, list[Frame]]:
    """What is left on each stream, read at the same time."""
    found: dict[str, list[Frame]] = {}

    async def read(phase: str) -> None:
        found[phase] = await streams[phase].rest()

    async with trio.open_nursery() as nursery:
        for phase in streams:
            nursery.start_soon(read, phase)
    return found


@pytest.mark.parametrize(("transport", "grace"), [("gateway", 0.0), ("plugin_daemon", 0.6)])
async def test_a_shutdown_ends_what_waits_for_dify(
    store: StoreServer, dify: FakeDify, transport: str, grace: float
) -> None:
    await dify.play(**WAITING_FOR_EVER)
    with serving(store.url, env=dify.environment, llm_transport=transport, shutdown_grace_seconds=grace) as server:
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_ids = await start(api, dify)
            streams = {
                phase: await stack.enter_async_context(open_stream(server, run_id)) for phase, run_id in run_ids.items()
            }
            began = trio.current_time()
            server.tell(signal.SIGTERM)
            frames = await rests(streams)
            assert grace <= trio.current_time() - began < grace + PROMPT_SECONDS
            await all_left(dify)
        assert await server.exit_status(within=PROMPT_SECONDS) == 0
        assert "were cut" not in server.log
    for phase, run_id in run_ids.items():
        data = frames[phase][-1].json["data"]
        assert (frames[phase][-1].event, data["reason"]) == ("run_failed", "shutdown"), phase
        assert (data["error"], data["error_type"]) == ("run cancelled during server shutdown", None), phase
        assert_ended_once(stored_run(store.witness, server.prefix, run_id))
    assert len(in_phase(dify)) == len(PHASES), "nothing is asked again"


async def test_what_ends_within_the_grace_may_still_ask_dify(store: StoreServer, dify: FakeDify) -> None:
    """Tools and searches come back during the drain, and the model is asked with what they found."""
    await dify.play(**WAITING_A_WHILE)
    with serving(store.url, env=dify.environment, shutdown_grace_seconds=20) as server:
        async with open_api(server) as api, AsyncExitStack() as stack:
            run_ids = await start(api, dify)
            streams = {
                phase: await stack.enter_async_context(open_stream(server, run_id)) for phase, run_id in run_ids.items()
            }
            server.tell(signal.SIGTERM)
            await until(lambda: '"draining"' in server.log, "the drain begins")
            before = len(dify.to("/"))
            frames = await rests(streams)
        assert await server.exit_status(within=PROMPT_SECONDS) == 0
    assert {phase: rest[-1].event for phase, rest in frames.items()} == dict.fromkeys(PHASES, "run_succeeded")
    assert len(dify.to("/")) == before + 4, "a model call behind each tool and each search"
    assert {each.outcome for each in dify.to("/")} == {Outcome.ANSWERED}


async def test_the_deadline_ends_what_waits_for_dify(store: StoreServer, dify: FakeDify) -> None:
    """Twice, with as many connections as are needed once: each is given back."""
    settings = {
        "run_timeout_seconds": LIMIT_SECONDS,
        "enter_timeout_seconds": LIMIT_SECONDS,
        "outbound_http_max_connections": len(PHASES),
    }
    with serving(store.url, env=dify.environment, **settings) as server:
        async with open_api(server) as api:
            for _ in range(2):
                await dify.play(**WAITING_FOR_EVER)
                run_ids = await start(api, dify)
                for phase, run_id in run_ids.items():
                    events = await api.finished(run_id)
                    data = ended(events, "run_failed")
                    took = (moment(events[-1]) - moment(events[0])).total_seconds()
                    assert LIMIT_SECONDS * 0.9 <= took < LIMIT_SECONDS + PROMPT_SECONDS, phase
                    if phase == FIRST_SEARCH.name:  # the loop has not begun: the entry has its own bound
                        assert (data["reason"], data["error_type"]) == ("phase_timeout", None)
                        assert "DIFY_AGENT_ENTER_TIMEOUT_SECONDS" in data["error"]
                    else:
                        assert (data["reason"], data["error_type"]) == (None, "agent_run_limit_exceeded"), phase
                        assert f"limit of {LIMIT_SECONDS:g} seconds" in data["error"]
                await all_left(dify)
                assert len(in_phase(dify)) == len(PHASES), "nothing is asked again"
