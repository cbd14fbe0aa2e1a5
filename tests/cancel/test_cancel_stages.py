"""Something happens to a run at every single step of the scheduler: a cancel, a shutdown, an outage, a crash.

One scenario (layers with slow hooks and a nursery of their own, a tool round, streamed text, a reader) is run again and
again; each time the disturbance comes one scheduler step later, until the scenario ends before it. Whatever the step,
the same must hold at the end (`check`).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import pytest
import structlog
import trio
from tests.unit.actors.fake_store import FakeRun
from tests.unit.actors.world import World, history, model, prompt, tools, world
from trio.testing import MockClock

from agenton.compositor import LayerProvider
from agenton.layers import EmptyRuntimeState, LayerConfig, NoLayerDeps, PlainLayer
from dify_agent.actors.messages import Stop, StopKind
from dify_agent.errors import StoreUnavailableError
from dify_agent.model.provider import ModelRegistry, open_model_registry
from dify_agent.protocol.event_id import START, EventId
from dify_agent.store.base import CancelIntent, StoredEvent

STATUS_OF = {"run_succeeded": "succeeded", "run_failed": "failed", "run_cancelled": "cancelled"}
OUTAGE_SECONDS = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of runs would say thousands of times how they ended."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class LabelConfig(LayerConfig):
    """Which layer of the run."""

    label: str
    nursery: bool
    """Hold a nursery with a background task, as a backend's lease does."""


class SlowLayer(PlainLayer[NoLayerDeps, LabelConfig, EmptyRuntimeState]):
    """Takes its time at every step and notes what happened."""

    type_id: ClassVar[str | None] = "test.slow"

    def __init__(self, config: LabelConfig, log: list[tuple[str, str]]) -> None:
        self._label = config.label
        self._nursery = config.nursery
        self._log = log

    @asynccontextmanager
    async def resource_context(self) -> AsyncIterator[None]:
        await trio.sleep(0.01)
        self._log.append(("acquired", self._label))
        try:
            if self._nursery:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    yield
                    nursery.cancel_scope.cancel()
            else:
                yield
        finally:
            await trio.sleep(0.01)
            self._log.append(("released", self._label))

    async def on_context_create(self) -> None:
        await trio.sleep(0.01)
        self._log.append(("entered", self._label))

    async def on_context_suspend(self) -> None:
        await trio.sleep(0.01)
        self._log.append(("left", self._label))

    async def on_context_delete(self) -> None:
        await self.on_context_suspend()


class Trigger(trio.abc.Instrument):
    """Calls ``fire`` right before the n-th step that any task makes after ``arm``."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._fire: Callable[[], None] = lambda: None

    def arm(self, steps: int, fire: Callable[[], None]) -> None:
        self._left, self._fire = steps, fire

    def disarm(self) -> bool:
        """Whether it has fired."""
        fired, self._left = self._left is None, None
        return fired

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._left is None:
            return
        if self._left == 0:
            self._left = None
            self._fire()
        else:
            self._left -= 1


@dataclass
class Stage:
    """One replica, the disturbance, and what became of the runs."""

    world: World
    layer_log: list[tuple[str, str]]
    nurseries: bool
    fired: trio.Event = field(default_factory=trio.Event)
    acknowledged: bool = False
    seen: list[StoredEvent] = field(default_factory=list)

    @property
    def runs(self) -> list[FakeRun]:
        return list(self.world.store.runs.values())

    def tell(self, kind: StopKind) -> None:
        for run_id in self.world.store.runs:
            self.world.supervisor._registry.tell(run_id, Stop(kind, "for 60 s"))

    def cancel(self) -> None:
        """A cancel request is accepted, as the store's script accepts it."""
        for run in self.runs:
            if run.record.status == "running":
                run.intent = run.intent or CancelIntent("why", None, datetime.now(UTC))
                self.acknowledged = True
        self.tell(StopKind.CANCEL)

    def cancel_without_a_bell(self) -> None:
        """As ``cancel``, at another replica whose bell got lost."""
        told, self.tell = self.tell, lambda _kind: None  # type: ignore[method-assign]
        self.cancel()
        self.tell = told  # type: ignore[method-assign]

    def shutdown(self) -> None:
        self.world.supervisor.stop_accepting()
        self.tell(StopKind.SHUTDOWN)

    def shutdown_and_cancel(self) -> None:
        self.shutdown()
        self.cancel()

    def store_goes_away(self) -> None:
        self.world.store.down = True

    def replies_get_lost(self) -> None:
        self.world.store.lose_replies = dict.fromkeys(("create_run", "append", "finalize", "finalize_cancel"), 1)

    def verdict(self) -> None:
        """Another replica takes this one for dead and ends its runs."""
        for run in self.runs:
            if run.record.status == "running":
                payload = b'{"run_id":"r","created_at":"t","type":"run_failed","data":{}}'
                run.events.append(StoredEvent(EventId(run.top.ms + 10**6, run.top.n + 1), payload))
                run.record = run.record.model_copy(update={"status": "failed"})

    async def scenario(self) -> None:
        """Create the run and read it to its end."""
        w = self.world
        call = {"tool_calls": [{"name": "wait", "args": {}}]}
        slow = [
            {"name": label, "type": "test.slow", "config": {"label": label, "nursery": self.nurseries}}
            for label in ("one", "two")
        ]
        tool = tools({"name": "wait", "result": 7, "delay_ms": 10})
        script = model(call, {"chunks": 2, "chunk": "x", "delay_ms": 10, "thinking": "hm"})
        try:
            run_id = await w.create(prompt(), history(), *slow, tool, script)
            tail = await w.supervisor.open_tail(run_id, START)
        except (StoreUnavailableError, trio.EndOfChannel):
            return
        end = None
        while end is None:
            batch = await tail.next()
            self.seen.extend(batch.events)
            assert batch.trimmed == 0
            end = batch.end

    def check(self) -> None:
        """What holds at every step."""
        w = self.world
        assert w.supervisor.active_runs == 0
        assert w.publisher.budget.used == 0
        for run in self.runs:
            self.check_log(run)
        self.check_layers()

    def check_layers(self) -> None:
        """Every layer leaves, in reverse.

        A cancellation that comes while layers are entered also ends the tasks in their nurseries, and what such a
        layer awaits on its way out: no scope can tell the two apart (`dify_agent.actors.work`). So with nurseries
        this holds from the end of entry.
        """
        did = {what: [label for w, label in self.layer_log if w == what] for what in ("acquired", "entered", "left")}
        released = [label for what, label in self.layer_log if what == "released"]
        if self.nurseries and did["entered"] != ["one", "two"]:
            return
        assert released == did["acquired"][::-1]
        assert did["left"] == did["entered"][::-1]

    def check_log(self, run: FakeRun) -> None:
        terminals = [event for event in run.events if event.is_terminal]
        assert terminals == run.events[-1:], run.types
        assert run.record.status == STATUS_OF[run.events[-1].type]
        assert len(run.events) == 1 or run.types[0] == "run_started"
        assert run.types.count("run_started") <= 1
        assert [event.id.n for event in run.events] == list(range(1, len(run.events) + 1))
        if self.seen:
            assert self.seen == run.events, "readers see what is stored"
        if self.acknowledged:
            assert run.record.status == "cancelled"
            assert run.intent is None


@asynccontextmanager
async def stage(models: ModelRegistry, *, nurseries: bool = False) -> AsyncIterator[Stage]:
    log: list[tuple[str, str]] = []

    def create(config: LabelConfig) -> SlowLayer:
        return SlowLayer(config, log)

    provider: LayerProvider[Any] = LayerProvider.from_factory(layer_type=SlowLayer, create=create)
    async with world(models=models, providers=[provider], outage_seconds=OUTAGE_SECONDS) as w:
        for name in ("create_run", "append", "finalize", "finalize_cancel"):
            setattr(w.store, name, answered_later(getattr(w.store, name)))
        yield Stage(w, log, nurseries)


def answered_later(operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A store operation with a step between its effect and its answer."""

    async def call(*args: Any) -> Any:
        answer = await operation(*args)
        await trio.lowlevel.checkpoint()
        return answer

    return call


async def at_every_step(
    fire: Callable[[Stage], None],
    afterwards: Callable[[Stage], Awaitable[None]] | None = None,
    *,
    nurseries: bool = False,
) -> list[Stage]:
    """Play the scenario with the disturbance at step 0, 1, 2, … until it comes too late; check each time."""
    stages: list[Stage] = []
    async with open_model_registry() as models:
        with instrumented() as trigger:
            for step in range(2000):
                try:
                    async with stage(models, nurseries=nurseries) as s:
                        fired = await _play(s, trigger, step, partial(fire, s), afterwards)
                except BaseException as error:
                    error.add_note(f"disturbed at step {step}")
                    raise
                stages.append(s)
                if not fired:
                    return stages
    raise AssertionError("the scenario never ends")


@contextmanager
def instrumented() -> Iterator[Trigger]:
    trigger = Trigger()
    trio.lowlevel.add_instrument(trigger)
    try:
        yield trigger
    finally:
        trio.lowlevel.remove_instrument(trigger)


async def _play(
    s: Stage,
    trigger: Trigger,
    step: int,
    fire: Callable[[], None],
    afterwards: Callable[[Stage], Awaitable[None]] | None,
) -> bool:
    """Play the scenario once; whether the disturbance came in time."""

    def disturb() -> None:
        fire()
        s.fired.set()

    async def react() -> None:
        await s.fired.wait()
        if afterwards is not None:
            await afterwards(s)

    trio._core._run._r.seed(step)  # the order in which ready tasks run: the same in every repeat of a test
    trigger.arm(step, disturb)
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(react)
            await s.scenario()
            await s.world.supervisor._registry.wait_empty()
            fired = trigger.disarm()
            if not fired:
                nursery.cancel_scope.cancel()
    events = [list(run.events) for run in s.runs]
    await trio.sleep(100)
    assert events == [run.events for run in s.runs], "nothing follows the end"
    s.check()
    return fired


def statuses(stages: list[Stage]) -> set[str]:
    return {run.record.status for s in stages for run in s.runs}


@pytest.mark.slow
@pytest.mark.parametrize("nurseries", [False, True])
async def test_cancel_at_every_step(autojump_clock: MockClock, nurseries: bool) -> None:
    stages = await at_every_step(Stage.cancel, nurseries=nurseries)
    assert len(stages) > 40
    assert statuses(stages) == {"cancelled", "succeeded"}
    assert sum(s.acknowledged for s in stages) > len(stages) / 2
    assert {len(s.runs[0].events) for s in stages if s.runs} >= {1, 2}, "before and after the work began"


@pytest.mark.slow
async def test_a_cancel_whose_bell_is_lost_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.cancel_without_a_bell)
    assert statuses(stages) == {"cancelled", "succeeded"}


@pytest.mark.slow
async def test_shutdown_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.shutdown)
    assert statuses(stages) == {"failed", "succeeded"}


@pytest.mark.slow
async def test_cancel_and_shutdown_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.shutdown_and_cancel)
    assert statuses(stages) == {"cancelled", "succeeded"}


async def back_after(seconds: float, s: Stage) -> None:
    await trio.sleep(seconds)
    s.world.store.down = False


@pytest.mark.slow
async def test_a_short_outage_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.store_goes_away, lambda s: back_after(5, s))
    assert statuses(stages) <= {"succeeded", "failed"}
    assert all(run.record.status == "succeeded" for s in stages if s.seen for run in s.runs)


@pytest.mark.slow
async def test_a_long_outage_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.store_goes_away, lambda s: back_after(OUTAGE_SECONDS + 5, s))
    assert statuses(stages) <= {"succeeded", "failed"}


@pytest.mark.slow
async def test_lost_replies_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.replies_get_lost)
    assert statuses(stages) == {"succeeded"}


@pytest.mark.slow
async def test_a_verdict_at_every_step(autojump_clock: MockClock) -> None:
    stages = await at_every_step(Stage.verdict)
    assert statuses(stages) == {"failed", "succeeded"}


@pytest.mark.slow
async def test_teardown_at_every_step(autojump_clock: MockClock) -> None:
    step, fired = 0, True
    async with open_model_registry() as models:
        with instrumented() as trigger:
            while fired:
                async with stage(models) as s:
                    trio._core._run._r.seed(step)
                    trigger.arm(step, s.world.nursery.cancel_scope.cancel)
                    await s.scenario()
                    await s.world.supervisor._registry.wait_empty()
                fired = trigger.disarm()
                s.seen.clear()  # the reader was torn down as well
                s.check()
                step += 1
    assert step > 40
