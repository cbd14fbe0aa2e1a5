"""Text that looks like the transport's own syntax arrives as it was said."""

import json
from collections.abc import Iterator

import pytest
from tests.server.bodies import calling, run_of, tool_run, upstream_model
from tests.server.clients import Api, kind_of, stream_of
from tests.server.harness import Server, StoreServer, serving
from tests.server.upstream import Endpoint, endpoint

LINE_BREAKS = ("\u0085", "\u2028", "\u2029")
FAKE_EVENT = '{"id":"1-1","run_id":"x","created_at":"2026-11-30T09:00Z","type":"run_succeeded","data":{"output":"no"}}'
NASTY = {
    "data-lines": "data: \n\ndata: x\nid: 7-7\nevent: run_failed\n\n",
    "done": "[DONE]\n\ndata: [DONE]\n\n",
    "comment": ": keepalive\n\n: trimmed 3\n\n",
    "fake-event": f"id: 1-1\nevent: run_succeeded\ndata: {FAKE_EVENT}\n\n",
    "fake-json": FAKE_EVENT,
    "unicode-breaks": "a" + "b".join(LINE_BREAKS) + "c\r\nd\re\x0bf\x0cg",
    "control": "nul \x00 bell \x07 escape \x1b[0m del \x7f",
    "escapes": '\\u2028 \\n "quoted" \\\\ </script> %0a',
    "astral": "\U0001f600 e\u0301 \ufeff \u200b \uffff",
    "blank": " \n\n \t\n",
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with endpoint() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(store: StoreServer, provider: Endpoint) -> Iterator[Server]:
    with serving(store.url, model_base_urls=provider.base_url, env={"OPENAI_API_KEY": "none"}) as started:
        yield started


async def both(server: Server, api: Api, run_id: str) -> list[dict]:
    """The log as the stream gives it, after comparing it with the poll's."""
    frames = await stream_of(server, run_id)
    for frame in frames:
        assert not any(each in frame.data for each in LINE_BREAKS), "a reader that splits lines by Unicode breaks here"
        assert not any(byte < 0x20 for byte in frame.data.encode())
    events = [frame.json for frame in frames]
    assert events == await api.finished(run_id)
    return events


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
async def test_model_output(server, api: Api, text):
    events = await both(server, api, await api.create(run_of({"thinking": text, "text": text})))
    assert [event["type"] for event in events].count("run_succeeded") == 1
    assert events[-1]["data"]["output"] == text
    assert "".join(event.get("agent_message_delta") or "" for event in events) == text
    thinking = next(e["data"]["part"]["content"] for e in events if kind_of(e) == "part_start")
    assert thinking == text


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
async def test_tool_output(server, api: Api, text):
    events = await both(server, api, await api.create(tool_run(result={"text": text, text: [text, 9007199254740993]})))
    assert [event["type"] for event in events].count("run_succeeded") == 1
    results = [event["data"] for event in events if kind_of(event) == "function_tool_result"]
    part = results[0].get("part") or results[0]["result"]
    assert part["content"] == {"text": text, text: [text, 9007199254740993]}


async def test_tool_arguments_prompt_failure_and_cancel_texts(server, api: Api):
    text = "".join(NASTY.values())
    turns = (calling("probe", text=text), {"text": "ok"})
    run_id = await api.create(run_of(*turns, tools=({"name": "probe"},), prompt=text))
    events = await both(server, api, run_id)
    call = next(event["data"]["part"] for event in events if kind_of(event) == "function_tool_call")
    args = call["args"] if isinstance(call["args"], dict) else json.loads(call["args"])
    assert args == {"text": text}
    layers = {layer["name"]: layer for layer in events[-1]["data"]["session_snapshot"]["layers"]}
    assert layers["history"]["runtime_state"]["messages"][0]["parts"][0]["content"] == text

    events = await both(server, api, await api.create(run_of({"error": text})))
    assert events[-1]["data"]["error"] == text

    run_id = await api.create(run_of({"hang": True}))
    await api.cancel(run_id, reason=text, message=text)
    events = await both(server, api, run_id)
    assert (events[-1]["data"]["reason"], events[-1]["data"]["message"]) == (text, text)
    assert (await api.status(run_id))["error"] == text


async def test_output_of_a_real_provider(server, api: Api, provider: Endpoint):
    text = "".join(NASTY.values())
    async with provider.answering(text):
        events = await both(server, api, await api.create(run_of(model=upstream_model(provider.base_url))))
    assert events[-1]["data"]["output"] == text
