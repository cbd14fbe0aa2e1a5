"""Runs on Dify's models, tools and knowledge: the real server, and fakes of the Dify API and the plugin daemon.

What fails, what answers look like, and what ends a run that waits is in `test_dify_faults`, `_streams` and `_endings`.
Bodies are those of the specification (integrations 3.2, 3.3, 4.3, 5, 6.2), compared as a whole.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from tests.docs.pages import ROOT, fences
from tests.server.bodies import layer
from tests.server.clients import Api, kind_of, open_api
from tests.server.dify_bodies import (
    CONTEXT,
    NOT_IN_CONTEXT,
    called,
    caller,
    core_tools,
    declared,
    dify_run,
    knowledge,
    plugin_tools,
    said,
)
from tests.server.dify_fakes import CORE_TOOL_PATH, KNOWLEDGE_PATH, MODEL_PATH, PLUGIN_TOOL_PATH, FakeDify, fake_dify
from tests.server.dify_phases import PHASES, WAITING_FOR_EVER, all_left, in_phase, start
from tests.server.dify_results import ended, failure, observations
from tests.server.dify_scripts import CANCELS, DONE, FAILURES, FRAMINGS, PRICES, THREE_TOOLS, call
from tests.server.endings import moment
from tests.server.harness import Server, StoreServer, serving


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    with fake_dify() as fakes:
        yield fakes


@pytest.fixture(scope="module")
def server(store: StoreServer, dify: FakeDify) -> Iterator[Server]:
    with serving(store.url, env=dify.environment) as started:
        yield started


@pytest.fixture(scope="module")
def direct_server(store: StoreServer, dify: FakeDify) -> Iterator[Server]:
    """A replica that asks the plugin daemon for models."""
    settings = {"llm_transport": "plugin_daemon", "outbound_http_max_connections": len(PHASES)}
    with serving(store.url, env=dify.environment, **settings) as started:
        yield started


@pytest.fixture
async def direct_api(direct_server: Server) -> AsyncIterator[Api]:
    async with open_api(direct_server) as opened:
        yield opened


async def test_text_with_its_price(api: Api, dify: FakeDify) -> None:
    await dify.play(llm=[{"steps": [{"pieces": ["Hel", "lo."], "usage": PRICES}]}])
    events = await api.run(dify_run(llm={"model_settings": {"temperature": 0.2, "stop_sequences": ["END"]}}))
    data = ended(events)
    assert data["output"] == "Hello."
    assert {name: data["usage"][name] for name in PRICES} == PRICES
    assert data["usage"]["total_tokens"] == 120
    run_id = events[0]["run_id"]
    (request,) = dify.to(MODEL_PATH)
    assert request.body == {
        "caller": caller(run_id, 1),
        "target": {
            "provider": "langgenius/openai/openai",
            "model": "gpt-x",
            "prompt_messages": [said("system", "Be brief."), said("user", "Hello.")],
            "model_parameters": {"temperature": 0.2},
            "tools": None,
            "stop": ["END"],
            "stream": True,
        },
    }
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-inner-api-key"] == dify.environment["DIFY_AGENT_INNER_API_KEY"]
    assert request.outcome == "answered"


async def test_thinking_is_a_part_of_its_own(api: Api, dify: FakeDify) -> None:
    await dify.play(llm=[{"steps": [{"pieces": ["<thi", "nk>plan</th", "ink>Yes."]}]}])
    events = await api.run(dify_run())
    assert ended(events)["output"] == "Yes."
    kinds = [each["data"]["part"]["part_kind"] for each in events if kind_of(each) == "part_start"]
    assert kinds == ["thinking", "text"]


TOOLS = (plugin_tools("web_search", "news"), core_tools("current_time"))


async def test_tools_of_both_kinds_side_by_side(api: Api, dify: FakeDify) -> None:
    await dify.play(**THREE_TOOLS)
    events = await api.run(dify_run(*TOOLS))
    data = ended(events)
    assert data["output"] == "Done."
    assert (data["usage"]["total_price"], data["usage"]["total_tokens"]) == ("0.00028", 240)
    assert observations(events) == {"call-1-1": "found", "call-1-2": 'news{"n": 1}', "call-1-3": "12:00"}
    requests = dify.to(PLUGIN_TOOL_PATH) + dify.to(CORE_TOOL_PATH)
    first_end = min(request.arrived + (request.seconds or 0) for request in requests)
    assert max(request.arrived for request in requests) < first_end


async def test_the_next_model_call_has_the_results(api: Api, dify: FakeDify) -> None:
    await dify.play(**THREE_TOOLS)
    run_id = (await api.run(dify_run(*TOOLS)))[0]["run_id"]
    first, second = dify.bodies(MODEL_PATH)
    assert first["caller"] == caller(run_id, 1)
    assert first["target"]["tools"] == [
        declared("web_search", "Tool web_search."),
        declared("news", "Tool news."),
        declared("current_time", "current_time"),
    ]
    asked = [
        called("call-1-1", "web_search", '{"query":"a"}'),
        called("call-1-2", "news", '{"query":"b"}'),
        called("call-1-3", "current_time", '{"query":"c"}'),
    ]
    messages = [
        *first["target"]["prompt_messages"],
        said("assistant", "", tool_calls=asked),
        said("tool", "found", name="web_search", tool_call_id="call-1-1"),
        said("tool", 'news{"n": 1}', name="news", tool_call_id="call-1-2"),
        said("tool", "12:00", name="current_time", tool_call_id="call-1-3"),
    ]
    assert second == {"caller": caller(run_id, 2), "target": {**first["target"], "prompt_messages": messages}}


async def test_what_a_plugin_tool_is_asked(api: Api, dify: FakeDify) -> None:
    await dify.play(llm=[{"steps": [{"tool_calls": [call("web_search", query="a")]}, DONE]}])
    ended(await api.run(dify_run(plugin_tools("web_search"))))
    (request,) = dify.to(PLUGIN_TOOL_PATH)
    assert request.body == {
        "user_id": "user-1",
        "data": {
            "provider": "search",
            "tool": "web_search",
            "credential_type": "api-key",
            "credentials": {"api_key": "tool-secret"},
            "tool_parameters": {"query": "a"},
        },
    }
    assert request.headers["x-plugin-id"] == "langgenius/search"
    assert request.headers["x-api-key"] == dify.environment["DIFY_AGENT_PLUGIN_DAEMON_API_KEY"]


async def test_what_a_core_tool_is_asked(api: Api, dify: FakeDify) -> None:
    await dify.play(llm=[{"steps": [{"tool_calls": [call("current_time", query="c")]}, DONE]}])
    ended(await api.run(dify_run(core_tools("current_time"))))
    of_context = {name: CONTEXT[name] for name in CONTEXT if name not in ("agent_mode", "trace_id")}
    tool = {
        "provider_type": "builtin",
        "provider_id": "time",
        "tool_name": "current_time",
        "credential_id": None,
        "tool_parameters": {"query": "c"},
        "runtime_parameters": {"timezone": "UTC"},
    }
    assert dify.bodies(CORE_TOOL_PATH) == [{"caller": {**dict.fromkeys(NOT_IN_CONTEXT), **of_context}, "tool": tool}]


async def test_tool_errors_are_for_the_model(api: Api, dify: FakeDify) -> None:
    names = ("wrong_key", "gone", "refused", "broken")
    core = ("busy", "bad_arguments")
    kinds = {
        "wrong_key": "ToolProviderCredentialValidationError",
        "gone": "ToolNotFoundError",
        "refused": "ToolParameterValidationError",
        "broken": "ToolInvokeError",
    }
    await dify.play(
        llm=[{"steps": [{"tool_calls": [call(name, query="x") for name in (*names, *core)]}, DONE]}],
        tools=[
            {"tool": name, "steps": [{"error": {"type": kind, "message": f"no {name}", "nested": 1}}]}
            for name, kind in kinds.items()
        ],
        core_tools=[
            {"tool": "busy", "steps": [{"http_error": {"status": 503, "html": "<html>down</html>"}}]},
            {"steps": [{"http_error": {"status": 422, "code": "tool_parameters_invalid", "message": "query?"}}]},
        ],
    )
    events = await api.run(dify_run(plugin_tools(*names), core_tools(*core)))
    assert ended(events)["output"] == "Done."
    assert observations(events) == {
        "call-1-1": "Please check your tool provider credentials",
        "call-1-2": "there is not a tool named gone",
        "call-1-3": "tool parameters validation error: no refused, please check your tool parameters",
        "call-1-4": "tool invoke error: no broken",
        "call-1-5": "Tool is temporarily unavailable. Please continue without it if possible.",
        "call-1-6": "tool parameters validation error: query?, please check your tool parameters",
    }


async def test_structured_output(api: Api, dify: FakeDify) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    await dify.play(
        llm=[
            {
                "steps": [
                    {"tool_calls": [call("final_output", city=7)]},
                    {"tool_calls": [call("final_output", city="Oslo")]},
                ]
            }
        ]
    )
    output = layer("output", "dify.output", json_schema=schema, description="A place.")
    assert ended(await api.run(dify_run(output)))["output"] == {"city": "Oslo"}
    first, second = dify.bodies(MODEL_PATH)
    assert [tool["name"] for tool in first["target"]["tools"]] == ["final_output"]
    assert first["target"]["tools"][0]["parameters"]["properties"] == schema["properties"]
    refusal = second["target"]["prompt_messages"][-1]
    assert (refusal["role"], refusal["tool_call_id"], refusal["name"]) == ("tool", "call-1-1", "final_output")
    assert "$.city" in refusal["content"]


async def test_a_human_answers_in_another_run(api: Api, dify: FakeDify) -> None:
    await dify.play(
        llm=[{"count_by": "history", "steps": [{"tool_calls": [call("ask_human", question="Which?")]}, DONE]}]
    )
    ask = layer("ask_human", "dify.ask_human")
    first = ended(await api.run(dify_run(ask)))
    assert first["deferred_tool_call"]["tool_call_id"] == "call-1-1"
    answer = {"status": "submitted", "values": {"note": "the \u2028 red one"}}
    resumed = await api.run(
        dify_run(ask, session_snapshot=first["session_snapshot"], deferred_tool_results={"calls": {"call-1-1": answer}})
    )
    assert ended(resumed)["output"] == "Done."
    question, onward = dify.bodies(MODEL_PATH)
    assert onward["caller"] == caller(resumed[0]["run_id"], 1), "calls are counted per run"
    assert onward["target"]["prompt_messages"][:2] == question["target"]["prompt_messages"]
    asked, told = onward["target"]["prompt_messages"][2:]
    assert (asked["role"], asked["tool_calls"][0]["id"]) == ("assistant", "call-1-1")
    assert (told["role"], told["tool_call_id"], told["name"]) == ("tool", "call-1-1", "ask_human")
    assert json.loads(told["content"]) == answer


RETRIEVAL = {
    "caller": {name: CONTEXT[name] for name in ("tenant_id", "user_id", "app_id", "user_from", "invoke_from")},
    "dataset_ids": ["d1"],
    "query": "reset password",
    "retrieval": {
        "mode": "multiple",
        "score_threshold": 0.0,
        "reranking_mode": "reranking_model",
        "reranking_enable": True,
        "top_k": 4,
        "reranking_model": None,
        "weights": None,
    },
    "metadata_filtering": {"mode": "disabled"},
    "attachment_ids": [],
}


async def test_the_model_searches_the_knowledge(api: Api, dify: FakeDify) -> None:
    search = call("knowledge_base_search", set_name="manual", query="reset password")
    await dify.play(
        llm=[{"steps": [{"tool_calls": [search]}, {"tool_calls": [search]}, DONE]}],
        knowledge=[{"steps": [{}, {"http_error": {"status": 429, "code": "knowledge_rate_limited"}}]}],
    )
    events = await api.run(dify_run(knowledge(mode="generated_query")))
    assert ended(events)["output"] == "Done."
    assert dify.bodies(KNOWLEDGE_PATH) == [RETRIEVAL, RETRIEVAL]
    found = observations(events)
    assert "What d1 says about: reset password" in found["call-1-1"]
    assert found["call-2-1"].startswith("Knowledge base search is temporarily unavailable.")


async def test_configured_queries_are_in_the_first_prompt(api: Api, dify: FakeDify) -> None:
    await dify.play()
    eager = knowledge(mode="user_query", value="reset password")
    first = ended(await api.run(dify_run(eager)))
    again = ended(await api.run(dify_run(eager, session_snapshot=first["session_snapshot"])))
    assert again["output"] == "tok " * 20
    assert dify.bodies(KNOWLEDGE_PATH) == [RETRIEVAL], "a session keeps what was found"
    content = dify.bodies(MODEL_PATH)[0]["target"]["prompt_messages"][-1]["content"]
    assert content.startswith("Hello.")
    assert "What d1 says about: reset password" in content


async def test_knowledge_that_fails_for_good_fails_the_run(api: Api, dify: FakeDify) -> None:
    await dify.play(knowledge=[{"steps": [{"http_error": {"status": 404, "code": "dataset_not_found"}}]}])
    assert failure(await api.run(dify_run(knowledge(mode="user_query", value="x"))))[0] == "dataset_not_found"
    assert dify.to(MODEL_PATH) == []


async def test_tenants_are_not_mixed(api: Api, dify: FakeDify) -> None:
    """Two tenants' runs at the same time: every request names the tenant whose prompt and arguments it carries."""
    await dify.play(
        llm=[
            {
                "prompt_contains": tenant,
                "steps": [
                    {"tool_calls": [call("web_search", query=tenant), call("current_time", query=tenant)]},
                    {"echo_text": True, "delay_ms": 20},
                ],
            }
            for tenant in ("tenant-1", "tenant-2")
        ],
        tools=[{"steps": [{"first_delay_ms": 50}]}],
    )
    outputs: list[tuple[str, str]] = []

    async def run(tenant: str) -> None:
        context = {**CONTEXT, "tenant_id": tenant, "user_id": f"user of {tenant}"}
        layers = (plugin_tools("web_search", credentials={"api_key": tenant}), core_tools("current_time"))
        events = await api.run(dify_run(*layers, prompt=f"I am {tenant}.", context=context))
        outputs.append((tenant, ended(events)["output"]))

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(run, f"tenant-{number % 2 + 1}")
    assert sorted(outputs) == [(tenant, f"I am {tenant}.") for tenant in ("tenant-1", "tenant-2") for _ in range(5)]
    model, core, plugin = dify.bodies(MODEL_PATH), dify.bodies(CORE_TOOL_PATH), dify.to("/dispatch/tool/invoke")
    assert (len(model), len(core), len(plugin)) == (20, 10, 10)
    for body in model:
        assert body["target"]["prompt_messages"][1]["content"] == f"I am {body['caller']['tenant_id']}."
        assert body["caller"]["user_id"] == f"user of {body['caller']['tenant_id']}"
    for body in core:
        assert body["tool"]["tool_parameters"]["query"] == body["caller"]["tenant_id"]
    for request in plugin:
        tenant = request.path.split("/")[2]
        assert request.body["user_id"] == f"user of {tenant}"
        assert request.body["data"]["tool_parameters"] == {"query": tenant}
        assert request.body["data"]["credentials"] == {"api_key": tenant}


@pytest.mark.parametrize("how", FRAMINGS)
async def test_any_framing_yields_the_same_text(api: Api, dify: FakeDify, how: str) -> None:
    text = "a\u2028b\u2029c\u0085d\v\f\x1c𝄞 \r\n\0é"
    await dify.play(llm=[{"steps": [{"pieces": [text, "!"], "null_tool_calls": True, **FRAMINGS[how]}]}])
    assert ended(await api.run(dify_run()))["output"] == f"{text}!"


@pytest.mark.parametrize(("step", "reason", "text"), FAILURES.values(), ids=FAILURES)
async def test_failures_of_the_model(api: Api, dify: FakeDify, step: dict[str, Any], reason: str, text: str) -> None:
    await dify.play(llm=[{"steps": [step]}])
    events = await api.run(dify_run())
    found, error = failure(events)
    assert found == reason
    assert text in error
    assert len(dify.to(MODEL_PATH)) == 1, "a model call is never repeated"


ERROR_AND_MORE = {"error": {"message": "gone"}, "end": "hang"}


@pytest.mark.parametrize(
    ("script", "path", "kind"),
    [
        ({"llm": [{"steps": [{"chunks": 2, **ERROR_AND_MORE}]}]}, MODEL_PATH, "run_failed"),
        (
            {
                "llm": [{"steps": [{"tool_calls": [call("web_search", query="a")]}, DONE]}],
                "tools": [{"steps": [ERROR_AND_MORE]}],
            },
            PLUGIN_TOOL_PATH,
            "run_succeeded",
        ),
    ],
    ids=["model", "tool"],
)
async def test_a_stream_that_goes_on_behind_its_error_is_not_waited_for(
    api: Api, dify: FakeDify, script: dict[str, Any], path: str, kind: str
) -> None:
    """Nor for its close, which is bounded by 2 s and takes none: the server lets go by itself."""
    await dify.play(**script)
    events = await api.run(dify_run(plugin_tools("web_search")))
    ended(events, kind)
    await dify.left(path)
    assert moment(events[-1]).timestamp() - dify.to(path)[0].arrived < 1.5


@pytest.mark.parametrize("where", CANCELS)
async def test_a_cancel_lets_go_of_dify(api: Api, dify: FakeDify, where: str) -> None:
    script, path, event = CANCELS[where]
    await dify.play(**script)
    layers = [plugin_tools("web_search"), core_tools("current_time")]
    if path == KNOWLEDGE_PATH:
        layers.append(knowledge(mode="user_query", value="x"))
    run_id = await api.create(dify_run(*layers))
    await dify.asked(path)
    if event is not None:
        await api.events_until(run_id, event)
    await api.cancel(run_id)
    ended(await api.finished(run_id), "run_cancelled")
    await dify.left(path)
    assert len(dify.to(path)) == 1


async def test_cancels_in_every_phase_give_the_connections_back(direct_api: Api, dify: FakeDify) -> None:
    """Twice, with as many connections as are needed once; models by way of the plugin daemon."""
    for _ in range(2):
        await dify.play(**WAITING_FOR_EVER)
        run_ids = await start(direct_api, dify)
        async with trio.open_nursery() as nursery:
            for run_id in run_ids.values():
                nursery.start_soon(direct_api.cancel, run_id)
        await all_left(dify)
        for run_id in run_ids.values():
            ended(await direct_api.finished(run_id), "run_cancelled")
        assert len(in_phase(dify)) == len(PHASES), "nothing is asked again"


async def test_the_plugin_daemon_as_the_way_to_models(direct_api: Api, dify: FakeDify) -> None:
    await dify.play(
        llm=[{"steps": [{"tool_calls": [call("web_search", query="a")]}, DONE]}], tools=[{"steps": [{"text": "found"}]}]
    )
    llm = {"credentials": {"key": "model-secret"}, "model_settings": {"extra_body": {"verbosity": "low"}}}
    events = await direct_api.run(dify_run(plugin_tools("web_search"), llm=llm))
    assert ended(events)["output"] == "Done."
    path = "/plugin/tenant-1/dispatch/llm/invoke"
    first, second = dify.to(path)
    assert first.body == {
        "user_id": "user-1",
        "data": {
            "provider": "openai",
            "model_type": "llm",
            "model": "gpt-x",
            "credentials": {"key": "model-secret"},
            "prompt_messages": [said("system", "Be brief."), said("user", "Hello.")],
            "model_parameters": {"verbosity": "low"},
            "tools": [declared("web_search", "Tool web_search.")],
            "stop": None,
            "stream": True,
        },
    }
    assert first.headers["x-plugin-id"] == "langgenius/openai"
    told = said("tool", "found", name="web_search", tool_call_id="call-1-1")
    assert second.body["data"]["prompt_messages"][-1] == told
    assert dify.to(MODEL_PATH) == []


async def test_the_plugin_daemon_needs_no_user(direct_api: Api, dify: FakeDify) -> None:
    """Models and plugin tools: what the execution context does not have is left out (integrations 2)."""
    await dify.play(llm=[{"steps": [{"tool_calls": [call("web_search", query="a")]}, DONE]}])
    context = {name: value for name, value in CONTEXT.items() if name not in ("user_id", "user_from", "app_id")}
    events = await direct_api.run(dify_run(plugin_tools("web_search"), context=context))
    assert ended(events)["output"] == "Done."
    asked = dify.to("/")
    assert [request.path.split("/")[-2] for request in asked] == ["llm", "tool", "llm"]
    assert not any("user_id" in request.body for request in asked)


async def test_no_secret_is_in_events_or_log(api: Api, server: Server, dify: FakeDify) -> None:
    await dify.play(
        llm=[{"steps": [{"tool_calls": [call("web_search", query="a")]}, {"error": {"message": "bad"}}]}],
        tools=[{"steps": [{"http_error": {"status": 401, "code": "PluginDaemonUnauthorizedError"}}]}],
    )
    events = await api.run(dify_run(plugin_tools("web_search"), llm={"credentials": {"key": "model-secret"}}))
    ended(events, "run_failed")
    for secret in ("tool-secret", "model-secret", dify.environment["DIFY_AGENT_INNER_API_KEY"]):
        assert secret not in json.dumps(events)
        assert secret not in server.log


async def test_the_page_runs(api: Api, dify: FakeDify) -> None:
    """docs/dify.md: its composition, by the fakes' defaults and by its script."""
    composition, script = (json.loads(fence.text) for fence in fences(ROOT / "docs" / "dify.md", "json"))
    await dify.play()
    assert ended(await api.run(composition))["output"] == "tok " * 20
    await dify.play(**script)
    events = await api.run(composition)
    assert ended(events)["output"] == "Press the button."
    assert len(observations(events)) == 3
    assert "What dataset-1 says about: reset" in observations(events)["call-1-3"]


async def test_layers_that_are_not_there_yet_are_refused(api: Api, dify: FakeDify) -> None:
    await dify.play()
    for type_id in ("dify.shell", "dify.runtime"):
        _, text = failure(await api.run(dify_run(layer("other", type_id))))
        assert text == f"\"Layer type id '{type_id}' is not registered.\""
    assert dify.to("/") == []
