"""Driving the fakes from another process, and what the object in this process gives."""

import httpx2
import pytest
from pydantic import ValidationError
from tests.unit.testing.asking import DAEMON_KEY, INNER_KEY, LLM, TOOL, ask, asking, contents, llm, llm_body, raw, until

from dify_agent.settings import ServerSettings
from dify_agent.testing import Script, open_fakes


async def test_requests_are_told_without_secrets() -> None:
    async with asking() as (_, client):
        await ask(client)
        await ask(client, TOOL)
        answer = (await client.get("/__fake/requests")).json()
    assert answer["total"] == 2
    model, tool = answer["requests"]
    assert model["body"] == llm_body()
    assert (model["number"], model["path"], model["status"], model["outcome"]) == (1, LLM, 200, "answered")
    assert tool["headers"]["x-plugin-id"] == "langgenius/search"
    assert not {INNER_KEY, DAEMON_KEY} & {value for each in (model, tool) for value in each["headers"].values()}


async def test_requests_by_page_path_and_outcome() -> None:
    async with asking(llm({"chunks": 1}, {"chunks": 1, "end": "hang"})) as (fakes, client):
        for path in (LLM, TOOL, LLM):
            await ask(client, path)
        async with raw(fakes, LLM, llm_body(call_index=2)) as stream:
            await until(stream, b"tok ")
        await fakes.requests.wait_for(lambda request: request.left)

        async def numbers(query: str) -> list[int]:
            answer = await client.get(f"/__fake/requests?{query}")
            return [each["number"] for each in answer.json()["requests"]]

        assert await numbers("after=1&limit=2") == [2, 3]
        assert await numbers("path=/plugin/") == [2]
        assert await numbers("outcome=left") == [4]
        assert await numbers("limit=-1") == []
        assert (await client.get("/__fake/requests?after=x")).status_code == 422


async def test_requests_are_told_whatever_their_body_and_the_page() -> None:
    async with asking() as (_, client):
        for body in (b"[" * 5000 + b"]" * 5000, b'"\\ud800"', b"[NaN]", b"\xff"):
            await client.post(LLM, content=body)
        answer = await client.get("/__fake/requests?limit=99999999999999999999999")
        assert len(answer.json()["requests"]) == 4
        assert (await client.get(f"/__fake/requests?limit={'9' * 5000}")).status_code == 422


async def test_the_script_is_replaced_and_reset() -> None:
    async with asking() as (fakes, client):
        script = llm({"text": "a"}, {"text": "b"}, count_by="agent_run_id")
        assert (await client.post("/__fake/script", json=script)).json() == script
        assert (await client.get("/__fake/script")).json() == script
        assert fakes.script == Script.model_validate(script)
        assert [contents(await ask(client)) for _ in range(2)] == [["a"], ["b"]]
        assert (await client.post("/__fake/reset")).status_code == 200
        assert len(fakes.requests) == 0
        assert contents(await ask(client)) == ["a"]
        assert fakes.requests[0].number == 1
        wrong = await client.post("/__fake/script", json={"llm": [{"steps": [{"txet": "a"}]}]})
        assert wrong.status_code == 422
        assert "llm.0.steps.0.txet" in wrong.json()["detail"]
        assert fakes.script == Script.model_validate(script)


async def test_in_process() -> None:
    async with asking() as (fakes, client):
        fakes.play(llm({"text": "x"}))
        assert contents(await ask(client)) == ["x"]
        with pytest.raises(ValidationError):
            fakes.play({"llms": []})
        fakes.reset()
        assert fakes.requests.total == 0


async def test_the_environment_points_a_server_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_fakes(inner_key="i", daemon_key="d") as fakes:
        for name, value in fakes.environment.items():
            monkeypatch.setenv(name, value)
        settings = ServerSettings(redis_url="redis://localhost")
        assert (settings.inner_api_url, settings.inner_api_key) == (fakes.inner_api_url, "i")
        assert (settings.plugin_daemon_url, settings.plugin_daemon_api_key) == (fakes.plugin_daemon_url, "d")


async def test_a_wildcard_address_is_reached_over_loopback() -> None:
    async with open_fakes(host="0.0.0.0") as fakes, httpx2.AsyncClient() as client:
        assert fakes.url.startswith("http://127.0.0.1:")
        assert (await client.get(f"{fakes.url}/health/check")).status_code == 200


async def test_an_address_that_is_taken() -> None:
    async with open_fakes() as fakes:
        with pytest.raises(OSError, match="in use"):
            await open_fakes(port=fakes.address[1]).__aenter__()
