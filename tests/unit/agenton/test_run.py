"""The run object and session snapshots."""

import json
from collections import OrderedDict
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError
from tests.unit.agenton.recording import Child, Journal, Recorder, family, recorders

from agenton.compositor import (
    Compositor,
    CompositorRun,
    CompositorSessionSnapshot,
    LayerNode,
    LayerRunSlot,
    LayerSessionSnapshot,
)
from agenton.compositor.lifecycle import check_enterable
from agenton.layers import EmptyLayerConfig, ExitIntent, LifecycleState, NoLayerDeps, PlainLayer


class Talker(PlainLayer[NoLayerDeps]):
    letter = "?"

    @property
    def prefix_prompts(self) -> list[str]:
        return [f"{self.letter}-pre-1", f"{self.letter}-pre-2"]

    @property
    def suffix_prompts(self) -> list[str]:
        return [f"{self.letter}-suf-1", f"{self.letter}-suf-2"]

    @property
    def user_prompts(self) -> list[str]:
        return [f"{self.letter}-user"]

    @property
    def tools(self) -> list[Any]:
        return [print]


class A(Talker):
    letter = "a"


class B(Talker):
    letter = "b"


PROMPTS = ["a-pre-1", "a-pre-2", "b-pre-1", "b-pre-2", "b-suf-1", "b-suf-2", "a-suf-1", "a-suf-2"]


async def test_aggregation_order_and_tags() -> None:
    async with Compositor([LayerNode("a", A), LayerNode("b", B)]).enter() as run:
        assert [item.value for item in run.prompts] == PROMPTS
        assert [item.value for item in run.user_prompts] == ["a-user", "b-user"]
        assert [item.value for item in run.tools] == [print, print]
        assert {item.kind for item in (*run.prompts, *run.user_prompts, *run.tools)} == {"plain"}
        run.get_layer("a").letter = "z"
        assert run.prompts[0].value == "z-pre-1"


async def test_transformers_see_everything_once() -> None:
    calls: list[list[Any]] = []

    def transformer(items: Any) -> list[Any]:
        calls.append(list(items))
        return [item.value for item in items]

    compositor = Compositor(
        [LayerNode("a", A), LayerNode("b", B)],
        prompt_transformer=transformer,
        user_prompt_transformer=lambda items: [f"<{item.value}>" for item in items],
        tool_transformer=lambda items: ["tool"] * len(items),
    )
    async with compositor.enter() as run:
        assert run.prompts == PROMPTS
        assert run.user_prompts == ["<a-user>", "<b-user>"]
        assert run.tools == ["tool", "tool"]
        assert run.prompt_transformer is transformer
    assert len(calls) == 1


async def test_get_layer() -> None:
    async with family(Journal()).enter() as run:
        assert list(run.slots) == ["parent", "child"]
        assert isinstance(run.slots, OrderedDict)
        assert run.get_layer("child", Child) is run.get_layer("child")
        with pytest.raises(KeyError) as missing:
            run.get_layer("nobody")
        assert missing.value.args == ("Layer 'nobody' is not defined in this compositor run.",)
        with pytest.raises(TypeError) as wrong:
            run.get_layer("child", Recorder)
        assert str(wrong.value) == "Layer 'child' must be Recorder, got Child."


async def test_exit_intents() -> None:
    def intents(run: CompositorRun) -> list[ExitIntent]:
        return [slot.exit_intent for slot in run.slots.values()]

    async with family(Journal()).enter() as run:
        assert intents(run) == [ExitIntent.DELETE, ExitIntent.DELETE]
        run.suspend_on_exit()
        assert intents(run) == [ExitIntent.SUSPEND, ExitIntent.SUSPEND]
        run.delete_layer_on_exit("parent")
        assert intents(run) == [ExitIntent.DELETE, ExitIntent.SUSPEND]
        run.delete_on_exit()
        run.suspend_layer_on_exit("parent")
        assert intents(run) == [ExitIntent.SUSPEND, ExitIntent.DELETE]
        for call in (run.suspend_layer_on_exit, run.delete_layer_on_exit):
            with pytest.raises(KeyError) as missing:
                call("nobody")
            assert missing.value.args == ("Layer 'nobody' is not defined in this compositor run.",)
    text = r"^Layer exit intent can only be changed while the run slot is active\.$"
    for call in (
        run.suspend_on_exit,
        run.delete_on_exit,
        lambda: run.suspend_layer_on_exit("child"),
        lambda: run.delete_layer_on_exit("child"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()


async def test_snapshot_session_of_an_active_run() -> None:
    async with family(Journal()).enter() as run:
        with pytest.raises(RuntimeError, match=r"^Cannot snapshot active compositor run layers: parent, child\.$"):
            run.snapshot_session()
    assert run.snapshot_session() == run.session_snapshot


def test_slot_defaults() -> None:
    slot = LayerRunSlot(A(), LifecycleState.NEW)
    assert (slot.exit_intent, slot.active_resource_context) == (ExitIntent.DELETE, None)


# --- snapshots


def stored(*layers: tuple[str, str], **extra: Any) -> dict[str, Any]:
    entries = [{"name": name, "lifecycle_state": state, "runtime_state": {}} for name, state in layers]
    return {"layers": entries, **extra}


async def test_snapshot_contents() -> None:
    async with recorders(Journal(), "a", "b").enter() as run:
        run.suspend_layer_on_exit("a")
        run.get_layer("a").runtime_state.count = 2
    assert json.loads(run.session_snapshot.model_dump_json()) == {
        "schema_version": 1,
        "layers": [
            {"name": "a", "lifecycle_state": "suspended", "runtime_state": {"count": 2}},
            {"name": "b", "lifecycle_state": "closed", "runtime_state": {"count": 0}},
        ],
    }


async def test_snapshot_inputs() -> None:
    as_dict = stored(("a", "suspended"), schema_version=1)
    as_dict["layers"][0]["runtime_state"] = {"count": 4}
    model = CompositorSessionSnapshot.model_validate(as_dict)
    for value in (as_dict, model, model.model_dump_json(), model.model_dump_json().encode()):
        async with recorders(Journal(), "a").enter(session_snapshot=value) as run:
            assert run.get_layer("a").runtime_state.count == 4
            run.get_layer("a").runtime_state.count = 5
    assert model.layers[0].runtime_state == {"count": 4}


async def entry_error(error: type[BaseException], snapshot: Any) -> tuple[str, list[str]]:
    journal = Journal()
    with pytest.raises(error) as caught:
        async with recorders(journal, "a", "b").enter(session_snapshot=snapshot):
            pytest.fail("the body must not run")
    return str(caught.value), journal.steps


@pytest.mark.parametrize(
    ("error", "snapshot", "text"),
    [
        (ValueError, stored(schema_version=2), "Unsupported compositor session snapshot schema_version: 2."),
        (
            ValueError,
            stored(("b", "new"), ("a", "new")),
            "CompositorSessionSnapshot layer names must match compositor layers in order. Expected [a, b], got [b, a].",
        ),
        (
            ValueError,
            stored(),
            "CompositorSessionSnapshot layer names must match compositor layers in order. Expected [a, b], got [].",
        ),
        (
            RuntimeError,
            stored(("a", "new"), ("b", "closed")),
            "Layer 'b' is closed; CLOSED snapshots cannot be entered.",
        ),
    ],
)
async def test_snapshot_mismatch(error: type[BaseException], snapshot: Any, text: str) -> None:
    assert await entry_error(error, snapshot) == (text, [])


async def test_active_is_refused_in_snapshots() -> None:
    text, steps = await entry_error(ValidationError, stored(("a", "active"), ("b", "new")))
    assert "LifecycleState.ACTIVE is internal-only and cannot appear in session snapshots." in text
    assert steps == []
    smuggled = CompositorSessionSnapshot.model_construct(
        layers=[LayerSessionSnapshot.model_construct(name="a", lifecycle_state=LifecycleState.ACTIVE, runtime_state={})]
    )
    assert (await entry_error(ValidationError, smuggled))[1] == []


def test_active_and_closed_slots_are_refused() -> None:
    def check(state: LifecycleState) -> None:
        check_enterable({"a": LayerRunSlot(A(), LifecycleState.NEW), "b": LayerRunSlot(B(), state)})

    check(LifecycleState.SUSPENDED)
    with pytest.raises(RuntimeError, match=r"^Layer 'b' is already active; ACTIVE snapshots are not allowed\.$"):
        check(LifecycleState.ACTIVE)
    with pytest.raises(RuntimeError, match=r"^Layer 'b' is closed; CLOSED snapshots cannot be entered\.$"):
        check(LifecycleState.CLOSED)


async def test_runtime_state_that_does_not_fit() -> None:
    snapshot = stored(("a", "suspended"), ("b", "suspended"))
    snapshot["layers"][1]["runtime_state"] = {"jobs": []}
    text, steps = await entry_error(ValidationError, snapshot)
    assert "1 validation error for CounterState" in text
    assert steps == []


@pytest.mark.parametrize("missing", ["name", "lifecycle_state", "runtime_state"])
def test_every_member_of_a_layer_snapshot_is_required(missing: str) -> None:
    data = stored(("a", "new"))["layers"][0]
    del data[missing]
    with pytest.raises(ValidationError):
        LayerSessionSnapshot.model_validate(data)


def test_snapshots_forbid_extra_members() -> None:
    with pytest.raises(ValidationError):
        CompositorSessionSnapshot.model_validate(stored(config={}))
    with pytest.raises(ValidationError):
        LayerSessionSnapshot.model_validate({**stored(("a", "new"))["layers"][0], "type": "x"})
    with pytest.raises(ValidationError):
        CompositorSessionSnapshot.model_validate({})


class JsonOnlyState(BaseModel):
    """Holds what JSON cannot, in strict fields, so that reading it as Python values would fail."""

    tags: set[str] = Field(default_factory=set, strict=True)
    blob: bytes = b""
    renamed: int = Field(default=0, alias="other")


class JsonOnly(PlainLayer[NoLayerDeps, EmptyLayerConfig, JsonOnlyState]):
    pass


async def test_runtime_state_round_trip_through_json() -> None:
    compositor = Compositor([LayerNode("a", JsonOnly)])
    async with compositor.enter() as run:
        state = run.get_layer("a", JsonOnly).runtime_state
        state.tags, state.blob, state.renamed = {"x"}, b"bytes", 3
        run.suspend_on_exit()
    text = run.session_snapshot.model_dump_json()
    async with compositor.enter(session_snapshot=text) as resumed:
        state = resumed.get_layer("a", JsonOnly).runtime_state
        assert (state.tags, state.blob, state.renamed) == ({"x"}, b"bytes", 3)
