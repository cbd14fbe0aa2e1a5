"""Dify's tools in the real agent loop: what costs no retry, and what ends the run."""

import httpx2
import pytest
import trio
from pydantic_ai.messages import FunctionToolCallEvent, ToolReturnPart
from tests.unit.layers.outbound_fakes import entered, items, reply, said, services
from tests.unit.loop.scripted import DONE, Call, play, turn

from dify_agent.actors.failures import describe_failure
from dify_agent.layers.dify_core_tools import layer as core_tools
from dify_agent.layers.dify_plugin import tools_layer as plugin_tools
from dify_agent.layers.knowledge import layer as knowledge

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
PLUGIN = {
    "plugin_id": "p", "provider": "p", "tool_name": "t", "credential_type": "unauthorized",
    "parameters_json_schema": SCHEMA, "parameters": [{"name": "n", "type": "number", "form": "llm", "required": True}],
}  # fmt: skip
CORE = {"provider_type": "builtin", "provider_id": "p", "tool_name": "t", "parameters_json_schema": SCHEMA}
SETS = [
    {
        "id": "s", "name": "Docs", "datasets": [{"id": "d"}], "query": {"mode": "generated_query"},
        "retrieval": {"mode": "multiple", "top_k": 1},
    }
]  # fmt: skip


async def run(layer_provider, config, *turns):
    async with entered(layer_provider, config) as composed:
        return await play(*turns, tools=list(composed.tools))


def returned(ran):
    """Results in the last request the model was sent, all of them returns and none a retry."""
    parts = ran.model.sent[-1].messages[-1].parts
    assert all(isinstance(part, ToolReturnPart) and part.outcome == "success" for part in parts)
    return [part.content for part in parts]


def validities(ran):
    return [event.args_valid for event in ran.events if isinstance(event, FunctionToolCallEvent)]


async def test_arguments_beside_the_schema_are_cast_or_answered_without_a_retry():
    daemon, _, outbound = services(daemon=[items(said("ok"))])
    calls = [Call("t", {"n": "7", "stray": 1}, "c1"), Call("t", {}, "c2"), Call("t", "", "c3")]
    ran = await run(plugin_tools.provider(outbound), {"tools": [PLUGIN]}, turn(*calls), DONE)
    assert ran.error is None
    assert returned(ran)[0] == "ok"
    assert [text.startswith("tool parameters validation error") for text in returned(ran)] == [False, True, True]
    assert validities(ran) == [True, True, True]
    assert [body["data"]["tool_parameters"] for body in daemon.bodies] == [{"n": 7, "stray": 1}]


async def test_arguments_that_are_no_object_are_asked_for_again():
    daemon, _, outbound = services(daemon=[items(said("ok"))])
    turns = [turn(Call("t", '{"n": ', "c1")), turn(Call("t", {"n": 1}, "c2")), DONE]
    ran = await run(plugin_tools.provider(outbound), {"tools": [PLUGIN]}, *turns)
    assert ran.error is None
    assert validities(ran) == [False, True]
    assert len(daemon.requests) == 1


@pytest.mark.parametrize(
    ("layer_provider", "config", "call", "answer", "reason"),
    [
        (
            plugin_tools.provider,
            {"tools": [PLUGIN]},
            Call("t", {"n": 1}, "c1"),
            httpx2.ConnectError("refused"),
            "plugin_daemon_unreachable",
        ),
        (
            knowledge.provider,
            {"sets": SETS},
            Call("knowledge_base_search", {"set_name": "Docs", "query": "q"}, "c1"),
            reply({"code": "dataset_not_found", "message": "gone", "status": 404}, 404),
            "dataset_not_found",
        ),
    ],
)
async def test_what_ends_the_run_does_so_with_its_reason(layer_provider, config, call, answer, reason):
    *_, outbound = services(daemon=[answer], api=[answer])
    ran = await run(layer_provider(outbound), config, turn(call), DONE)
    assert describe_failure(ran.error).reason == reason
    assert len(ran.model.sent) == 1


async def test_a_core_tool_never_ends_the_run():
    *_, outbound = services(api=[httpx2.ConnectError("refused")])
    ran = await run(core_tools.provider(outbound), {"tools": [CORE]}, turn(Call("t", {"n": "x"}, "c1")), DONE)
    assert ran.error is None
    assert returned(ran) == ["Tool is temporarily unavailable. Please continue without it if possible."]


async def test_calls_of_one_turn_run_beside_one_another():
    both = trio.Event()
    waiting = []

    async def answer(_request):
        waiting.append(1)
        if len(waiting) == 2:
            both.set()
        with trio.fail_after(5):
            await both.wait()
        return items(said("ok"))

    *_, outbound = services(daemon=[answer])
    calls = [Call("t", {"n": 1}, "c1"), Call("t", {"n": 2}, "c2")]
    ran = await run(plugin_tools.provider(outbound), {"tools": [PLUGIN]}, turn(*calls), DONE)
    assert returned(ran) == ["ok", "ok"]
