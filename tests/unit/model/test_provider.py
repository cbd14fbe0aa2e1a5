"""Models by name: which are allowed, and how the SDKs behave on Trio against a loopback server."""

import gzip
import os
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager

import httpx2
import pytest
import trio
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from tests.unit.model.fake_provider import Reply, chat_text, open_fake_provider, responses_call, responses_text

from dify_agent.errors import ModelNotAllowedError
from dify_agent.model.provider import open_model_registry

PROMPT = [ModelRequest([UserPromptPart("hi")])]
TEXT = ModelRequestParameters()
SECONDS = 10

# The SDK abandons its generators when the body ends with [DONE] or the consumer leaves (agent-loop 6).
pytestmark = pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "key-from-environment")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@asynccontextmanager
async def serving(*replies, **options):
    with trio.fail_after(SECONDS):
        async with open_fake_provider(*replies) as provider:
            async with open_model_registry([provider.base_url + "/"], **options) as registry:
                yield provider, registry


async def play(model, parameters=TEXT):
    async with model.request_stream(PROMPT, None, parameters) as stream:
        async with aclosing(aiter(stream)) as events:
            return [event async for event in events], stream.get()


@pytest.mark.slow
async def test_text_stream():
    async with serving(Reply(responses_text("hel", "lo"))) as (provider, registry):
        events, response = await play(registry.get_model("openai:gpt-x", provider.base_url))
    assert response.text == "hello"
    assert response.state == "complete"
    assert response.usage.input_tokens == 7
    assert sum(isinstance(event, (PartStartEvent, PartDeltaEvent)) for event in events) == 2
    [(path, headers, body)] = provider.requests
    assert path == "/v1/responses"
    assert headers["authorization"] == "Bearer key-from-environment"
    assert (body["model"], body["stream"]) == ("gpt-x", True)


async def test_chat_completions_stream():
    async with serving(Reply(chat_text("hel", "lo"))) as (provider, registry):
        _, response = await play(registry.get_model("openai-chat:gpt-x", provider.base_url))
    assert response.text == "hello"
    assert provider.requests[0][0] == "/v1/chat/completions"


async def test_tool_call():
    parameters = ModelRequestParameters(function_tools=[ToolDefinition(name="add")])
    async with serving(Reply(responses_call("add", "call_9", '{"x"', ": 1}"))) as (provider, registry):
        _, response = await play(registry.get_model("openai:gpt-x", provider.base_url), parameters)
    [call] = response.tool_calls
    assert (call.tool_name, call.tool_call_id.split("|")[0], call.args) == ("add", "call_9", '{"x": 1}')


async def test_cancel_mid_stream_closes_the_connection():
    cut = Reply(responses_text("hel", cut=True), hang=True)
    async with serving(cut, Reply(responses_text("again"))) as (provider, registry):
        model = registry.get_model("openai:gpt-x", provider.base_url)
        with trio.CancelScope() as scope:
            async with model.request_stream(PROMPT, None, TEXT) as stream:
                async with aclosing(aiter(stream)) as events:
                    async for event in events:
                        if isinstance(event, PartStartEvent):
                            scope.cancel()
        assert scope.cancelled_caught
        await provider.closed.wait()
        # The client is as good as before.
        _, response = await play(model)
        assert response.text == "again"


async def test_rate_limit_is_reported_at_once_and_not_retried():
    reply = Reply(
        [b'{"error": {"message": "slow down"}}'], "429 Too Many Requests", {"content-type": "application/json"}
    )
    async with serving(reply) as (provider, registry):
        with pytest.raises(ModelHTTPError) as caught:
            await play(registry.get_model("openai:gpt-x", provider.base_url))
    assert caught.value.status_code == 429
    assert len(provider.requests) == 1


async def test_redirects_are_not_followed():
    async with open_fake_provider(Reply(responses_text("stolen"))) as elsewhere:
        reply = Reply([], "307 Temporary Redirect", {"location": elsewhere.base_url + "/responses"})
        async with serving(reply) as (provider, registry):
            with pytest.raises(ModelAPIError):
                await play(registry.get_model("openai:gpt-x", provider.base_url))
    assert len(provider.requests) == 1
    assert elsewhere.requests == []


async def test_an_exhausted_pool_names_its_settings():
    limits, timeout = httpx2.Limits(max_connections=1), httpx2.Timeout(5, pool=0.1)
    cut = Reply(responses_text("hel", cut=True), hang=True)
    async with serving(cut, limits=limits, timeout=timeout) as (provider, registry):
        model = registry.get_model("openai:gpt-x", provider.base_url)
        async with model.request_stream(PROMPT, None, TEXT):
            with pytest.raises(ModelAPIError) as caught:
                await play(model)
    for setting in ("MAX_CONNECTIONS", "POOL_TIMEOUT"):
        assert f"DIFY_AGENT_OUTBOUND_HTTP_{setting}" in caught.value.message
    assert len(provider.requests) == 1


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br"])
async def test_compression_is_not_asked_for_and_a_compressed_answer_is_refused(encoding):
    packed = Reply([gzip.compress(b"\n" * 1_000_000)], headers={"content-encoding": encoding})
    async with serving(packed) as (provider, registry):
        with pytest.raises(ModelAPIError, match="HTTP 200 with a Content-Encoding") as caught:
            await play(registry.get_model("openai:gpt-x", provider.base_url))
    assert "\n" not in caught.value.message
    [(_, headers, _)] = provider.requests
    assert headers["accept-encoding"] == "identity"


async def test_what_follows_an_answer_is_not_the_next_answer():
    """On the registry's own client; the process's is checked with the pool."""
    async with serving(Reply(responses_text("a"), more=b"HTTP/1.1 200 OK\r\n"), Reply(responses_text("b"))) as (
        provider,
        registry,
    ):
        model = registry.get_model("openai:gpt-x", provider.base_url)
        texts = [(await play(model))[1].text for _ in range(2)]
    assert texts == ["a", "b"]
    assert provider.connections == 2


async def test_clients_are_built_once_per_configuration():
    reply = Reply(responses_text("a"))
    async with serving(reply, reply) as (provider, registry):
        one, other = (registry.get_model(f"openai:gpt-{n}", provider.base_url + "/" * n) for n in range(2))
        assert one.wrapped.client is other.wrapped.client
        assert one.wrapped.client is not registry.get_model("openai:gpt-1").wrapped.client
        for model in (one, other):
            await play(model)
    assert provider.connections == 1


async def test_a_shared_client_is_used_and_left_open():
    async with open_fake_provider(Reply(responses_text("a"))) as provider:
        async with httpx2.AsyncClient() as client:
            async with open_model_registry(base_urls=[provider.base_url], http_client=client) as registry:
                _, response = await play(registry.get_model("openai:gpt-x", provider.base_url))
            assert response.text == "a"
            assert not client.is_closed


async def test_a_client_that_follows_redirects_is_refused():
    async with httpx2.AsyncClient(follow_redirects=True) as client:
        with pytest.raises(ValueError, match="must not follow redirects"):
            async with open_model_registry(http_client=client):
                pass


async def test_base_url_must_be_allowed():
    async with open_model_registry(base_urls=["https://gateway.example/v1"]) as registry:
        for name in ("openai:gpt-x", "test"):
            with pytest.raises(ModelNotAllowedError, match="DIFY_AGENT_MODEL_BASE_URLS") as caught:
                registry.get_model(name, "https://user:secret@evil.example/v1")
            assert "secret" not in str(caught.value)
        assert str(registry.get_model("openai:gpt-x", "https://gateway.example/v1/").base_url).startswith(
            "https://gateway"
        )


@pytest.mark.parametrize("name", ["gpt-x", "", "openai:", "mystery:model", "google:gemini-x", "gateway/openai:gpt-x"])
async def test_other_names_are_refused(name):
    async with open_model_registry() as registry:
        with pytest.raises(ValueError, match="anthropic, openai, openai-chat, openai-responses"):
            registry.get_model(name)


@pytest.mark.slow
async def test_missing_key_is_an_error_of_the_run(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    async with open_model_registry() as registry:
        for name, key in (("openai:gpt-x", "OPENAI_API_KEY"), ("anthropic:claude-x", "ANTHROPIC_API_KEY")):
            with pytest.raises(UserError, match=key):
                registry.get_model(name)


@pytest.mark.slow
async def test_a_listed_endpoint_without_a_key_gets_a_placeholder_where_it_may_need_none(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    async with serving(Reply(chat_text("hi"))) as (provider, registry):
        await play(registry.get_model("openai-chat:m", provider.base_url))
        with pytest.raises(UserError, match="ANTHROPIC_API_KEY"):
            registry.get_model("anthropic:m", provider.base_url)
    [(_, headers, _)] = provider.requests
    assert headers["authorization"] == "Bearer api-key-not-set"


async def test_a_missing_sdk_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic_ai.providers.openai", None)
    async with open_model_registry() as registry:
        with pytest.raises(ValueError, match=r"no request was sent.* --editable '\.\[openai\]'"):
            registry.get_model("openai:gpt-x")


async def test_anthropic_model(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    async with open_model_registry() as registry:
        model = registry.get_model("anthropic:claude-x")
        assert (model.system, model.model_name) == ("anthropic", "claude-x")
        assert model.wrapped.client.max_retries == 0


async def test_the_test_model_needs_nothing():
    async with open_model_registry() as registry:
        model = registry.get_model("test")
        assert isinstance(model, TestModel)
        _, response = await play(model)
        assert response.text


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "OPENAI_API_KEY"])
def test_an_sdk_is_imported_before_the_first_run_when_there_is_a_key(key):
    program = (
        "import sys, trio\n"
        "from dify_agent.model.provider import open_model_registry\n"
        "async def main():\n"
        "    async with open_model_registry():\n"
        "        print(sorted({'openai', 'anthropic'} & set(sys.modules)))\n"
        "trio.run(main)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    if key:
        environment[key] = "k"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == ("['openai']" if key else "[]")
