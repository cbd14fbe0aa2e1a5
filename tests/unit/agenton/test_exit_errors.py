"""Entry, exit, and what the caller of ``enter`` sees when layers or the body fail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from tests.unit.agenton.recording import Journal, family, recorders

from agenton.compositor import Compositor, CompositorRun, LayerNode
from agenton.layers import ExitIntent, LifecycleState, NoLayerDeps, PlainLayer

DOWN = ["child.delete", "child.resource-out", "parent.delete", "parent.resource-out"]
UP = ["parent.resource-in", "parent.create", "child.resource-in", "child.create"]


class Boom(Exception):
    pass


class Fatal(BaseException):
    pass


def states(run: CompositorRun) -> list[str]:
    return [slot.lifecycle_state.value for slot in run.slots.values()]


def snapshot_states(run: CompositorRun) -> list[str]:
    assert run.session_snapshot is not None
    return [layer.lifecycle_state.value for layer in run.session_snapshot.layers]


async def test_parent_and_child_are_entered_in_order_and_left_in_reverse() -> None:
    journal = Journal()
    async with family(journal).enter() as run:
        journal.step("body")
        assert states(run) == ["active", "active"]
        assert run.session_snapshot is None
        assert run.get_layer("child").deps.parent is run.get_layer("parent")
    assert journal.steps == [*UP, "body", *DOWN]
    assert states(run) == snapshot_states(run) == ["closed", "closed"]
    assert journal.seen == {"child": None, "parent": None}
    assert all(slot.active_resource_context is None for slot in run.slots.values())


async def test_suspend_and_resume() -> None:
    journal = Journal()
    compositor = recorders(journal, "a", "b")
    async with compositor.enter() as run:
        run.suspend_on_exit()
        run.delete_layer_on_exit("b")
        run.get_layer("a").runtime_state.count = 7
    assert snapshot_states(run) == ["suspended", "closed"]
    assert run.session_snapshot.layers[0].runtime_state == {"count": 7}

    journal.steps.clear()
    only_a = recorders(journal, "a")
    snapshot = {"layers": [run.session_snapshot.layers[0].model_dump()]}
    async with only_a.enter(session_snapshot=snapshot) as resumed:
        assert resumed.get_layer("a").runtime_state.count == 7
        assert resumed.slots["a"].exit_intent is ExitIntent.DELETE
    assert journal.steps == ["a.resource-in", "a.resume", "a.delete", "a.resource-out"]


async def test_new_in_a_snapshot_hydrates_and_creates() -> None:
    journal = Journal()
    stored = {"layers": [{"name": "a", "lifecycle_state": "new", "runtime_state": {"count": 3}}]}
    async with recorders(journal, "a").enter(session_snapshot=stored) as run:
        assert run.get_layer("a").runtime_state.count == 3
    assert journal.steps[1] == "a.create"


async def test_body_error_with_clean_exit() -> None:
    journal = Journal()
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter() as run:
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert journal.steps == UP + DOWN
    assert journal.seen == {"child": error, "parent": error}
    assert snapshot_states(run) == ["closed", "closed"]


@pytest.mark.parametrize("stop", [StopAsyncIteration, StopIteration, GeneratorExit, KeyboardInterrupt, Fatal])
async def test_body_errors_of_every_class_pass_through(stop: type[BaseException]) -> None:
    journal = Journal()
    error = stop()
    with pytest.raises(stop) as caught:
        async with family(journal).enter():
            raise error
    assert caught.value is error
    assert journal.steps == UP + DOWN


@pytest.mark.parametrize("step", ["child.delete", "child.resource-out", "parent.delete", "parent.resource-out"])
@pytest.mark.parametrize("exit_class", [Boom, Fatal])
async def test_body_error_and_exit_error(step: str, exit_class: type[BaseException]) -> None:
    journal = Journal()
    body_error, exit_error = ValueError("body"), exit_class("exit")
    journal.failures[step] = exit_error
    with pytest.raises(exit_class) as caught:
        async with family(journal).enter() as run:
            raise body_error
    assert caught.value is exit_error
    assert exit_error.__context__ is body_error
    assert journal.steps == UP + DOWN
    assert snapshot_states(run) == ["closed", "closed"]


async def test_exit_error_keeps_its_own_context_before_that_of_the_body() -> None:
    journal = Journal()
    cause = KeyError("inner")

    def fail() -> None:
        try:
            raise cause
        except KeyError:
            raise Boom from None

    journal.before["child.delete"] = fail
    body_error = ValueError("body")
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            raise body_error
    assert caught.value.__context__ is cause
    assert cause.__context__ is body_error


async def test_exit_error_without_a_context_gets_the_body_error() -> None:
    journal = Journal()
    exit_error, body_error = Boom(), ValueError("body")

    def fail() -> None:
        # As an error that was raised elsewhere, in another task or by a library that repairs contexts.
        try:
            raise exit_error
        finally:
            exit_error.__context__ = None

    journal.before["child.delete"] = fail
    with pytest.raises(Boom):
        async with family(journal).enter():
            raise body_error
    assert exit_error.__context__ is body_error


async def test_exit_error_that_the_body_error_came_from_makes_no_cycle() -> None:
    journal = Journal()
    exit_error = journal.failures["child.delete"] = Boom()
    body_error = ValueError("body")
    body_error.__cause__ = exit_error
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            raise body_error
    assert caught.value is exit_error
    assert exit_error.__context__ is body_error
    assert body_error.__context__ is None


@pytest.mark.parametrize("step", ["child.delete", "child.resource-out", "parent.delete", "parent.resource-out"])
async def test_exit_error_without_body_error(step: str) -> None:
    journal = Journal()
    error = journal.failures[step] = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter() as run:
            pass
    assert caught.value is error
    assert journal.steps == UP + DOWN
    assert snapshot_states(run) == ["closed", "closed"]


async def test_the_first_exit_error_wins() -> None:
    journal = Journal()
    journal.failures = {step: Boom(step) for step in DOWN}
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            pass
    assert caught.value is journal.failures["child.delete"]
    assert journal.steps == UP + DOWN


async def test_suspend_hook_that_fails_still_suspends() -> None:
    journal = Journal()
    journal.failures["parent.suspend"] = Boom()
    with pytest.raises(Boom):
        async with family(journal).enter() as run:
            run.suspend_layer_on_exit("parent")
    assert snapshot_states(run) == ["suspended", "closed"]


async def test_what_resource_contexts_are_given() -> None:
    journal = Journal()
    hook_error, resource_error, body_error = Boom("hook"), Boom("resource"), ValueError("body")
    journal.failures = {"c.delete": hook_error, "b.resource-out": resource_error}
    with pytest.raises(Boom) as caught:
        async with recorders(journal, "a", "b", "c").enter():
            raise body_error
    assert caught.value is hook_error
    assert journal.seen == {"c": hook_error, "b": body_error, "a": resource_error}


async def test_own_hook_error_is_not_handed_on() -> None:
    journal = Journal()
    error = journal.failures["b.delete"] = Boom()
    with pytest.raises(Boom):
        async with recorders(journal, "a", "b").enter():
            pass
    assert journal.seen == {"b": error, "a": None}


@pytest.mark.parametrize("swallowing", ["child", "parent"])
async def test_swallowing_resource_context_has_no_effect(swallowing: str) -> None:
    journal = Journal(swallow={swallowing})
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            raise error
    assert caught.value is error
    assert journal.seen == {"child": error, "parent": error}


async def test_swallowing_a_hook_error_has_no_effect() -> None:
    journal = Journal(swallow={"child"})
    error = journal.failures["child.delete"] = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            pass
    assert caught.value is error


class Reraising(PlainLayer[NoLayerDeps]):
    """Its context raises the given error itself instead of answering with a false value."""

    def resource_context(self) -> "Reraising":
        return self

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        if exc is not None:
            raise exc


async def test_reraising_the_same_error_is_not_a_new_one() -> None:
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with Compositor([LayerNode("a", Reraising)]).enter():
            raise error
    assert caught.value is error
    assert error.__context__ is None


class WithNursery(PlainLayer[NoLayerDeps]):
    """Holds a nursery for the length of the run, which wraps what passes through it in a group."""

    @asynccontextmanager
    async def resource_context(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()


async def test_a_task_group_around_the_same_error_is_not_a_new_one() -> None:
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with Compositor([LayerNode("a", WithNursery), LayerNode("b", WithNursery)]).enter():
            raise error
    assert caught.value is error


async def test_cancellation_passes_through_resource_nurseries() -> None:
    with trio.CancelScope() as scope:
        async with Compositor([LayerNode("a", WithNursery)]).enter():
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_resource_context_that_fails_on_the_way_in() -> None:
    journal = Journal()
    error = journal.failures["child.resource-in"] = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            pytest.fail("the body must not run")
    assert caught.value is error
    assert journal.steps == ["parent.resource-in", "parent.create", "child.resource-in", *DOWN[2:]]
    assert journal.seen == {"parent": error}


@pytest.mark.parametrize(("step", "state"), [("create", "new"), ("resume", "suspended")])
async def test_enter_hook_that_fails(step: str, state: str) -> None:
    journal = Journal()
    error = journal.failures[f"b.{step}"] = Fatal()
    stored = {
        "layers": [{"name": name, "lifecycle_state": state, "runtime_state": {}} for name in ("a", "b", "c")],
    }
    with pytest.raises(Fatal) as caught:
        async with recorders(journal, "a", "b", "c").enter(session_snapshot=stored):
            pytest.fail("the body must not run")
    assert caught.value is error
    assert error.__cause__ is None
    ups = ["a.resource-in", f"a.{step}", "b.resource-in", f"b.{step}"]
    assert journal.steps == [*ups, "b.resource-out", "a.delete", "a.resource-out"]
    assert journal.seen == {"b": error, "a": error}


async def test_enter_hook_and_cleanup_both_fail() -> None:
    journal = Journal()
    enter_error = journal.failures["child.create"] = Boom("enter")
    cleanup_error = journal.failures["parent.delete"] = Boom("cleanup")
    journal.failures["parent.resource-out"] = Boom("later")
    with pytest.raises(Boom) as caught:
        async with family(journal).enter():
            pytest.fail("the body must not run")
    assert caught.value is cleanup_error
    assert cleanup_error.__cause__ is enter_error


async def test_failed_entry_keeps_the_context_it_has() -> None:
    journal = Journal()
    own = KeyError("own")

    def fail() -> None:
        try:
            raise own
        except KeyError:
            raise Boom from None

    journal.before["parent.create"] = fail
    try:
        raise ValueError("around")
    except ValueError:
        with pytest.raises(Boom) as caught:
            async with family(journal).enter():
                pytest.fail("the body must not run")
    assert caught.value.__context__ is own


async def test_on_unwind_is_called_once_before_the_first_step_of_leaving() -> None:
    journal = Journal()
    async with family(journal).enter(on_unwind=lambda: journal.step("unwind")):
        journal.step("body")
    assert journal.steps == [*UP, "body", "unwind", *DOWN]

    journal.steps.clear()
    with pytest.raises(Boom):
        async with family(journal).enter(on_unwind=lambda: journal.step("unwind")):
            raise Boom
    assert journal.steps == [*UP, "unwind", *DOWN]

    journal.steps.clear()
    journal.failures["child.create"] = Boom()
    with pytest.raises(Boom):
        async with family(journal).enter(on_unwind=lambda: journal.step("unwind")):
            pytest.fail("the body must not run")
    assert journal.steps == [*UP, "unwind", "child.resource-out", *DOWN[2:]]


async def test_on_unwind_that_fails_does_not_stop_the_exit() -> None:
    journal = Journal()
    error = journal.failures["unwind"] = Boom()
    with pytest.raises(Boom) as caught:
        async with family(journal).enter(on_unwind=lambda: journal.step("unwind")) as run:
            pass
    assert caught.value is error
    assert journal.steps == [*UP, "unwind", *DOWN]
    assert run.session_snapshot is not None


async def test_on_unwind_is_not_called_when_nothing_was_entered() -> None:
    called: list[bool] = []
    with pytest.raises(ValueError, match="unknown layer node names"):
        async with recorders(Journal(), "a").enter(configs={"z": {}}, on_unwind=lambda: called.append(True)):
            pytest.fail("the body must not run")
    assert called == []


class Slow(PlainLayer[NoLayerDeps]):
    """Awaits in its hooks, as a layer with a remote backend does."""

    finished: bool = False

    async def on_context_delete(self) -> None:
        await trio.sleep(1)
        type(self).finished = True


async def test_a_caller_shields_the_exit_of_a_cancelled_run(autojump_clock: trio.abc.Clock) -> None:
    Slow.finished = False
    with trio.CancelScope() as outer, trio.CancelScope() as life:

        def begin_exit() -> None:
            life.shield = True
            life.deadline = trio.current_time() + 5

        async with Compositor([LayerNode("a", Slow)]).enter(on_unwind=begin_exit) as run:
            outer.cancel()
            await trio.lowlevel.checkpoint()
    assert outer.cancelled_caught
    assert Slow.finished
    assert snapshot_states(run) == ["closed"]


async def test_unshielded_exit_of_a_cancelled_run_still_reaches_every_layer() -> None:
    Slow.finished = False
    journal = Journal()
    nodes = [*recorders(journal, "a").nodes, LayerNode("slow", Slow)]
    with trio.CancelScope() as scope:
        async with Compositor(nodes).enter() as run:
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert not Slow.finished
    assert snapshot_states(run) == ["closed", "closed"]
    assert journal.steps[-2:] == ["a.delete", "a.resource-out"]


async def test_snapshot_that_cannot_be_taken_is_the_error_unless_there_is_one() -> None:
    journal = Journal()
    with pytest.raises(RuntimeError, match="refuses to dump"):
        async with recorders(journal, "a").enter() as run:
            run.get_layer("a").runtime_state = _Undumpable()
    assert run.session_snapshot is None
    journal.failures["a.delete"] = Boom()
    with pytest.raises(Boom):
        async with recorders(journal, "a").enter() as run:
            run.get_layer("a").runtime_state = _Undumpable()


class _Undumpable:
    def model_dump(self, **_: object) -> dict[str, object]:
        raise RuntimeError("refuses to dump")


async def test_concurrent_runs_of_one_compositor_share_nothing(autojump_clock: trio.abc.Clock) -> None:
    journal = Journal()
    compositor = recorders(journal, "a")
    runs: list[CompositorRun] = []

    async def one(seconds: int) -> None:
        async with compositor.enter() as run:
            runs.append(run)
            run.get_layer("a").runtime_state.count = seconds
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 2)
        nursery.start_soon(one, 1)
    assert runs[0].get_layer("a") is not runs[1].get_layer("a")
    assert sorted(run.session_snapshot.layers[0].runtime_state["count"] for run in runs) == [1, 2]
    assert all(run.slots["a"].lifecycle_state is LifecycleState.CLOSED for run in runs)


async def test_a_compositor_may_be_entered_again_inside_its_own_run() -> None:
    journal = Journal()
    compositor = recorders(journal, "a")
    async with compositor.enter() as outer, compositor.enter() as inner:
        assert outer.get_layer("a") is not inner.get_layer("a")
    async with compositor.enter():
        pass
    assert journal.steps.count("a.delete") == 3
