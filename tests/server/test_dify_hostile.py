"""Services that send what nobody asked for: no other run notices, neither by what it is told nor by a wait."""

import gzip
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.server.clients import Api
from tests.server.dify_bodies import CONTEXT, core_tools, dify_run, knowledge, plugin_tools
from tests.server.dify_results import ended, failure, observations
from tests.server.harness import Server, StoreServer, serving
from tests.server.hostile_upstream import (
    CHUNKED,
    Upstream,
    answered,
    model_calls,
    model_says,
    tool_says,
    watched,
)

pytestmark = pytest.mark.slow

STALL_SECONDS: Final = 1.5
"""Some 50 ms on a quiet machine; several seconds where a reader holds the loop."""

MODEL: Final = "/llm/invoke"
TOOL: Final = "/tool/invoke"
AFTER_TOOL: Final = '"role":"tool"'
LEFT: Final = answered(model_says("of somebody else"))
BOMB: Final = gzip.compress(gzip.compress((b":" + b"a" * 65534 + b"\n") * 4096))
"""256 MiB of comments in some hundred bytes."""


@pytest.fixture(scope="module")
def server(store: StoreServer, upstream: Upstream) -> Iterator[Server]:
    with serving(store.url, **upstream.settings) as started:
        yield started


def one_by_one(body: bytes) -> bytes:
    """The body in chunks of one byte."""
    return CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


async def output_of_another_tenant(api: Api, upstream: Upstream) -> Any:
    upstream.answers = {MODEL: answered(model_says("own"))}
    return ended(await api.run(dify_run(context={**CONTEXT, "tenant_id": "tenant-2"})))["output"]


@pytest.mark.parametrize("more", [LEFT, b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_what_follows_a_models_answer(api: Api, upstream: Upstream, more: bytes) -> None:
    upstream.answers = {MODEL: answered(model_says("first")) + more}
    assert ended(await api.run(dify_run()))["output"] == "first"
    assert await output_of_another_tenant(api, upstream) == "own"


async def test_what_follows_a_tools_reply(api: Api, upstream: Upstream) -> None:
    upstream.answers = {
        TOOL: answered(tool_says("found")) + LEFT,
        AFTER_TOOL: answered(model_says("done")),
        MODEL: answered(model_calls("search")),
    }
    events = await api.run(dify_run(plugin_tools("search")))
    assert (observations(events), ended(events)["output"]) == ({"call-1": "found"}, "done")
    assert await output_of_another_tenant(api, upstream) == "own"


async def test_honest_answers_share_a_connection(api: Api, upstream: Upstream) -> None:
    await output_of_another_tenant(api, upstream)
    before = upstream.connections
    for _ in range(5):
        assert await output_of_another_tenant(api, upstream) == "own"
    assert upstream.connections == before


@pytest.mark.parametrize("encoding", [b"gzip, gzip", b"deflate"])
async def test_a_compressed_answer_of_a_model(api: Api, server: Server, upstream: Upstream, encoding: bytes) -> None:
    upstream.answers = {MODEL: answered(BOMB, b"content-encoding: " + encoding)}
    with watched(server) as stalls:
        reason, text = failure(await api.run(dify_run()))
    assert reason == "upstream_malformed_answer"
    assert "answered HTTP 200 with a Content-Encoding" in text
    assert "DIFY_AGENT_INNER_API_URL" in text
    assert stalls.longest < STALL_SECONDS


PACKED: Final = answered(BOMB, b"content-encoding: gzip, gzip")


async def with_a_packed_reply(
    api: Api, upstream: Upstream, layer: dict[str, Any], tool: str, **arguments: str
) -> list[dict[str, Any]]:
    upstream.answers = {
        AFTER_TOOL: answered(model_says("done")),
        MODEL: answered(model_calls(tool, **arguments)),
        "": PACKED,
    }
    return await api.run(dify_run(layer))


@pytest.mark.parametrize(("layer", "tool"), [(plugin_tools("search"), "search"), (core_tools("clock"), "clock")])
async def test_a_compressed_reply_of_a_tool(
    api: Api, server: Server, upstream: Upstream, layer: dict[str, Any], tool: str
) -> None:
    with watched(server) as stalls:
        events = await with_a_packed_reply(api, upstream, layer, tool)
    assert ended(events)["output"] == "done"
    assert "Content-Encoding" in json.dumps(observations(events))
    assert stalls.longest < STALL_SECONDS


async def test_a_compressed_result_of_a_search(api: Api, server: Server, upstream: Upstream) -> None:
    layer = knowledge(mode="generated_query")
    with watched(server) as stalls:
        events = await with_a_packed_reply(api, upstream, layer, "knowledge_base_search", set_name="manual")
    reason, text = failure(events)
    assert reason == "invalid_response"
    assert "Content-Encoding" in text
    assert stalls.longest < STALL_SECONDS


FLOODS: Final = {
    "blank lines": answered(b"\n" * (2 << 20) + model_says("done")),
    "comments": answered(b":\n" * (2 << 20) + model_says("done")),
    "lines of no event": answered(b'{"code":0,"data":{"delta":{}}}\n' * 50_000 + model_says("done")),
    "chunks of a byte": one_by_one(b": ping\n" * 20_000 + model_says("done")),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_floods_from_a_model(api: Api, server: Server, upstream: Upstream, flood: str) -> None:
    upstream.answers = {MODEL: FLOODS[flood]}
    with watched(server) as stalls:
        assert ended(await api.run(dify_run()))["output"] == "done"
    assert stalls.asked > 2
    assert stalls.longest < STALL_SECONDS


TOOL_FLOODS: Final = {
    "blank lines": answered(b"\n" * (3 << 20) + tool_says("found")),
    "items": answered(tool_says("") * 50_000 + tool_says("found")),
    "chunks of a byte": one_by_one(b": ping\n" * 20_000 + tool_says("found")),
}


@pytest.mark.parametrize("flood", TOOL_FLOODS)
async def test_floods_from_a_tool(api: Api, server: Server, upstream: Upstream, flood: str) -> None:
    upstream.answers = {
        TOOL: TOOL_FLOODS[flood],
        AFTER_TOOL: answered(model_says("done")),
        MODEL: answered(model_calls("search")),
    }
    with watched(server) as stalls:
        events = await api.run(dify_run(plugin_tools("search")))
    assert (observations(events), ended(events)["output"]) == ({"call-1": "found"}, "done")
    assert stalls.longest < STALL_SECONDS
