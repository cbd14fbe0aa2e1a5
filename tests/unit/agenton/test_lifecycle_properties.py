"""Random stacks with random failures: what holds for every one of them."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agenton.recording import Journal, recorders

STEPS = ("resource-in", "create", "resume", "suspend", "delete", "resource-out")


class Failure(Exception):
    pass


class FatalFailure(BaseException):
    pass


@dataclass
class Plan:
    """One random case: per layer its starting state, exit intent and failing steps; and what the body does."""

    states: list[str]
    suspends: list[bool]
    failing: set[tuple[int, str]]
    fatal: bool
    body_fails: bool
    swallowing: set[int] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return [f"l{index}" for index in range(len(self.states))]

    def snapshot(self) -> dict[str, object]:
        entries = zip(self.names, self.states, strict=True)
        return {"layers": [{"name": n, "lifecycle_state": s, "runtime_state": {}} for n, s in entries]}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(min_value=0, max_value=5))
    per_layer = st.lists(st.booleans(), min_size=size, max_size=size)
    places = st.tuples(st.integers(min_value=0, max_value=max(size - 1, 0)), st.sampled_from(STEPS))
    return Plan(
        states=draw(st.lists(st.sampled_from(["new", "suspended"]), min_size=size, max_size=size)),
        suspends=draw(per_layer),
        failing=draw(st.sets(places, max_size=4)) if size else set(),
        fatal=draw(st.booleans()),
        body_fails=draw(st.booleans()),
        swallowing={index for index, chosen in enumerate(draw(per_layer)) if chosen},
    )


@dataclass
class Expected:
    """What the contract says, derived from the plan alone."""

    steps: list[str]
    states: list[str]
    error: str | None
    entered: bool


def expect(plan: Plan) -> Expected:
    """The model: entry until the first failure, then everything that was entered, in reverse."""
    steps: list[str] = []
    states = list(plan.states)
    resources: list[int] = []
    entry_error = None
    for index, state in enumerate(plan.states):
        hook = "create" if state == "new" else "resume"
        for what in ("resource-in", hook):
            steps.append(f"l{index}.{what}")
            if (index, what) in plan.failing:
                entry_error = steps[-1]
                break
            if what == "resource-in":
                resources.append(index)
            else:
                states[index] = "active"
        if entry_error:
            break
    entered = entry_error is None
    if entered:
        steps.append("body")
    exit_errors: list[str] = []
    for index in reversed(resources):
        suspend = entered and plan.suspends[index]
        hook = ("suspend" if suspend else "delete") if states[index] == "active" else None
        for what in filter(None, (hook, "resource-out")):
            steps.append(f"l{index}.{what}")
            if (index, what) in plan.failing:
                exit_errors.append(steps[-1])
        if hook:
            states[index] = "suspended" if suspend else "closed"
    candidates = [*exit_errors, entry_error or ("body" if entered and plan.body_fails else None)]
    return Expected(steps, states, candidates[0], entered)


def journal_of(plan: Plan) -> Journal:
    kind = FatalFailure if plan.fatal else Failure
    journal = Journal(swallow={f"l{index}" for index in plan.swallowing})
    for index, what in plan.failing:
        journal.failures[f"l{index}.{what}"] = kind(f"l{index}.{what}")
    if plan.body_fails:
        journal.failures["body"] = kind("body")
    return journal


def run_plan(plan: Plan) -> tuple[Journal, BaseException | None, Any]:
    journal = journal_of(plan)
    unwinds: list[int] = []
    runs: list[object] = []

    async def main() -> None:
        compositor = recorders(journal, *plan.names)
        async with compositor.enter(
            session_snapshot=plan.snapshot(), on_unwind=lambda: unwinds.append(len(journal.steps))
        ) as run:
            runs.append(run)
            for name, suspend in zip(plan.names, plan.suspends, strict=True):
                if suspend:
                    run.suspend_layer_on_exit(name)
            journal.step("body")

    error = None
    try:
        trio.run(main)
    except (Failure, FatalFailure) as caught:
        error = caught
    assert len(unwinds) == 1
    return journal, error, runs[0] if runs else None


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(plan=plans())
def test_every_stack_is_left_as_the_contract_says(plan: Plan) -> None:
    expected = expect(plan)
    journal, error, run = run_plan(plan)

    assert journal.steps == expected.steps
    assert (None if error is None else str(error)) == expected.error
    if error is not None:
        assert error is journal.failures[expected.error]
    assert (run is not None) == expected.entered
    if run is not None:
        assert [slot.lifecycle_state.value for slot in run.slots.values()] == expected.states
        assert [layer.lifecycle_state.value for layer in run.session_snapshot.layers] == expected.states
        assert all(slot.active_resource_context is None for slot in run.slots.values())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(plan=plans())
def test_every_entered_resource_is_left_once_and_in_reverse(plan: Plan) -> None:
    journal, _, _ = run_plan(plan)
    opened = [
        step.split(".")[0] for step in journal.steps if step.endswith(".resource-in") and step not in journal.failures
    ]
    closed = [step.split(".")[0] for step in journal.steps if step.endswith(".resource-out")]
    assert closed == opened[::-1]
    assert len(set(closed)) == len(closed)
