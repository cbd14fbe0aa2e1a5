"""`dify.knowledge_base`: the search tool, searches on entry, and what their failures mean (integrations 6)."""

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs
from tests.unit.layers.outbound_fakes import API_KEY, SocketServer, entered, reply, services

from dify_agent.actors.failures import describe_failure
from dify_agent.backends.transport import OutboundOptions, open_outbound
from dify_agent.errors import RunFailedError
from dify_agent.layers.knowledge.layer import DifyKnowledgeBaseLayer, provider
from dify_agent.layers.knowledge.rendering import RetrievedPassage, cut, render_results
from dify_agent.layers.knowledge.retrieval import MAX_RESULTS

UNAVAILABLE = "Knowledge base search is temporarily unavailable. Please continue without it if possible."
NOTHING = "No relevant knowledge base results were found."
PASSAGE = {
    "metadata": {"_source": "knowledge", "dataset_name": "D", "document_name": "N", "score": 0.5, "any": [1]},
    "title": "T", "files": None, "content": "C", "summary": None,
}  # fmt: skip
FOUND = {"results": [PASSAGE], "usage": {"total_tokens": 1}}
RENDERED = "1. T\n   Dataset: D\n   Document: N\n   Score: 0.5\n   Content: C"
CALLER = {
    "tenant_id": "t-1", "user_id": "u-1", "app_id": "app-1", "user_from": "account", "invoke_from": "web-app",
}  # fmt: skip


def source(name="Docs", query=None, **change):
    return {
        "id": f"id-{name}", "name": name, "datasets": [{"id": "d1"}, {"id": "d2"}],
        "query": {"mode": "generated_query"} if query is None else {"mode": "user_query", "value": query},
        "retrieval": {"mode": "multiple", "top_k": 4}, **change,
    }  # fmt: skip


async def search(*answers, sets=None, context=None, **arguments):
    _, dify_api, outbound = services(api=list(answers))
    async with entered(provider(outbound), {"sets": sets or [source()]}, context=context) as run:
        [tool] = run.tools
        return await tool.function(**{"set_name": "Docs", "query": "how", **arguments}), dify_api


async def test_golden_request():
    text, dify_api = await search(reply(FOUND), query=" reset password ")
    assert text == f"Knowledge base search results:\n{RENDERED}"
    [request] = dify_api.requests
    assert (request.method, str(request.url)) == ("POST", "http://api.test/inner/api/knowledge/retrieve")
    assert request.headers["X-Inner-Api-Key"] == API_KEY
    assert dify_api.bodies == [
        {
            "caller": CALLER,
            "dataset_ids": ["d1", "d2"],
            "query": "reset password",
            "retrieval": {
                "mode": "multiple", "score_threshold": 0.0, "reranking_mode": "reranking_model",
                "reranking_enable": True, "top_k": 4, "reranking_model": None, "weights": None,
            },
            "metadata_filtering": {"mode": "disabled"},
            "attachment_ids": [],
        }
    ]  # fmt: skip


async def test_request_of_a_single_retrieval_with_filters():
    model = {"provider": "p", "name": "m", "mode": "chat", "completion_params": {"t": 1}}
    conditions = {
        "logical_operator": "or",
        "conditions": [{"name": "n", "comparison_operator": "empty", "value": None}],
    }
    manual = source(
        retrieval={"mode": "single", "model": model, "top_k": 3},
        metadata_filtering={"mode": "manual", "conditions": conditions},
    )
    automatic = source("Other", metadata_filtering={"mode": "automatic", "model_config": model})
    _, dify_api = await search(reply(FOUND), sets=[manual, automatic])
    assert dify_api.bodies[0]["retrieval"] == {
        "mode": "single", "score_threshold": 0.0, "reranking_mode": "reranking_model", "reranking_enable": True,
        "model": model,
    }  # fmt: skip
    assert dify_api.bodies[0]["metadata_filtering"] == {"mode": "manual", "conditions": conditions}
    _, dify_api = await search(reply(FOUND), sets=[manual, automatic], set_name="Other")
    assert dify_api.bodies[0]["metadata_filtering"] == {"mode": "automatic", "model_config": model}


async def test_the_tool():
    _, _, outbound = services()
    sets = [source("B", description="about b"), source("A"), source("eager", query="q")]
    snapshotless = {"sets": sets[:2]}
    async with entered(provider(outbound), snapshotless) as run:
        [tool] = run.tools
        assert list(run.user_prompts) == []
    definition = tool.tool_def
    assert (definition.name, definition.strict, definition.sequential) == ("knowledge_base_search", False, False)
    assert definition.description.endswith("\n- B: about b\n- A")
    schema = definition.parameters_json_schema
    assert schema["properties"]["set_name"]["enum"] == ["B", "A"]
    assert (schema["required"], schema["additionalProperties"]) == (["set_name", "query"], False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"set_name": "docs"}, "unknown knowledge set: docs"),
        ({"set_name": None}, "unknown knowledge set: None"),
        ({"set_name": ["Docs"]}, "unknown knowledge set: ['Docs']"),
        ({"query": " \n"}, "knowledge base search requires a non-empty query"),
        ({"query": None}, "knowledge base search requires a non-empty query"),
    ],
)
async def test_calls_that_are_not_sent(arguments, text):
    seen, dify_api = await search(reply(FOUND), **arguments)
    assert (seen, dify_api.requests) == (text, [])


async def test_nothing_found():
    assert (await search(reply({"results": []})))[0] == NOTHING


def refusal(status, code, message="why"):
    return reply({"code": code, "message": message, "status": status}, status)


RETRYABLE = [
    refusal(429, "knowledge_rate_limited"), refusal(502, "external_knowledge_failed"), reply("<html>", 502),
    httpx2.ConnectError("refused"), httpx2.ReadTimeout(""), httpx2.PoolTimeout(""),
]  # fmt: skip
FATAL = [
    (refusal(400, "invalid_request"), "invalid_request", "why"),
    (refusal(403, "app_tenant_mismatch"), "app_tenant_mismatch", "why"),
    (refusal(403, "dataset_tenant_mismatch"), "dataset_tenant_mismatch", "why"),
    (refusal(404, "app_not_found"), "app_not_found", "why"),
    (refusal(404, "dataset_not_found"), "dataset_not_found", "why"),
    (refusal(404, "not_found"), "not_found", "DIFY_AGENT_INNER_API_KEY"),
    (refusal(422, "retrieval_config_invalid"), "retrieval_config_invalid", "why"),
    (refusal(500, "knowledge_retrieve_failed"), "knowledge_retrieve_failed", "why"),
    (refusal(503, "x"), "x", "why"),
    (reply("<html>", 504), "DifyKnowledgeBaseClientError", "<html>"),
    (reply("", 401), "DifyKnowledgeBaseClientError", "HTTP 401 without a text"),
    (reply("<html>"), "invalid_response", "does not fit its contract"),
    (reply("{"), "invalid_response", "does not fit its contract"),
    (reply({"results": [], "more": 1}), "invalid_response", "more: Extra inputs"),
    (reply({"results": [{**PASSAGE, "more": 1}]}), "invalid_response", "results.0.more: Extra inputs"),
    (reply({"results": [{**PASSAGE, "content": 1}]}), "invalid_response", "results.0.content"),
    (httpx2.UnsupportedProtocol("no scheme."), "DifyKnowledgeBaseClientError", "DIFY_AGENT_INNER_API_URL"),
]


@pytest.mark.parametrize("answer", RETRYABLE)
async def test_what_may_pass_is_an_observation(answer):
    with capture_logs() as logs:
        seen, dify_api = await search(answer)
    assert seen == UNAVAILABLE
    assert len(dify_api.requests) == 1, "no call is repeated"
    [line] = logs
    assert line["log_level"] == "warning"
    assert [line[key] for key in ("set_id", "tenant_id", "app_id", "invoke_from")] == [
        "id-Docs", "t-1", "app-1", "web-app",
    ]  # fmt: skip


@pytest.mark.parametrize(("answer", "reason", "text"), FATAL)
async def test_what_does_not_pass_fails_the_run_with_its_code(answer, reason, text):
    with pytest.raises(RunFailedError) as failed:
        await search(answer)
    failure = describe_failure(failed.value)
    assert (failure.reason, failure.error_type) == (reason, None)
    assert text in failure.error
    named = {"not_found": "DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL"}
    is_foreign = reason == "DifyKnowledgeBaseClientError" or answer.content == b"<html>"
    assert failure.setting == named.get(reason, "DIFY_AGENT_INNER_API_URL" if is_foreign else None)
    assert "Docs" in failure.error


@pytest.mark.parametrize(
    ("context", "missing"),
    [
        ({"user_id": None}, "user_id"),
        ({"tenant_id": " ", "user_id": "", "user_from": None, "app_id": " "}, "tenant_id, user_id, user_from, app_id"),
    ],
)
async def test_identity_is_required(context, missing):
    _, dify_api, outbound = services()
    text = f"^Dify knowledge base layer requires execution context fields: {missing}$"
    async with entered(provider(outbound), {"sets": [source()]}, context=context) as run:
        with pytest.raises(ValueError, match=text):
            run.tools
    with pytest.raises(ValueError, match=text):
        async with entered(provider(outbound), {"sets": [source(query="q")]}, context=context):
            raise AssertionError("entered")
    assert dify_api.requests == []


async def enter_once(config, *answers, snapshot=None):
    _, dify_api, outbound = services(api=list(answers) or None)
    async with entered(provider(outbound), config, snapshot=snapshot) as run:
        prompts, tools = list(run.user_prompts), list(run.tools)
    return prompts, tools, dify_api, run.session_snapshot


async def test_configured_queries_are_searched_on_entry_in_order():
    sets = [source("One", query=" first "), source("Two", query="second"), source("Three", query="third"), source("G")]
    answers = [reply(FOUND), refusal(429, "x"), reply({"results": []})]
    prompts, tools, dify_api, snapshot = await enter_once({"sets": sets}, *answers)
    assert prompts == [
        "Knowledge retrieval results:\n\n"
        f"Set: One\nQuery: first\nResults:\n{RENDERED}\n\n"
        f"Set: Two\nQuery: second\nResults:\n{UNAVAILABLE}\n\n"
        f"Set: Three\nQuery: third\nResults:\n{NOTHING}"
    ]
    assert [tool.name for tool in tools] == ["knowledge_base_search"]
    assert tools[0].tool_def.parameters_json_schema["properties"]["set_name"]["enum"] == ["G"]
    assert [body["query"] for body in dify_api.bodies] == ["first", "second", "third"]
    state = snapshot.layers[1].runtime_state
    assert len(state["eager_config_fingerprint"]) == 64
    assert [result["status"] for result in state["eager_results"]] == ["success", "temporarily_unavailable", "empty"]
    assert API_KEY not in json.dumps(state)


async def test_a_resumed_session_keeps_its_results_while_the_sets_are_the_same():
    config = {"sets": [source(query="q")]}
    prompts, tools, _, snapshot = await enter_once(config, reply(FOUND))
    assert tools == []
    # Names, descriptions and limits change nothing that was searched.
    renamed = {"sets": [{**source(query="q"), "description": "new"}], "max_observation_chars": 5000}
    again, _, dify_api, _ = await enter_once(renamed, snapshot=snapshot)
    assert (again, dify_api.requests) == (prompts, [])


@pytest.mark.parametrize(
    "change",
    [
        {"query": {"mode": "user_query", "value": "other"}},
        {"datasets": [{"id": "d1"}]},
        {"retrieval": {"mode": "multiple", "top_k": 5}},
        {"id": "new"},
        {
            "metadata_filtering": {
                "mode": "manual",
                "conditions": {"conditions": [{"name": "n", "comparison_operator": "is", "value": "x"}]},
            }
        },
    ],
)
async def test_a_resumed_session_searches_anew_when_the_sets_changed(change):
    config = {"sets": [source(query="q")]}
    *_, snapshot = await enter_once(config, reply(FOUND))
    prompts, _, dify_api, later = await enter_once(
        {"sets": [{**source(query="q"), **change}]}, reply({"results": []}), snapshot=snapshot
    )
    assert len(dify_api.requests) == 1
    assert NOTHING in prompts[0]
    assert later.layers[1].runtime_state != snapshot.layers[1].runtime_state


async def test_without_configured_queries_the_state_is_reset():
    *_, snapshot = await enter_once({"sets": [source(query="q")]}, reply(FOUND))
    prompts, _, _, later = await enter_once({"sets": [source()]}, snapshot=snapshot)
    assert prompts == []
    assert later.layers[1].runtime_state == {"eager_config_fingerprint": None, "eager_results": []}


@pytest.mark.parametrize(("answer", "reason", "text"), FATAL)
async def test_entering_fails_with_the_code(answer, reason, text):
    with pytest.raises(RunFailedError) as failed:
        await enter_once({"sets": [source(query="q")]}, answer)
    assert describe_failure(failed.value).reason == reason
    assert text in str(failed.value)


@pytest.mark.parametrize(
    ("results", "text"),
    [
        (b",".join([b"{}"] * 2_000_000), "more than 100000 values"),
        (b",".join([b"{}"] * (MAX_RESULTS + 1)), "results: List should have at most 1000 items"),
        (b",".join([b'{"a":1,"b":2}'] * MAX_RESULTS), "(2000 problems)"),
    ],
)
async def test_replies_that_would_hold_up_other_runs_are_given_up(results, text):
    with pytest.raises(RunFailedError) as caught:
        await search(reply(b'{"results":[' + results + b"]}"))
    assert caught.value.reason == "invalid_response"
    assert text in str(caught.value)


async def test_as_many_results_as_are_taken():
    text, _ = await search(reply({"results": [{"title": "T"}] * MAX_RESULTS}))
    assert f"\n\n{MAX_RESULTS}. T" in text


@pytest.mark.parametrize("status", [400, 429])
async def test_no_key_comes_back(status):
    with capture_logs() as logs:
        try:
            text, _ = await search(reply({"code": API_KEY, "message": f"X-Inner-Api-Key: {API_KEY}"}, status))
        except RunFailedError as error:
            text = f"{error.reason}: {error}"
            assert text.startswith("***: search in knowledge set 'Docs' failed: X-Inner-Api-Key: ***")
    assert API_KEY not in text
    assert API_KEY not in str(logs)
    split = {"title": API_KEY, "content": f"{'c' * 1990}{API_KEY}", "metadata": {"document_name": API_KEY}}
    text, _ = await search(reply({"results": [split]}))
    assert text.count("***") == 3
    assert "key-of" not in text, "nor a part of it where a content is cut"


async def test_borrowed_clients():
    _, _, outbound = services()
    await outbound.dify_api.aclose()
    async with entered(provider(outbound), {"sets": [source()]}) as run:
        with pytest.raises(RuntimeError, match="DifyKnowledgeBaseLayer requires an open shared HTTP client"):
            run.tools
    with pytest.raises(TypeError, match="cannot be created from config"):
        DifyKnowledgeBaseLayer.from_config(None)


def passage(**members):
    return RetrievedPassage(**members)


def rendered(*passages, content=2000, whole=12000, heading=False):
    return render_results(passages, max_content_chars=content, max_chars=whole, heading=heading, redact=str)


def test_rendering_falls_back():
    assert rendered(passage(metadata={"document_name": "N"}, summary="S")) == "1. N\n   Document: N\n   Content: S"
    assert rendered(passage(metadata={"score": True, "dataset_name": [1]}, content=" ")) == "1. Untitled"
    assert rendered(passage(title="T"), passage(title="U"), heading=True) == (
        "Knowledge base search results:\n1. T\n\n2. U"
    )


def test_rendering_ends_where_there_is_no_room():
    class Unread:
        @property
        def metadata(self):
            raise AssertionError("not to be looked at")

    some = [passage(content="c" * 50)] * 3
    assert len(rendered(*some, Unread(), whole=100)) == 100


def test_rendering_limits():
    assert rendered(passage(title="T", content="c" * 10), content=5) == "1. T\n   Content: cc..."
    text = rendered(*[passage(title="T", content="c" * 50)] * 10, whole=100, heading=True)
    assert (len(text), text[-3:]) == (100, "...")


@pytest.mark.parametrize(
    ("text", "limit", "result"),
    [("abcde", 5, "abcde"), ("abcdef", 5, "ab..."), ("abcdef", 4, "a..."), ("abcdef", 3, "abc"), ("abc", 1, "a")],
)
def test_cuts(text, limit, result):
    assert cut(text, limit) == result


async def test_tenants_do_not_mix():
    async def echo(request):
        await trio.sleep(0.001)
        body = json.loads(request.content)
        return reply({"results": [{"title": f"{body['caller']['tenant_id']} {body['query']}"}]})

    _, _, outbound = services(api=[echo])
    layers = provider(outbound)
    seen = {}

    async def run_for(tenant):
        async with entered(layers, {"sets": [source()]}, context={"tenant_id": tenant}) as run:
            [tool] = run.tools

            async def one(number):
                seen[tenant, number] = await tool.function(set_name="Docs", query=str(number))

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(one, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, "a")
        nursery.start_soon(run_for, "b")
    assert len(seen) == 20
    for (tenant, number), text in seen.items():
        assert text.endswith(f"1. {tenant} {number}")


async def test_a_cancelled_search_closes_its_request_and_leaves_the_pool_usable():
    server = SocketServer(b'{"results": [', reply({"results": []}).content)
    options = OutboundOptions(max_connections=1, pool_timeout=5)
    with trio.fail_after(20):
        async with (
            server.serving() as url,
            open_outbound(
                daemon_url=url, daemon_api_key="k", dify_api_url=url, dify_api_key="k", options=options
            ) as outbound,
        ):
            layers = provider(outbound)
            async with trio.open_nursery() as nursery:

                async def enter():
                    async with entered(layers, {"sets": [source(query="q")]}):
                        raise AssertionError("entered")

                nursery.start_soon(enter)
                await server.asked.wait()
                nursery.cancel_scope.cancel(reason="the run is cancelled")
            await server.dropped.wait()
            async with entered(layers, {"sets": [source()]}) as run:
                [tool] = run.tools
                assert await tool.function(set_name="Docs", query="q") == NOTHING
