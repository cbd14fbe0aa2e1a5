"""`dify.plugin.llm`: its config, the ways it chooses, and whole runs through the actor."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError
from pydantic_ai.settings import ModelSettings
from tests.unit.actors.world import history, prompt, request, world
from tests.unit.model.dify.fake_dify import FakeDify, Reply, answer, chunk, error_line, line

from agenton.compositor import Compositor
from dify_agent.actors.prompts import has_blank_prompt
from dify_agent.layers.dify_plugin import DifyPluginLLMLayerConfig
from dify_agent.layers.dify_plugin.llm_config import DifyModelSettings
from dify_agent.layers.registry import create_layer_providers
from dify_agent.loop.port import ModelLayer, UsageReport
from dify_agent.model.provider import open_model_registry

CONTEXT = {
    "tenant_id": "t-1",
    "user_id": "u-1",
    "user_from": "account",
    "app_id": "app-1",
    "agent_mode": "agent_app",
    "invoke_from": "web-app",
}
LLM = {"plugin_id": "langgenius/openai", "model_provider": "openai", "model": "gpt-x"}


def context_layer():
    return {"name": "execution_context", "type": "dify.execution_context", "config": CONTEXT}


def llm_layer(**config):
    return {
        "name": "llm",
        "type": "dify.plugin.llm",
        "deps": {"execution_context": "execution_context"},
        "config": {**LLM, **config},
    }


async def providers(outbound, transport="gateway"):
    async with open_model_registry() as models:
        return create_layer_providers(models=models, scripted_layers=True, outbound=outbound, llm_transport=transport)


async def dify_only(outbound, transport="gateway"):
    """What the world's own registry lacks."""
    return [provider for provider in await providers(outbound, transport) if provider.type_id == "dify.plugin.llm"]


async def entered(body, transport="gateway", **config):
    """Run ``body(layer)`` with the layer of a composition that was entered."""
    dify = FakeDify()
    graph = {
        "layers": [
            {"name": node["name"], "type": node["type"], "deps": node.get("deps", {})}
            for node in (context_layer(), llm_layer())
        ]
    }
    compositor = Compositor.from_config(graph, providers=await providers(dify.outbound, transport))
    async with compositor.enter(configs={"execution_context": CONTEXT, "llm": {**LLM, **config}}) as run:
        return await body(run.get_layer("llm"), dify)


def test_the_config():
    config = DifyPluginLLMLayerConfig(**LLM)
    assert (config.credentials, config.model_settings, config.context_window_tokens) == ({}, None, None)
    assert DifyPluginLLMLayerConfig(**LLM, credentials={"key": "secret"}).model_dump()["credentials"] == {
        "key": "secret"
    }
    assert "secret" not in repr(DifyPluginLLMLayerConfig(**LLM, credentials={"key": "secret"}))


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"unknown": 1},
        {"context_window_tokens": 0},
        {"model_settings": {"own_parameter": 1}},
        {"model_settings": {"temperature": "warm"}},
        {"model_settings": {"extra_body": [1]}},
    ],
)
def test_invalid_configs_never_show_credentials(change):
    with pytest.raises(ValidationError) as caught:
        DifyPluginLLMLayerConfig.model_validate({**LLM, "credentials": {"key": "secret"}, **change})
    assert "secret" not in str(caught.value)


def test_settings_are_those_of_pydantic_ai():
    assert set(DifyModelSettings.__annotations__) == set(ModelSettings.__annotations__)


async def test_settings_that_are_null_are_left_out():
    async def settings(layer, _):
        return layer.get_model_settings()

    given = {"temperature": 0.5, "top_p": None, "stop_sequences": ["x"], "extra_body": {"own": 1}}
    assert await entered(settings) is None
    assert await entered(settings, model_settings=given) == {
        "temperature": 0.5,
        "stop_sequences": ["x"],
        "extra_body": {"own": 1},
    }


@pytest.mark.parametrize("credentials", [{"key": "secret"}, "secret", ["secret"], None, {"key": {"deep": "secret"}}])
async def test_the_gateway_takes_any_credentials_and_sends_none(credentials):
    async def get(layer, _):
        assert isinstance(layer, ModelLayer)
        return layer.get_model("run-1")

    model = await entered(get, credentials=credentials)
    assert isinstance(model, UsageReport)
    assert model.system == "DifyAPI/langgenius/openai"


@pytest.mark.parametrize("credentials", ["secret", None, {"key": {"deep": "secret"}}, {"key": ["secret"]}])
async def test_the_daemon_needs_plain_credentials(credentials):
    async def get(layer, _):
        with pytest.raises(ValueError, match="must be an object of strings") as caught:
            layer.get_model("run-1")
        return str(caught.value)

    assert "secret" not in await entered(get, transport="plugin_daemon", credentials=credentials)


async def test_a_closed_client_is_a_mistake():
    async def get(layer, dify):
        await dify.outbound.dify_api.aclose()
        with pytest.raises(RuntimeError, match="requires an open shared HTTP client"):
            layer.get_model("run-1")

    await entered(get)


async def test_the_execution_context_is_required():
    graph = {"layers": [{"name": "llm", "type": "dify.plugin.llm"}]}
    compositor = Compositor.from_config(graph, providers=await providers(FakeDify().outbound))
    with pytest.raises(ValueError, match="execution_context"):
        await compositor.enter(configs={"llm": LLM}).__aenter__()


async def test_without_outbound_the_type_is_unknown():
    assert "dify.plugin.llm" not in [provider.type_id for provider in await providers(None)]


def test_the_model_contributes_no_prompt():
    assert has_blank_prompt(request(prompt(" "), context_layer(), llm_layer()))
    assert not has_blank_prompt(request(prompt("a"), context_layer(), llm_layer()))


async def ended(dify, *layers, transport="gateway"):
    """The terminal event of a run with these layers before context and model, and the text of its whole log."""
    async with world(providers=await dify_only(dify.outbound, transport)) as replica:
        run_id = await replica.create(*layers, context_layer(), llm_layer(credentials={"key": "secret"}))
        run = await replica.ended(run_id)
        log = [json.loads(event.payload) for event in run.events]
        return run_id, log


async def test_a_run_through_the_gateway():
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "total_price": "0.002"}
    dify = FakeDify(answer("Hel", "lo", chunk("", usage=usage, finish="stop"), end=b""))
    run_id, log = await ended(dify, prompt("hi"), history())
    assert dify.sent()["caller"]["agent_run_id"] == run_id
    assert log[0]["type"] == "run_started"
    assert log[-1]["type"] == "run_succeeded"
    assert log[-1]["data"]["output"] == "Hello"
    assert log[-1]["data"]["usage"]["total_price"] == "0.002"
    assert log[-1]["data"]["usage"]["total_tokens"] == 15
    assert '"provider_name": "DifyAPI/langgenius/openai"' in json.dumps(log[-1])
    assert "secret" not in json.dumps(log)
    assert b"secret" not in dify.requests[0].content


async def test_a_run_through_the_daemon():
    dify = FakeDify(answer("Hello"))
    _, log = await ended(dify, prompt("hi"), transport="plugin_daemon")
    assert dify.sent()["data"]["credentials"] == {"key": "secret"}
    assert log[-1]["data"]["output"] == "Hello"
    assert "secret" not in json.dumps(log)


async def test_a_run_that_fails_in_its_stream():
    dify = FakeDify(
        Reply([line(chunk("a")), line(chunk("b")), error_line("InvokeRateLimitError", "slow down", nested=1)])
    )
    _, log = await ended(dify, prompt("hi"))
    assert (log[-1]["type"], log[-1]["data"]["error"]) == ("run_failed", "slow down")
    assert log[-1]["data"]["reason"] == "InvokeRateLimitError"
    assert log[-1]["data"].get("error_type") is None


async def test_a_run_without_a_user_fails_at_its_first_request(monkeypatch):
    monkeypatch.delitem(CONTEXT, "user_id")
    dify = FakeDify()
    _, log = await ended(dify, prompt("hi"))
    assert log[-1]["data"]["error"] == "Agent LLM Gateway requires execution context fields: user_id."
    assert dify.requests == []


@pytest.mark.slow
def test_the_package_is_light():
    program = (
        "import sys\n"
        "import dify_agent.layers.dify_plugin\n"
        "heavy = {'trio', 'httpx2', 'openai', 'pydantic_ai', 'dify_agent.loop', 'dify_agent.backends'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("window", "max_tokens", "budget"),
    [(None, 10, None), (1000, None, 800), (1000, 100, 800), (1000, 300, 700), (1000, 0, 800), (7, None, 5)],
)
async def test_the_budget_of_the_context(window, max_tokens, budget):
    async def get(layer, _):
        return layer.get_context_budget()

    given = {"context_window_tokens": window, "model_settings": {"max_tokens": max_tokens}}
    assert await entered(get, **given) == budget


async def test_a_window_without_room_fails_the_run_before_the_model_is_asked(monkeypatch):
    monkeypatch.setitem(LLM, "context_window_tokens", 100)
    monkeypatch.setitem(LLM, "model_settings", {"max_tokens": 100})
    dify = FakeDify()
    _, log = await ended(dify, prompt("hi"))
    assert log[-1]["data"]["error"] == "Model max_tokens must leave a positive input context budget."
    assert dify.requests == []


async def test_a_long_session_is_compacted(monkeypatch):
    monkeypatch.setitem(LLM, "context_window_tokens", 2000)
    messages = [
        {"kind": kind, "parts": [{"part_kind": part, "content": f"{number} " + "x" * 400}]}
        for number in range(15)
        for kind, part in (("request", "user-prompt"), ("response", "text"))
    ]
    dify = FakeDify(*[answer("the summary")] * 2, answer("Hello"))
    layers = [
        {"name": name, "lifecycle_state": "suspended", "runtime_state": {}} for name in ("execution_context", "llm")
    ]
    stored = {"name": "history", "lifecycle_state": "suspended", "runtime_state": {"messages": messages}}
    first = {"name": "prompt", "lifecycle_state": "suspended", "runtime_state": {}}
    async with world(providers=await dify_only(dify.outbound)) as replica:
        run_id = await replica.create(
            prompt("go on"),
            history(),
            context_layer(),
            llm_layer(),
            session_snapshot={"schema_version": 1, "layers": [first, stored, *layers]},
        )
        run = await replica.ended(run_id)
    end = json.loads(run.events[-1].payload)
    assert end["data"].get("output") == "Hello", end
    assert [dify.sent(index)["caller"]["call_index"] for index in range(len(dify.requests))] == [1, 2, 3][
        : len(dify.requests)
    ]
    kept = end["data"]["session_snapshot"]["layers"][1]["runtime_state"]["messages"]
    assert "Summary of previous conversation:\n\nthe summary" in json.dumps(kept).replace("\\n", "\n")
    assert len(kept) < len(messages)
    assert end["data"]["usage"]["total_tokens"] == 15 * len(dify.requests)
