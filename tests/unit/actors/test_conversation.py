"""What a run says about a composition that it cannot serve: the checks of protocol 3.2, P4 to P7, and their order."""

import json
from typing import Any, ClassVar, Final

import pytest
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tools import Tool
from tests.unit.actors.world import World, history, hooked, model, prompt, text, tools, world
from trio.testing import MockClock

from agenton.compositor import LayerProvider
from agenton.layers import EmptyLayerConfig, EmptyRuntimeState, NoLayerDeps, PydanticAILayer

Layer = dict[str, Any]
INTERRUPTED: Final = "The tool call was interrupted before a result was produced."
PENDING: Final = "Cannot provide a new user prompt when the message history contains unprocessed tool calls."
NOTHING_PENDING: Final = (
    "Tool call results were provided, but the message history does not contain any unprocessed tool calls."
)
EXPECTED: Final = "Tool call results need to be provided for all deferred tool calls. Expected: "


def layer(name: str, type_id: str, **config: Any) -> Layer:
    return {"name": name, "type": type_id, "config": config}


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A turn that calls these tools, with the ids ``call_1`` and so on."""
    return {"tool_calls": [{"name": name, "args": args, "id": f"call_{n}"} for n, (name, args) in enumerate(calls, 1)]}


ASK: Final = layer("ask_human", "dify.ask_human")
QUESTION: Final = ("ask_human", {"question": "Which?"})


class OutsideLayer(PydanticAILayer[NoLayerDeps, None, EmptyLayerConfig, EmptyRuntimeState]):
    """Tools whose calls are left to the outside, as a layer of an installed package may do."""

    type_id: ClassVar[str | None] = "test.outside"

    @property
    def tools(self) -> list[Tool[None]]:
        async def later() -> None:
            raise CallDeferred

        async def pay() -> None:
            raise ApprovalRequired

        return [Tool(later), Tool(pay)]


OUTSIDE: Final = {"name": "outside", "type": "test.outside"}


async def terminal(w: World, *layers: Layer, **members: Any) -> dict[str, Any]:
    """The last event of a run."""
    run = await w.ended(await w.create(*layers, **members))
    event: dict[str, Any] = json.loads(run.events[-1].payload)
    return event


async def error(w: World, *layers: Layer, **members: Any) -> str:
    """The text with which a run fails."""
    event = await terminal(w, *layers, **members)
    assert event["type"] == "run_failed", event
    assert (event["data"]["error_type"], event["data"]["reason"]) == (None, None)
    return str(event["data"]["error"])


def messages(event: dict[str, Any]) -> list[dict[str, Any]]:
    [state] = [each for each in event["data"]["session_snapshot"]["layers"] if each["name"] == "history"]
    return list(state["runtime_state"]["messages"])


def parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for message in messages(event) for part in message["parts"]]


def closed(event: dict[str, Any]) -> list[str]:
    """The calls that were closed without a result."""
    return [part["tool_call_id"] for part in parts(event) if part.get("content") == INTERRUPTED]


def going_on(event: dict[str, Any]) -> dict[str, Any]:
    return {"session_snapshot": event["data"]["session_snapshot"]}


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((layer("output", "plain.prompt"),), "Layer 'output' must be DifyOutputLayer, got PromptLayer."),
        ((layer("history", "plain.prompt"),), "Layer 'history' must be PydanticAIHistoryLayer, got PromptLayer."),
        (
            (
                layer("more", "scripted.tools", tools=[{"name": "b"}, {"name": "c"}, {"name": "a"}]),
                layer("most", "scripted.tools", tools=[{"name": "b"}, {"name": "a"}, {"name": "d"}]),
            ),
            "Agent run requires unique tool names across all layers, got duplicates: a, b.",
        ),
        (
            (layer("ask_human", "dify.ask_human", tool_name="a" * 65), history()),
            f"The tool name '{'a' * 65}' cannot be offered to a model: a name has 1 to 64 of the characters a-z, A-Z, "
            "0-9, _ and -. Rename the tool in the layer that contributes it.",
        ),
        (
            (layer("output", "dify.output", json_schema={"type": "object"}), tools({"name": "final_output"})),
            "Two tools of this run are called 'final_output'; rename one of them.",
        ),
    ],
    ids=["output", "history", "duplicates", "long name", "output tool"],
)
async def test_compositions_that_cannot_be_served(
    autojump_clock: MockClock, layers: tuple[Layer, ...], text: str
) -> None:
    async with world() as w:
        assert await error(w, prompt(), *layers, model({"text": "hi"})) == text


async def test_the_model_slot_takes_any_model_layer_and_nothing_else(autojump_clock: MockClock) -> None:
    async with world() as w:
        wrong = await error(w, prompt(), layer("llm", "plain.prompt"))
        assert wrong == "Layer 'llm' must be a model layer, got PromptLayer."


async def test_the_first_check_before_entry_that_fails_is_reported(autojump_clock: MockClock) -> None:
    """Each request has the fault before which it stands, and all later ones."""
    prompts, past, llm = layer("prompt", "plain.prompt", usr="x"), history(), model(text())
    entry = {"name": "history", "lifecycle_state": "closed", "runtime_state": {"messages": ["?"]}}
    others = [{"name": name, "lifecycle_state": "closed", "runtime_state": {}} for name in ("prompt", "llm")]
    version: dict[str, Any] = {"schema_version": 2, "layers": [entry]}
    names = {"schema_version": 1, "layers": [entry]}
    state = {"layers": [others[0], entry, others[1]]}
    closed_layer = {"layers": [others[0], entry | {"runtime_state": {}}, others[1]]}
    async with world() as w:
        told = [
            await error(w, prompts, past, llm, session_snapshot=version),
            *[
                await error(w, prompt(), past, llm, session_snapshot=snapshot)
                for snapshot in (version, names, state, closed_layer)
            ],
        ]
    assert [each.splitlines()[0] for each in told] == [
        "1 validation error for PromptLayerConfig",
        "Unsupported compositor session snapshot schema_version: 2.",
        "CompositorSessionSnapshot layer names must match compositor layers in order. "
        "Expected [prompt, history, llm], got [history].",
        "1 validation error for PydanticAIHistoryRuntimeState",
        "Layer 'prompt' is closed; CLOSED snapshots cannot be entered.",
    ]


async def test_the_first_check_after_entry_that_fails_is_reported(autojump_clock: MockClock) -> None:
    """Each request has the fault before which it stands, and all later ones."""
    circle = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}},
    }
    double = [layer(name, "scripted.tools", tools=[{"name": "probe"}]) for name in ("a", "b")]
    wrong = {name: layer(name, "plain.prompt") for name in ("output", "history", "llm")}
    unsupported = layer("output", "dify.output", json_schema=circle)
    nowhere = layer("llm", "pydantic_ai.model", model="nowhere:model")
    results: dict[str, Any] = {"deferred_tool_results": {}}
    async with world() as w:
        told = [
            await error(w, hooked(), *wrong.values(), *double),
            await error(w, prompt(), *wrong.values(), *double),
            await error(w, *wrong.values(), *double, **results),
            await error(w, unsupported, wrong["history"], wrong["llm"], *double, **results),
            await error(w, wrong["history"], wrong["llm"], *double, **results),
            await error(w, wrong["llm"], *double, **results),
            await error(w, nowhere, *double, **results),
            await error(w, model(text()), *double, **results),
            await error(w, model(text()), **results),
        ]
    assert [each.partition(":")[0] for each in told] == [
        "run.user_prompts must not be empty",
        *["Layer 'output' must be DifyOutputLayer, got PromptLayer."] * 2,
        "Recursive $defs refs are not supported for structured output exposure.",
        "Layer 'history' must be PydanticAIHistoryLayer, got PromptLayer.",
        "Layer 'llm' must be a model layer, got PromptLayer.",
        "a model is 'test' or '<provider>",
        "Agent run requires unique tool names across all layers, got duplicates",
        "Deferred tool results require a 'history' layer with prior message history.",
    ]


NOBODY: Final = "Deferred tool requests were returned, but no active ask_human layer is available for validation."
DISABLED: Final = layer("ask_human", "dify.ask_human", enabled=False)


@pytest.mark.parametrize(
    ("human", "tool", "text"),
    [
        ((), "later", NOBODY),
        ((), "pay", NOBODY),
        ((DISABLED,), "later", NOBODY),
        ((ASK,), "later", "ask_human deferred tool name must be 'ask_human', got 'later'."),
        ((ASK,), "pay", "ask_human does not support approval requests; use external deferred calls only"),
    ],
)
async def test_a_call_left_to_the_outside_that_no_run_can_answer(
    autojump_clock: MockClock, human: tuple[Layer, ...], tool: str, text: str
) -> None:
    layers = (prompt(), history(), OUTSIDE, *human)
    async with world(providers=[LayerProvider.from_layer_type(OutsideLayer)]) as w:
        failed = await terminal(w, *layers, model(calling((tool, {}))))
        assert (failed["type"], failed["data"]["error"]) == ("run_failed", text)
        onward = await terminal(w, *layers, model({"text": "onward"}), **going_on(failed))
    assert (onward["type"], onward["data"]["output"]) == ("run_succeeded", "onward")
    assert closed(onward) == ["call_1"]


@pytest.mark.parametrize(
    ("human", "text"),
    [
        ((), NOBODY),
        ((ASK,), "ask_human deferred tool requests require a 'history' layer so the pending tool call can be resumed."),
    ],
)
async def test_a_call_left_to_the_outside_without_a_history(
    autojump_clock: MockClock, human: tuple[Layer, ...], text: str
) -> None:
    async with world(providers=[LayerProvider.from_layer_type(OutsideLayer)]) as w:
        assert await error(w, prompt(), OUTSIDE, *human, model(calling(("later", {})))) == text


ANSWER: Final = {"deferred_tool_results": {"calls": {"call_1": "yes"}}}
WRONG: Final = {"deferred_tool_results": {"calls": {"call_9": "yes"}}}


@pytest.mark.parametrize(
    ("calls", "refused_with", "text"),
    [
        ((QUESTION,), {}, PENDING),
        ((QUESTION,), WRONG, EXPECTED),
        ((QUESTION, ("quick", {})), WRONG, EXPECTED),
    ],
)
async def test_a_run_that_is_refused_while_a_question_is_pending(
    autojump_clock: MockClock, calls: tuple[Any, ...], refused_with: dict[str, Any], text: str
) -> None:
    layers = (prompt(), history(), ASK, tools({"name": "quick", "result": 1}), model({"text": "hi"}))
    async with world() as w:
        asked = await terminal(w, *layers[:-1], model(calling(*calls)))
        refused = await terminal(w, *layers, **going_on(asked), **refused_with)
        onward = await terminal(w, *layers, **going_on(refused))
        answered = [await terminal(w, *layers, **going_on(each), **ANSWER) for each in (asked, refused)]
    assert refused["data"]["error"].startswith(text)
    assert (messages(asked)[-1]["state"], messages(refused)[-1]["state"]) == ("complete", "interrupted")
    assert parts(refused) == parts(asked)
    assert onward["type"] == "run_succeeded"
    assert closed(onward) == ["call_1"]
    assert [each["type"] for each in answered] == ["run_succeeded"] * 2
    assert [closed(each) for each in answered] == [[], []]


async def test_a_prompt_after_calls_and_a_question_gives_the_question_up(autojump_clock: MockClock) -> None:
    layers = (prompt(), history(), ASK, tools({"name": "quick", "result": 1}))
    async with world() as w:
        asked = await terminal(w, *layers, model(calling(("quick", {}), QUESTION)))
        onward = await terminal(w, *layers, model(text()), **going_on(asked))
        late = {"deferred_tool_results": {"calls": {"call_2": "yes"}}}
        refused = await error(w, *layers, model(text()), **going_on(onward), **late)
        answered = await terminal(w, *layers, model(text()), **going_on(asked), **late)
    assert asked["data"]["deferred_tool_call"]["tool_call_id"] == "call_2"
    assert onward["type"] == answered["type"] == "run_succeeded"
    assert refused.startswith(NOTHING_PENDING)


async def test_the_sets_of_ids_name_answered_calls_too(autojump_clock: MockClock) -> None:
    layers = (prompt(), history(), ASK, tools({"name": "quick", "result": 1}), model(text()))
    async with world() as w:
        asked = await terminal(w, *layers[:-1], model(calling(("quick", {}), QUESTION)))
        told = [
            await error(w, *layers, **going_on(asked), deferred_tool_results={"calls": dict.fromkeys(ids, "yes")})
            for ids in ((), ("call_3",), ("call_1", "call_2"), ("call_1",))
        ]
    override = "Tool call 'call_1' was already executed and its result cannot be overridden."
    assert told == [
        EXPECTED + "{'call_1', 'call_2'}, got: {'call_1'}",
        EXPECTED + "{'call_1', 'call_2'}, got: {'call_1', 'call_3'}",
        override,
        override,
    ]
