"""Odd values through every carrier: an exact round trip, the documented replacement, or a clean failure.

Every log is read over poll, event stream and WebSocket at once, compared byte for byte, and parsed strictly. Whatever
the ending, the session goes on: from its snapshot, or from the one before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server import payload_layer
from tests.server.bodies import calling, layer, run_of, text_run, upstream_model
from tests.server.clients import Api, kind_of
from tests.server.harness import Server, StoreServer, serving
from tests.server.packages import install_package
from tests.server.payload_corpus import (
    ANSWERS,
    ARGUMENTS,
    INVALID,
    LARGE,
    OUTPUT_REFUSES,
    RESULTS,
    STATES,
    TOO_DEEP,
    Refused,
    Valid,
)
from tests.server.payload_layer import CJK, nested
from tests.server.payload_readers import exactly, poll_texts, same_on_all, strict
from tests.server.payload_upstream import BytewiseUpstream, chunk
from tests.server.upstream import Endpoint, endpoint

PROJECT = """
[project]
name = "payloads"
version = "1"
[project.entry-points."dify_agent.layers"]
"test.payloads" = "payload_layer:PayloadLayer"
"""
OUTPUT = layer("output", "dify.output", json_schema={"type": "object"})
THREADED = ("nan", "digits-5000", "surrogate-key", "nested-5000", "circular", "object", "cjk")


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with endpoint() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(store: StoreServer, provider: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    source = Path(payload_layer.__file__).read_text()
    env = install_package(tmp_path_factory.mktemp("payloads"), PROJECT, {"payload_layer.py": source})
    env["OPENAI_API_KEY"] = "none"
    with serving(store.url, env=env, model_base_urls=provider.base_url) as started:
        yield started


def body_of(*turns: dict[str, Any], extra: tuple[dict[str, Any], ...] = (), **members: Any) -> dict[str, Any]:
    """A run with the layer of payloads, and others, before the model."""
    body = run_of(*turns, **members)
    layers = body["composition"]["layers"]
    payloads = [] if any(each["name"] == "payloads" for each in extra) else [layer("payloads", "test.payloads")]
    body["composition"]["layers"] = [*layers[:-1], *payloads, *extra, layers[-1]]
    return body


def calling_with(name: str, args: str) -> dict[str, Any]:
    """A turn with a call whose arguments are this text."""
    return {"tool_calls": [{"name": name, "args": args}]}


def giving(tool: str, name: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "args": {"name": name}}]}


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if kind_of(event) == kind]


def succeeded(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert events[-1]["type"] == "run_succeeded", str(events[-1])[:2000]
    return dict(events[-1]["data"])


def failed(events: list[dict[str, Any]], text: str) -> dict[str, Any]:
    assert events[-1]["type"] == "run_failed", str(events[-1])[:2000]
    assert text in events[-1]["data"]["error"]
    return dict(events[-1]["data"])


def state_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each["runtime_state"] for each in data["session_snapshot"]["layers"] if each["name"] == name)


def stored_results(data: dict[str, Any]) -> list[Any]:
    """The tool results in the history of a terminal event's snapshot."""
    parts = [part for message in state_of(data, "history")["messages"] for part in message["parts"]]
    return [part["content"] for part in parts if part["part_kind"] == "tool-return"]


async def logged(server: Server, api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    return await same_on_all(server, api, await api.create(body))


async def goes_on(api: Api, snapshot: Any, *extra: dict[str, Any]) -> dict[str, Any]:
    """The session resumes with a new prompt."""
    turn = calling_with("final_output", "{}") if OUTPUT in extra else {"text": "on"}
    run_id = await api.create(body_of(turn, extra=extra, session_snapshot=snapshot))
    return succeeded([strict(text) for text in await poll_texts(api, run_id)])


# Tool results


async def check_result(server: Server, api: Api, tool: str, name: str) -> None:
    expected = RESULTS[name]
    before = None
    if isinstance(expected, Refused):
        before = succeeded(await api.run(body_of({"text": "before"})))["session_snapshot"]
    events = await logged(server, api, body_of(giving(tool, name), {"text": "done"}, session_snapshot=before))
    if isinstance(expected, Refused):
        data = failed(events, expected.text)
        assert of_kind(events, "function_tool_result") == []
        assert f"The result of tool '{tool}'" in data["error"]
        await goes_on(api, data["session_snapshot"])
        await goes_on(api, before)
        return
    data = succeeded(events)
    assert data["output"] == "done"
    (result,) = of_kind(events, "function_tool_result")
    assert exactly(result["part"]["content"]) == exactly(expected)
    assert exactly(stored_results(data)) == exactly([expected])
    resumed = await goes_on(api, data["session_snapshot"])
    assert exactly(stored_results(resumed)) == exactly([expected])


@pytest.mark.parametrize("name", [name for name in RESULTS if name not in LARGE])
async def test_tool_results(server: Server, api: Api, name: str) -> None:
    await check_result(server, api, "give", name)


@pytest.mark.parametrize("name", THREADED)
async def test_tool_results_from_threads(server: Server, api: Api, name: str) -> None:
    await check_result(server, api, "give_from_thread", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LARGE[0], pytest.param(LARGE[1], marks=pytest.mark.full)])
async def test_large_tool_results(server: Server, api: Api, name: str) -> None:
    await check_result(server, api, "give", name)


async def test_what_a_tool_adds_for_the_model_and_for_the_application(server: Server, api: Api) -> None:
    events = await logged(server, api, body_of(giving("give", "text-and-metadata"), {"text": "done"}))
    (result,) = of_kind(events, "function_tool_result")
    assert result["content"] == "see \ufffd"
    assert result["part"]["metadata"] == {"a": None, "b": "\ufffd"}
    await goes_on(api, succeeded(events)["session_snapshot"])


async def test_errors_of_tools(server: Server, api: Api) -> None:
    data = failed(await logged(server, api, body_of(calling("fail"))), "odd \ufffd text\x00")
    await goes_on(api, data["session_snapshot"])
    events = await logged(server, api, body_of(calling("ask_again"), {"text": "done"}))
    (result,) = of_kind(events, "function_tool_result")
    assert result["part"]["content"] == "odd \ufffd text\x00"
    await goes_on(api, succeeded(events)["session_snapshot"])


# Tool arguments


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_tool_arguments(server: Server, api: Api, name: str) -> None:
    text, outcome = ARGUMENTS[name]
    events = await logged(server, api, body_of(calling_with("echo", text), {"text": "done"}))
    (call,) = of_kind(events, "function_tool_call")
    assert (call["part"]["args"], call["args_valid"]) == (text, outcome is not INVALID)
    if isinstance(outcome, Refused):  # what the tool gives back, not what it got
        await goes_on(api, failed(events, outcome.text)["session_snapshot"])
        return
    (result,) = of_kind(events, "function_tool_result")
    if outcome is INVALID:
        assert result["part"]["part_kind"] == "retry-prompt"
    else:
        assert exactly(result["part"]["content"]) == exactly(outcome.value)
    await goes_on(api, succeeded(events)["session_snapshot"])


@pytest.mark.full
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_tool_arguments_under_a_json_schema(server: Server, api: Api, name: str) -> None:
    text, outcome = ARGUMENTS[name]
    schema = {"type": "object", "properties": {"value": {"not": {"const": "never"}}}, "required": ["value"]}
    tools = ({"name": "probe", "parameters": schema, "result": 1},)
    events = await logged(server, api, run_of(calling_with("probe", text), {"text": "done"}, tools=tools))
    (call,) = of_kind(events, "function_tool_call")
    # What is nested too deeply for a result is too deep to be checked as well, and asked for again.
    assert (call["part"]["args"], call["args_valid"]) == (text, outcome not in (INVALID, TOO_DEEP))
    succeeded(events)


# Final output


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_final_output(server: Server, api: Api, name: str) -> None:
    text, outcome = ARGUMENTS[name]
    turns = (calling_with("final_output", text), calling_with("final_output", "{}"))
    events = await logged(server, api, body_of(*turns, extra=(OUTPUT,)))
    data = succeeded(events)
    if not isinstance(outcome, Valid) or name in OUTPUT_REFUSES:
        assert [call["args_valid"] for call in of_kind(events, "output_tool_call")] == [False, True]
        assert data["output"] == {}
    else:
        assert exactly(data["output"]) == exactly({"value": outcome.value})
    await goes_on(api, data["session_snapshot"], OUTPUT)


# Questions to a human, and answers


QUESTIONS: dict[str, tuple[str, str | None]] = {
    "nul": (r'{"question": "a\u0000b"}', "a\x00b"),
    "cjk": (f'{{"question": "{CJK}"}}', CJK),
    "surrogate-pair": (r'{"question": "\ud83d\ude00"}', "😀"),
    "repeated-key": ('{"question": "a", "question": "b"}', "b"),
    "line-ends": ('{"question": "a\u2028b"}', "a\u2028b"),
    "surrogate": (r'{"question": "\ud800"}', None),
    "nan": ('{"question": NaN}', None),
    "nan-maximum": ('{"question": "a", "fields": [{"type": "file-list", "max_files": NaN}]}', None),
    "digits-5000": (f'{{"question": {"9" * 5000}}}', None),
    "nested-1000": (f'{{"question": {"[" * 1000}{"]" * 1000}}}', None),
    "truncated": ('{"question": "a', None),
}
HUMAN = layer("ask_human", "dify.ask_human", max_fields=2)


@pytest.mark.parametrize("name", QUESTIONS)
async def test_questions(server: Server, api: Api, name: str) -> None:
    text, question = QUESTIONS[name]
    events = await logged(server, api, body_of(calling_with("ask_human", text), {"text": "done"}, extra=(HUMAN,)))
    data = succeeded(events)
    (call,) = of_kind(events, "function_tool_call")
    assert (call["part"]["args"], call["args_valid"]) == (text, question is not None)
    if question is None:
        assert data["output"] == "done"
    else:
        assert data["deferred_tool_call"]["args"]["question"] == question


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers(server: Server, api: Api, name: str) -> None:
    asking = body_of(calling("ask_human", question="Which?"), extra=(HUMAN,))
    asked = succeeded(await api.run(asking))
    call_id = asked["deferred_tool_call"]["tool_call_id"]
    results = {"calls": {call_id: ANSWERS[name]}}
    members = {"extra": (HUMAN,), "session_snapshot": asked["session_snapshot"]}
    events = await logged(server, api, body_of({"text": "done"}, **members, deferred_tool_results=results))
    if name in ("nested-181", "nested-190"):
        failed(events, "levels deep, or contains itself")
        shorter = {"calls": {call_id: nested(150)}}
        events = await logged(server, api, body_of({"text": "done"}, **members, deferred_tool_results=shorter))
        succeeded(events)
        return
    data = succeeded(events)
    (result,) = of_kind(events, "function_tool_result")
    assert exactly(result["part"]["content"]) == exactly(ANSWERS[name])
    assert exactly(stored_results(data)) == exactly([ANSWERS[name]])
    await goes_on(api, data["session_snapshot"], HUMAN)


# Snapshots: the runtime state of a layer


@pytest.mark.parametrize("name", [name for name in STATES if name not in LARGE])
async def test_runtime_state(server: Server, api: Api, name: str) -> None:
    await check_state(server, api, name)


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
async def test_large_runtime_state(server: Server, api: Api, name: str) -> None:
    await check_state(server, api, name)


async def check_state(server: Server, api: Api, name: str) -> None:
    keeping = layer("payloads", "test.payloads", keep=name)
    events = await logged(server, api, body_of({"text": "done"}, extra=(keeping,)))
    expected = STATES[name]
    if isinstance(expected, Refused):
        data = failed(events, expected.text)
        assert "The runtime state of layer 'payloads'" in data["error"]
        assert data["session_snapshot"] is None
        return
    data = succeeded(events)
    assert exactly(state_of(data, "payloads")["kept"]) == exactly(expected)
    resumed = await goes_on(api, data["session_snapshot"])
    assert exactly(state_of(resumed, "payloads")["kept"]) == exactly(expected)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_state_that_could_not_be_read_back_is_not_stored(server: Server, api: Api, number: str) -> None:
    keeping = layer("payloads", "test.payloads", number=number)
    data = failed(await logged(server, api, body_of({"text": "done"}, extra=(keeping,))), "does not fit its type")
    assert data["session_snapshot"] is None


# Characters torn apart on their way from a provider


async def test_characters_split_across_packets(server: Server, api: Api, provider: Endpoint) -> None:
    pieces = [CJK[:5], CJK[5:], "\u2028\x85"]
    args = json.dumps({"value": [CJK, 2**53 + 1, -0.0]}, ensure_ascii=False)
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "echo", "arguments": args[:7]}}
    more = {"index": 0, "function": {"arguments": args[7:]}}
    upstream = BytewiseUpstream(
        [chunk({"role": "assistant", "tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls")],
        [*(chunk({"role": "assistant", "content": piece}) for piece in pieces), chunk({}, "stop")],
    )
    async with provider.answering(upstream):
        events = await logged(server, api, body_of(model=upstream_model(provider.base_url)))
    (result,) = of_kind(events, "function_tool_result")
    assert exactly(result["part"]["content"]) == exactly([CJK, 2**53 + 1, -0.0])
    data = succeeded(events)
    assert data["output"] == "".join(pieces)
    assert "".join(event.get("agent_message_delta") or "" for event in events) == "".join(pieces)
    await goes_on(api, data["session_snapshot"])


async def test_a_surrogate_pair_split_across_chunks(server: Server, api: Api, provider: Endpoint) -> None:
    halves = [chunk({"role": "assistant", "content": half}, ascii_only=True) for half in ("a\ud83d", "\ude00b")]
    async with provider.answering(BytewiseUpstream([*halves, chunk({}, "stop")])):
        events = await logged(server, api, body_of(model=upstream_model(provider.base_url)))
    data = succeeded(events)
    assert data["output"] == "a😀b"
    await goes_on(api, data["session_snapshot"])


async def test_half_a_surrogate_pair_from_a_provider(server: Server, api: Api, provider: Endpoint) -> None:
    answer = [chunk({"role": "assistant", "content": "a\ud83db"}, ascii_only=True), chunk({}, "stop")]
    async with provider.answering(BytewiseUpstream(answer)):
        events = await logged(server, api, body_of(model=upstream_model(provider.base_url)))
    data = succeeded(events)
    assert data["output"] == "a\ufffdb"
    await goes_on(api, data["session_snapshot"])


async def test_the_server_still_serves(api: Api) -> None:
    assert (await api.run(text_run()))[-1]["type"] == "run_succeeded"
