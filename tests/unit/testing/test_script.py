"""What is a script, and which step answers."""

import json

import pytest
from pydantic import ValidationError
from tests.unit.testing.asking import assistant, user

from dify_agent.testing.choosing import Call, Chooser, last_user_text
from dify_agent.testing.frames import llm_frames, tool_frames
from dify_agent.testing.script import LlmStep, Script, ToolStep

RICH = {
    "llm": [
        {"model": "gpt-x", "count_by": "agent_run_id", "cycle": True, "steps": [{"text": "a"}, {"pieces": ["b", "c"]}]},
        {"prompt_contains": "weather", "steps": [{"tool_calls": [{"name": "f", "arguments": {"x": [1, None]}}]}]},
        {"steps": [{"http_error": {"status": 429, "code": "agent_llm_quota_exceeded"}}, {"end": "hang", "chunks": 3}]},
    ],
    "tools": [
        {"tool": "t", "steps": [{"blobs": [{"size": 9}], "json_object": [1], "newline": "crlf"}, {"raw": ["/w==", ""]}]}
    ],
    "core_tools": [{"steps": [{"observation": "o"}]}],
    "knowledge": [{"dataset": "d", "steps": [{"results": [], "usage": {"n": 1}}]}],
    "files": [{"reference": "r", "steps": [{"error": "gone"}]}],
}


def test_a_script_travels_as_json() -> None:
    script = Script.model_validate(RICH)
    text = json.dumps(script.as_json())
    assert Script.model_validate_json(text) == script
    assert json.loads(text) == RICH
    assert Script().as_json() == {}


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"txet": "a"}, "Extra inputs"),
        ({"text": "a", "chunks": 2}, "text, chunks"),
        ({"delay_ms": -1}, "greater than or equal"),
        ({"delay_ms": float("nan")}, "finite"),
        ({"http_error": {"status": 200}}, "greater than or equal"),
        ({"http_error": {"status": 500, "body": {}, "html": "x"}}, "not both"),
        ({"http_error": {"status": 500}, "error": {}}, "not both"),
        ({"http_error": {"status": 500}, "end": "silent"}, "cannot be silent"),
        ({"chunks_per_write": 2, "delay_ms": 1}, "neither"),
        ({"chunks_per_write": 2, "one_byte_packets": True}, "neither"),
        ({"error": {"code": 0}}, "less than 0"),
        ({"end": "slowly"}, "complete"),
    ],
)
def test_what_is_no_step(step: dict, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        LlmStep.model_validate(step)


def test_a_rule_needs_a_step() -> None:
    with pytest.raises(ValidationError):
        Script.model_validate({"llm": [{"steps": []}]})


def call(text: str = "hello", *, model: str = "m", run_id: str = "r", index: int = 1) -> Call:
    return Call(model, [user(text)], run_id, index)


def test_the_first_rule_that_matches_answers() -> None:
    rules = [
        {"model": "m", "prompt_contains": "one", "steps": [{"text": "both"}]},
        {"model": "m", "steps": [{"text": "model"}]},
        {"prompt_contains": "one", "steps": [{"text": "prompt"}]},
    ]
    chooser = Chooser(Script.model_validate({"llm": rules}))
    said = [chooser.llm(call(text, model=model))[0].text for model in ("m", "n") for text in ("a one", "two")]
    assert said == ["both", "model", "prompt", None]


def test_steps_follow_the_call_index_and_the_last_repeats() -> None:
    chooser = Chooser(Script.model_validate({"llm": [{"steps": [{"text": "a"}, {"text": "b"}]}]}))
    assert [chooser.llm(call(index=n))[0].text for n in (1, 2, 3, 1)] == ["a", "b", "b", "a"]


def test_steps_by_counting_a_runs_requests() -> None:
    rule = {"count_by": "agent_run_id", "cycle": True, "steps": [{"text": "a"}, {"text": "b"}]}
    chooser = Chooser(Script.model_validate({"llm": [rule]}))
    assert [chooser.llm(call(run_id=run))[0].text for run in "xxyx"] == ["a", "b", "a", "a"]
    chooser.restart()
    assert chooser.llm(call(run_id="x")) == (LlmStep(text="a"), 1)


def test_forgotten_runs_are_those_that_called_least_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dify_agent.testing.choosing.COUNTED_RUNS", 2)
    chooser = Chooser(Script.model_validate({"llm": [{"count_by": "agent_run_id", "steps": [{}]}]}))
    assert [chooser.llm(call(run_id=run))[1] for run in "xyxzxy"] == [1, 1, 2, 1, 3, 1]


def test_steps_by_history() -> None:
    chooser = Chooser(Script.model_validate({"llm": [{"steps": [{"text": "a"}, {"text": "b"}]}]}))
    tool = {"role": "tool", "content": "x", "tool_call_id": "1"}
    messages = [user("q"), assistant("old"), user("q"), assistant(), tool]
    assert chooser.llm(Call("m", messages))[0].text == "b"
    assert chooser.llm(Call("m", messages[:3]))[0].text == "a"


def test_other_steps_follow_the_order_of_requests() -> None:
    rules = [{"tool": "t", "steps": [{"text": "a"}, {"text": "b"}]}, {"steps": [{"text": "other"}]}]
    chooser = Chooser(Script.model_validate({"tools": rules, "knowledge": [{"dataset": "d2", "steps": [{}]}]}))
    assert [chooser.tool(name).text for name in ("t", "x", "t", "t")] == ["a", "other", "b", "b"]
    assert chooser.knowledge(["d1", "d2"]) is chooser.script.knowledge[0].steps[0]
    assert chooser.knowledge(["d1"]) is not chooser.script.knowledge[0].steps[0]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], ""),
        ([assistant("x")], ""),
        ([user("a"), assistant("b"), user("c"), assistant("d")], "c"),
        ([user([{"type": "text", "data": "a"}, {"type": "image"}, {"type": "text", "data": "b"}])], "ab"),
        ([user(None)], ""),
    ],
)
def test_last_user_text(messages: list, text: str) -> None:
    assert last_user_text(messages) == text


def frames(**step: object) -> list[dict]:
    lines = llm_frames(LlmStep.model_validate(step), model="m", messages=[], prompt="p", number=2, success="")
    return [json.loads(line.removeprefix(b"data: "))["data"]["delta"] for line in lines]


def test_a_complete_stream_tells_usage_and_reason_on_its_last_chunk_only() -> None:
    deltas = frames(chunks=3, usage={"prompt_tokens": 7, "completion_tokens": 3})
    assert [delta["index"] for delta in deltas] == [0, 1, 2]
    assert [delta["finish_reason"] for delta in deltas] == [None, None, "stop"]
    assert [delta["usage"] for delta in deltas[:2]] == [None, None]
    usage = deltas[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 3, 10)


@pytest.mark.parametrize("step", [{"end": "hang"}, {"end": "reset"}, {"error": {}}, {"finish_reason": None}])
def test_other_streams_do_not_claim_an_end(step: dict) -> None:
    lines = llm_frames(
        LlmStep.model_validate({"chunks": 2, "usage": None, **step}),
        model="m",
        messages=[],
        prompt="",
        number=1,
        success="",
    )
    values = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    assert [value["data"]["delta"]["finish_reason"] for value in values if value["data"]] == [None, None]


def test_thinking_text_and_calls_in_order() -> None:
    deltas = frames(thinking="t", echo_text=True, pieces=["a", "b"], tool_calls=[{"name": "f"}, {"name": "g"}])
    assert [delta["message"]["content"] for delta in deltas] == ["<think>t</think>", "p", "a", "b", ""]
    calls = deltas[-1]["message"]["tool_calls"]
    assert [(each["id"], each["function"]) for each in calls] == [
        ("call-2-1", {"name": "f", "arguments": "{}"}),
        ("call-2-2", {"name": "g", "arguments": "{}"}),
    ]
    assert deltas[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("with_id", "ids"), [(True, ["i", "i", "i"]), (False, ["i", "", ""])])
def test_a_call_in_fragments(with_id: bool, ids: list[str]) -> None:
    call = {"name": "f", "arguments": '{"x": 1}', "id": "i", "fragments": 3, "fragments_with_id": with_id}
    parts = [delta["message"]["tool_calls"] for delta in frames(tool_calls=[{"name": "e"}, call])][1:]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert [part[0]["id"] for part in parts] == ids
    assert [part[0]["function"]["name"] for part in parts] == ["f", "", ""]
    assert "".join(part[0]["function"]["arguments"] for part in parts) == '{"x": 1}'


def test_ids_may_be_missing_or_repeat() -> None:
    (delta,) = frames(tool_calls=[{"name": "f", "id": ""}, {"name": "g", "id": "x"}, {"name": "h", "id": "x"}])
    assert [each["id"] for each in delta["message"]["tool_calls"]] == ["", "x", "x"]


def test_sizes_of_chunks() -> None:
    assert [delta["message"]["content"] for delta in frames(chunks=2, chunk="abc", chunk_size=7)] == ["abcabca"] * 2
    assert len(frames(chunks=1, long_line_bytes=100)[-1]["message"]["content"]) == 100
    assert frames(chunks=1, null_tool_calls=True)[0]["message"]["tool_calls"] is None
    assert len(frames()) == 20
    assert len(frames(chunks=0)) == 1
    assert frames(chunks=0, usage=None, finish_reason=None) == []


def test_errors_nest() -> None:
    error = {"code": -429, "type": "InvokeRateLimitError", "message": "slow down", "nested": 2, "args": {"a": 1}}
    (line,) = llm_frames(
        LlmStep.model_validate({"chunks": 0, "error": error}), model="m", messages=[], prompt="", number=1, success=""
    )
    envelope = json.loads(line.removeprefix(b"data: "))
    assert (envelope["code"], envelope["data"]) == (-429, None)
    outer = json.loads(envelope["message"])
    middle = json.loads(outer["message"])
    assert (outer["error_type"], middle["error_type"]) == ("PluginInvokeError", "PluginInvokeError")
    inner = json.loads(middle["message"])
    assert inner == {"error_type": "InvokeRateLimitError", "message": "slow down", "args": {"a": 1}}


def test_a_file_comes_in_chunks() -> None:
    step = ToolStep.model_validate({"text": "t", "blobs": [{"size": 20, "chunk_bytes": 8}, {"size": 0, "ends": False}]})
    messages = [json.loads(line.removeprefix(b"data: "))["data"] for line in tool_frames(step)]
    assert messages[0] == {"type": "text", "message": {"text": "t"}, "meta": None}
    assert [(each["message"]["sequence"], each["message"]["end"]) for each in messages[1:]] == [
        (0, False),
        (1, False),
        (2, True),
        (0, False),
    ]
    assert {each["type"] for each in messages[1:]} == {"blob_chunk"}
