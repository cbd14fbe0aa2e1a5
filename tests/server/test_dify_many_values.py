"""Replies of many values within the bound of bytes: parsing one must not hold up what else the process does."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.server.clients import Api
from tests.server.dify_bodies import core_tools, dify_run, knowledge, plugin_tools
from tests.server.dify_results import ended, failure, observations
from tests.server.harness import Server, StoreServer, serving
from tests.server.hostile_upstream import Upstream, answered, model_calls, model_says, watched

pytestmark = pytest.mark.slow

STALL_SECONDS: Final = 1.5
"""Some 100 ms on a quiet machine; without the bounds up to half a minute. The texts say that a bound refused it."""

_SEARCH: Final = knowledge(mode="generated_query")
_LISTS: Final = b"[]," * 2_600_000 + b"[]"
_ITEM: Final = b'data: {"code":0,"data":{"type":"json","message":{"json_object":[' + _LISTS + b"]}}}\n"


@pytest.fixture(scope="module")
def server(store: StoreServer, upstream: Upstream) -> Iterator[Server]:
    with serving(store.url, **upstream.settings) as started:
        yield started


async def run(api: Api, upstream: Upstream, layer: dict[str, Any], tool: str, reply: bytes) -> list[dict[str, Any]]:
    """One run whose model calls the tool, which is answered with this."""
    arguments = {"set_name": "manual", "query": "a"}
    upstream.answers = {
        '"role":"tool"': answered(model_says("done")),
        "/llm/invoke": answered(model_calls(tool, **arguments)),
        "": answered(reply),
    }
    return await api.run(dify_run(layer))


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b'{"results":[' + b"{}," * 2_000_000 + b"{}]}", "more than 100000 values"),
        (b'{"results":[{' + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}]}", "(90000 problems)"),
        (json.dumps({"results": [{"content": "x" * 50}] * 2000}).encode(), "at most 1000 items"),
        (json.dumps({"results": [{"content": "x" * 100}] * 100_000}).encode(), "larger than 8388608 bytes"),
    ],
    ids=["empty", "wrong", "many", "large"],
)
async def test_a_search(api: Api, server: Server, upstream: Upstream, reply: bytes, says: str) -> None:
    with watched(server) as stalls:
        events = await run(api, upstream, _SEARCH, "knowledge_base_search", reply)
    reason, text = failure(events)
    assert reason == "invalid_response"
    assert says in text
    assert stalls.longest < STALL_SECONDS


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ((core_tools("clock"), "clock"), b'{"observation":"x","messages":[' + b"{}," * 2_600_000 + b"{}]}"),
        ((plugin_tools("search"), "search"), _ITEM),
        ((plugin_tools("search"), "search"), _ITEM.replace(b'"json"', b'"variable"')),
    ],
    ids=["core tool", "plugin tool", "variable of a plugin tool"],
)
async def test_a_tool(
    api: Api, server: Server, upstream: Upstream, asked: tuple[dict[str, Any], str], reply: bytes
) -> None:
    with watched(server) as stalls:
        events = await run(api, upstream, *asked, reply)
    assert ended(events)["output"] == "done"
    assert "more than 100000 values" in str(observations(events))
    assert stalls.longest < STALL_SECONDS
