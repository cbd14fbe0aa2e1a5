"""Bodies whose judgement is work: it happens beside the event loop, and refusals stay small."""

import gc
import json
import sys
import threading
from functools import partial
from types import FrameType

import pytest
import trio
import trio.testing
from tests.unit.http.fakes import PROMPT, FakeService, call, make_app

from dify_agent.http import body as body_module
from dify_agent.http import reading
from dify_agent.http.body import MAX_ECHOED, MAX_ITEMS, SMALL_BODY_BYTES, parse_body, read_model, validate_body
from dify_agent.http.errors import HttpError
from dify_agent.http.json_bounds import infinity_offset, is_deeper, line_start
from dify_agent.http.members import MAX_MEMBERS, has_more_members
from dify_agent.protocol.schemas import CreateRunRequest
from dify_agent.protocol.separators import SLICE, has_more_separators

JSON = "application/json"
PADDING = " " * SMALL_BODY_BYTES


def refusal(text):
    with pytest.raises(HttpError) as caught:
        read_model(CreateRunRequest, text.encode(), JSON)
    assert caught.value.status == 422
    return caught.value.detail


@pytest.mark.parametrize(("padding", "is_elsewhere"), [("", False), (PADDING, True)])
async def test_a_large_body_is_judged_in_a_thread(monkeypatch, padding, is_elsewhere):
    threads = []

    def judge(*args):
        threads.append(threading.current_thread())
        return read_model(*args)

    monkeypatch.setattr(reading, "read_model", judge)
    app = make_app(FakeService())
    assert (await call(app, "POST", "/runs", body=(json.dumps(PROMPT) + padding).encode())).status == 202
    assert (await call(app, "POST", "/runs", body=("{}" + padding).encode())).status == 422
    assert [thread is not threading.current_thread() for thread in threads] == [is_elsewhere] * 2


async def test_large_bodies_are_judged_one_after_the_other_while_others_are_served(monkeypatch):
    entered, leave = threading.Semaphore(0), threading.Semaphore(0)
    inside = []

    def judge(*args):
        inside.append(1)
        entered.release()
        leave.acquire()
        assert inside == [1]
        inside.clear()
        return read_model(*args)

    monkeypatch.setattr(reading, "read_model", judge)
    app, answers = make_app(FakeService()), []

    async def post():
        answers.append((await call(app, "POST", "/runs", body=(json.dumps(PROMPT) + PADDING).encode())).status)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post)
            nursery.start_soon(post)
            await trio.to_thread.run_sync(entered.acquire)
            assert (await call(app, "GET", "/healthz")).status == 200
            assert inside == [1]
            leave.release(2)
    assert answers == [202, 202]


async def test_a_client_that_leaves_does_not_wait_for_the_judgement(monkeypatch):
    entered, leave = threading.Event(), threading.Event()

    def judge(*_args):
        entered.set()
        leave.wait()

    monkeypatch.setattr(reading, "read_model", judge)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, make_app(FakeService()), "POST", "/runs", body=PADDING.encode() + b" "))
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
    leave.set()


@pytest.mark.parametrize("text", ["{}", "{bad}"])
async def test_a_refused_body_is_gone_with_its_answer(text):
    """Not when the garbage collector comes by: a few refusals would hold a gigabyte until then."""
    gc.collect()
    gc.disable()
    try:
        answer = await call(make_app(FakeService()), "POST", "/runs", body=(text + PADDING).encode())
        frames = [item for item in gc.get_objects() if isinstance(item, FrameType)]
    finally:
        gc.enable()
    assert answer.status == 422
    kept = [
        frame
        for frame in frames
        for value in frame.f_locals.values()
        if isinstance(value, bytes | str) and len(value) > SMALL_BODY_BYTES
    ]
    assert [frame.f_code.co_name for frame in kept if frame is not sys._getframe()] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[[],[],{}]", 6),
        ('{"a":1,"b":[1,2]}', 4),
        ('[",,,[[[{{{","\\",,,\\\\",1]', 3),
        ('["' + "," * 200_000 + '"]', 1),
        ("[" + "[]," * 100_000 + "1]", 200_001),
    ],
)
def test_separators_outside_strings(text, count):
    assert not has_more_separators(text.encode(), count)
    assert has_more_separators(text.encode(), count - 1)


def test_too_many_values_are_refused_before_parsing(monkeypatch):
    monkeypatch.setattr(body_module, "MAX_SEPARATORS", 1000)
    assert parse_body(b"[" + b"1," * 999 + b"1]", JSON) == [1] * 1000
    parsed = []
    monkeypatch.setattr(body_module, "_parse", parsed.append)
    with pytest.raises(HttpError) as caught:
        parse_body(b"[" + b"1," * 1000 + b"1]", JSON)
    assert caught.value.detail[0]["ctx"] == {"error": "too many values"}
    assert parsed == []


def test_the_collector_rests_while_a_value_grows():
    began = []

    def note(phase, _info):
        began.append(phase)

    gc.callbacks.append(note)
    try:
        parse_body(b"[" + b"[]," * 100_000 + b"1]", JSON)
    finally:
        gc.callbacks.remove(note)
    assert len(began) < 20  # hundreds, had it not
    assert gc.isenabled()


MANY = MAX_MEMBERS + 1


def layers(text):
    return '{"composition":{"layers":[' + text + "]}}"


@pytest.mark.parametrize(
    "text",
    [
        "{" + ",".join(f'"k{n}":1' for n in range(MANY)) + "}",
        '{"composition":{' + ",".join(f'"k{n}":1' for n in range(MANY)) + "}}",
        layers("{}," * MANY + "{}"),
        layers('{"name":"a","type":"b","deps":{' + ",".join(f'"k{n}":1' for n in range(MANY)) + "}}"),
        layers('{"name":"a","type":"b","x":1},' * (MANY // 4) + "1"),
        '{"session_snapshot":{"layers":[' + "1," * MANY + "1]}}",
        '{"deferred_tool_results":{"metadata":{' + ",".join(f'"k{n}":1' for n in range(MANY)) + "}}}",
    ],
    ids=["body", "composition", "layers", "deps", "members-of-layers", "snapshot", "metadata-of-results"],
)
def test_a_body_that_could_have_any_number_of_violations_is_refused_before_validation(text):
    (item,) = refusal(text)
    assert (item["type"], item["loc"], item["input"]) == ("too_long", ["body"], None)


def test_free_form_json_may_be_wide():
    wide = {"a": [1] * MANY, **{f"k{n}": 1 for n in range(MANY)}}
    spec = {"name": "p", "type": "plain.prompt", "config": wide, "metadata": wide}
    state = {"name": "p", "lifecycle_state": "suspended", "runtime_state": wide}
    body = {
        "composition": {"layers": [spec]},
        "metadata": wide,
        "session_snapshot": {"layers": [state]},
        "deferred_tool_results": {"calls": wide, "metadata": {"c": wide}},
    }
    assert not has_more_members(CreateRunRequest, body, 30)
    assert read_model(CreateRunRequest, json.dumps(body).encode(), JSON).metadata == wide


@pytest.mark.parametrize("padding", ["", PADDING])
def test_an_answer_names_the_first_violations(padding):
    items = refusal(layers(",".join(["1"] * 500)) + padding)
    assert [item["loc"] for item in items] == [["body", "composition", "layers", n] for n in range(MAX_ITEMS)]


def test_the_refusal_of_a_large_body_does_not_repeat_it():
    huge = "x" * SMALL_BODY_BYTES
    body = {"composition": {"layers": [], huge: {"a": huge}}, "on_exit": huge, "idempotency_key": 1, "y": [huge]}
    items = refusal(json.dumps(body | {"short": "text"}))
    assert [(item["loc"][-1], item["input"]) for item in items] == [
        (huge[:MAX_ECHOED], None),
        ("idempotency_key", 1),
        ("on_exit", None),
        ("y", None),
        ("short", "text"),
    ]


def test_a_large_text_of_another_type_is_not_repeated():
    with pytest.raises(HttpError) as caught:
        validate_body(CreateRunRequest, parse_body(PADDING.encode(), "text/plain"), len(PADDING))
    assert caught.value.detail[0]["input"] == PADDING  # at the bound
    with pytest.raises(HttpError) as caught:
        read_model(CreateRunRequest, PADDING.encode() + b" ", "text/plain")
    assert (caught.value.detail[0]["type"], caught.value.detail[0]["input"]) == ("model_attributes_type", None)


@pytest.mark.parametrize("lines", [0, 70_000])
def test_a_large_text_that_is_not_json_is_explained_by_the_parser_alone(monkeypatch, lines):
    def explain(_text):
        raise AssertionError("parsed twice")

    monkeypatch.setattr(body_module.json, "loads", explain)
    text = "\n" * lines + " " * (SMALL_BODY_BYTES if not lines else 0) + "{bad}"
    (item,) = refusal(text)
    assert item["loc"] == ["body", len(text) - 4]
    assert item["type"] == "json_invalid"


@pytest.mark.parametrize("before", [0, SLICE - 300, SLICE - 150, SLICE - 3, SLICE - 2, SLICE - 1, SLICE, 2 * SLICE - 2])
@pytest.mark.parametrize("number", ["1e999", "1E+400", "1e0999", "9" * 310 + ".5"])
def test_infinities_are_found_across_slices(before, number):
    text = b"[" + b" " * before + number.encode() + b"," + b" " * SLICE + b"1]"
    (item,) = refusal(text.decode())
    assert item["ctx"] == {"error": "number out of range"}
    assert item["loc"] == ["body", before + 1]


def test_what_only_looks_like_a_huge_number():
    for text in (b'"1e999"', b"1e308", b"1e-400", b"0e999", b"1" * 300, b'"' + b"1" * 300 + b'"'):
        assert infinity_offset(text, parse_body(text, JSON)) is None


@pytest.mark.parametrize("depth", [199, 200, 201])
def test_nesting(depth):
    text = b"[" * depth + b"]" * depth
    value = json.loads(text)
    assert is_deeper(text, value, 200) == (depth > 200)


def test_offsets_of_lines():
    text = b"ab\n\n" + b"x" * SLICE + b"\ny\n" + b"\n" * SLICE + b"z"
    lines = text.split(b"\n")
    start = 0
    for number, line in enumerate(lines, 1):
        if number < 9 or number > len(lines) - 3:
            assert line_start(text, number) == start
        start += len(line) + 1
