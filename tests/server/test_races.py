"""Success, deadline, cancel and drain of one run within a few milliseconds: one of them is how it ends, once.

A cancel that was accepted wins over everything that is not stored yet; of the others the first counts.
"""

import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import httpx2
import pytest
import trio
from pydantic_ai.messages import ModelRequest
from tests.server.bodies import run_of
from tests.server.clients import Api, open_api
from tests.server.endings import StoredRun, assert_ended_once, stored_run
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, serving, settled, stored_records, until
from tests.server.test_inside import live_actors, tasks

from dify_agent.actors.messages import Stop, StopKind
from dify_agent.errors import RunCancellationConflictError
from dify_agent.main import build_supervisor
from dify_agent.metrics import Metrics
from dify_agent.model.provider import open_model_registry
from dify_agent.model.scripted import ScriptedModel
from dify_agent.protocol.event_id import START
from dify_agent.protocol.schemas import CancelRunRequest, CreateRunRequest
from dify_agent.settings import ServerSettings
from dify_agent.store.redis import open_redis_store
from dify_agent.supervisor.serve import Supervisor

SEED: Final = 20261130
RACES: Final = 1000
SPREAD_SECONDS: Final = 0.005
RUN_SECONDS: Final = 0.06
"""How long the model takes, and the deadline, give or take the spread."""
AT_ONCE: Final = 8
"""More would make the event loop's turns longer than the spread."""
LEASE_SECONDS: Final = 3.0
"""Ended runs leave the owner's set at each third of it."""
ENDINGS: Final = {"succeeded", "failed: shutdown", "failed: deadline", "cancelled"}


def ending_of(run: StoredRun) -> str:
    return "failed: deadline" if run.data.get("error_type") == "agent_run_limit_exceeded" else run.ending


def check(run: StoredRun, *, cancel_accepted: bool | None) -> None:
    """``None``: nobody knows."""
    assert_ended_once(run)
    if cancel_accepted is not None:
        assert (run.status == "cancelled") == cancel_accepted, run.events[-1]
    entered = any(event["type"] == "pydantic_ai_event" for event in run.events)
    assert not entered or run.data["session_snapshot"] is not None, run.events[-1]


# In this process


class Starts:
    """Tells when a run's model is asked. Runs are known by their prompts: a model does not know its run."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}

    def of(self, prompt: str) -> trio.Event:
        return self._events.setdefault(prompt, trio.Event())

    @contextmanager
    def observed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            original = ScriptedModel.request_stream

            def asked(model: ScriptedModel, messages: list[Any], *rest: Any, **options: Any) -> Any:
                assert isinstance(messages[-1], ModelRequest)
                self.of(str(messages[-1].parts[-1].content)).set()
                return original(model, messages, *rest, **options)

            patch.setattr(ScriptedModel, "request_stream", asked)
            yield


@asynccontextmanager
async def supervisor_over(store: StoreServer, prefix: str) -> AsyncIterator[Supervisor]:
    """As `dify_agent.main.serve` has one, without HTTP."""
    settings = ServerSettings(
        redis_url=store.url,
        redis_prefix=prefix,
        scripted_layers=True,
        run_timeout_seconds=RUN_SECONDS,
        owner_lease_seconds=LEASE_SECONDS,
        _env_file=None,
    )
    async with (
        open_redis_store(store.url, prefix=prefix, max_connections=10) as opened,
        open_model_registry() as models,
    ):
        supervisor = build_supervisor(settings, opened, models, Metrics())
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.serve)
            yield supervisor
            nursery.cancel_scope.cancel()


class Race:
    """One run and what happens to it, at moments that are drawn before."""

    def __init__(self, number: int, supervisor: Supervisor, starts: Starts, dice: random.Random) -> None:
        self._supervisor = supervisor
        self._prompt = f"race {number}"
        self._start = starts.of(self._prompt)
        self._model, self._cancel, self._drain = [
            RUN_SECONDS + dice.uniform(-SPREAD_SECONDS, SPREAD_SECONDS) for _ in range(3)
        ]
        self.run_id = ""
        self.cancel_accepted = False
        self.read: list[str] = []
        """Ids of the events that a reader got."""

    async def run(self) -> None:
        body = run_of({"chunks": 1, "delay_ms": self._model * 1000}, prompt=self._prompt)
        self.run_id = await self._supervisor.create(CreateRunRequest.model_validate(body))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            await self._start.wait()
            began = trio.current_time()
            nursery.start_soon(self._cancelled_at, began + self._cancel)
            nursery.start_soon(self._drained_at, began + self._drain)

    async def _follow(self) -> None:
        tail = await self._supervisor.open_tail(self.run_id, START)
        end = None
        while end is None:
            batch = await tail.next()
            self.read += [str(event.id) for event in batch.events]
            end = batch.end
        tail.close()
        assert end == "terminal"

    async def _cancelled_at(self, moment: float) -> None:
        await trio.sleep_until(moment)
        try:
            await self._supervisor.cancel(self.run_id, CancelRunRequest(reason="user"))
            self.cancel_accepted = True
        except RunCancellationConflictError:
            pass

    async def _drained_at(self, moment: float) -> None:
        """What `Supervisor.drain` does to a run when the grace is over. A drain would stop the supervisor for good."""
        await trio.sleep_until(moment)
        self._supervisor._registry.tell(self.run_id, Stop(StopKind.SHUTDOWN))


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(RACES, marks=pytest.mark.full)])
async def test_of_four_endings_at_once_each_run_has_one(store: StoreServer, count: int) -> None:
    dice = random.Random(SEED)
    prefix = f"races-{count}"
    starts = Starts()
    witness = store.witness
    before_all = tasks()
    async with supervisor_over(store, prefix) as supervisor:
        before = await settled(tasks)
        races = [Race(number, supervisor, starts, dice) for number in range(count)]
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one(race: Race) -> None:
            async with limit:
                with trio.fail_after(BOUND_SECONDS):
                    await race.run()

        with starts.observed():
            async with trio.open_nursery() as nursery:
                for race in races:
                    nursery.start_soon(one, race)
        await until(lambda: supervisor.active_runs == 0, "no run is active")
        await until(lambda: tasks() == before, f"the tasks are again {before}")
        # The flush timer forgets what has ended when its time comes.
        await until(lambda: live_actors() == 0, "no actor is in memory")
        own = f"{prefix}:owners:{{{supervisor.environment.owner.id}}}:runs"
        await until(lambda: witness.exists(own) == 0, "the owner's set is empty")
        endings: Counter[str] = Counter()
        for race in races:
            run = stored_run(witness, prefix, race.run_id)
            check(run, cancel_accepted=race.cancel_accepted)
            assert race.read == [event["id"] for event in run.events]
            assert run.data["session_snapshot"] is not None
            endings[ending_of(run)] += 1
        await supervisor.retire()
    assert tasks() == before_all
    print(f"\n{count} races ended as {dict(endings.most_common())}")
    assert set(endings) == ENDINGS


# With a process and a signal


DEADLINE_SECONDS: Final = 0.5
RUNS_OF_A_PROCESS: Final = 4
"""Created one after the other, some milliseconds apart, and so are their deadlines."""
CREATE_SECONDS: Final = 0.004
"""What a create takes on an idle machine: the model starts so much later than it is asked for."""


async def race_with_sigterm(server: Server, dice: random.Random) -> dict[str, bool | None]:
    """Runs that end by themselves, by their deadline, by a cancel and by a signal, all at about one moment.

    Returns which of them had an accepted cancel; None where the answer was lost.
    """
    accepted: dict[str, bool | None] = {}

    async def cancelled_at(api: Api, run_id: str, moment: float) -> None:
        await trio.sleep_until(moment)
        try:
            response = await api.try_cancel(run_id, reason="user")
        except httpx2.TransportError:
            return  # the listener has gone, or goes; whoever sent a request by then may have been heard
        assert response.status_code in (200, 409), response.text
        accepted[run_id] = response.status_code == 200

    def about(moment: float) -> float:
        return moment + dice.uniform(-SPREAD_SECONDS, SPREAD_SECONDS)

    async with open_api(server) as api:
        async with trio.open_nursery() as warming:
            for _ in range(RUNS_OF_A_PROCESS):
                warming.start_soon(api.client.get, "/healthz")
        end = trio.current_time() + DEADLINE_SECONDS + RUNS_OF_A_PROCESS / 2 * CREATE_SECONDS
        for _ in range(RUNS_OF_A_PROCESS):
            left = about(end) - trio.current_time() - CREATE_SECONDS
            accepted[await api.create(run_of({"chunks": 1, "delay_ms": left * 1000}))] = None
        async with trio.open_nursery() as nursery:
            spared, *others = (
                accepted  # a cancel that comes early enough wins over all, and the others would not be seen
            )
            accepted[spared] = False
            for run_id in others:
                nursery.start_soon(cancelled_at, api, run_id, about(end))
            await trio.sleep_until(about(end))
            server.tell(signal.SIGTERM)
    return accepted


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="3"), pytest.param(20, id="20", marks=[pytest.mark.full, pytest.mark.timeout(600)])]
)
async def test_a_signal_amid_the_endings_leaves_one_for_each_run(store: StoreServer, rounds: int) -> None:
    dice = random.Random(SEED)
    endings: Counter[str] = Counter()
    for _ in range(rounds):
        with serving(store.url, run_timeout_seconds=DEADLINE_SECONDS) as server:
            accepted = await race_with_sigterm(server, dice)
            assert await server.exit_status() == 0
        assert {record["run_id"] for record in stored_records(store, server.prefix)} == set(accepted)
        for run_id, cancel_accepted in accepted.items():
            run = stored_run(store.witness, server.prefix, run_id)
            check(run, cancel_accepted=cancel_accepted)
            endings[ending_of(run)] += 1
        assert not list(store.witness.scan_iter(match=f"{server.prefix}:owners:*:runs", count=1000))
    print(f"\n{rounds * RUNS_OF_A_PROCESS} runs ended as {dict(endings.most_common())}")
    assert set(endings) <= ENDINGS
    assert len(endings) > 1, "which ones depends on how busy the machine is"
