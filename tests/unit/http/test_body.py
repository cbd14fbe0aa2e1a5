"""Bodies that are refused: the items of protocol 1.8, and the 'Bad input' table."""

import json

import pytest
from tests.unit.http.fakes import PROMPT, FakeRun, FakeService, call, make_app

from dify_agent.http.body import parse_body
from dify_agent.http.errors import HttpError


def _with(**members):
    return json.dumps(PROMPT | members).encode()


async def _refused(body, *, target="/runs", headers=None):
    service = FakeService(R=FakeRun())
    answer = await call(make_app(service), "POST", target, body=body, headers=headers)
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/json"
    assert service.created == service.cancels == []
    return answer


MISSING = {"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}


async def test_missing_composition():
    answer = await _refused(b"{}")
    assert answer.body == (
        b'{"detail":[{"type":"missing","loc":["body","composition"],"msg":"Field required","input":{}}]}'
    )


@pytest.mark.parametrize("body", [b"", b"null", b" null "])
async def test_no_body_or_null(body):
    assert (await _refused(body)).item == MISSING


@pytest.mark.parametrize(
    ("body", "offset", "reason"),
    [
        (b"not json", 0, "Expecting value"),
        (b"{bad}", 1, "Expecting property name enclosed in double quotes"),
        (b'{"a":', 5, "Expecting value"),
        (b"{} x", 3, "Extra data"),
        (b"  ", 2, "Expecting value"),
        ('{"é": x}'.encode(), 6, "Expecting value"),
    ],
)
async def test_text_that_is_not_json(body, offset, reason):
    assert (await _refused(body)).item == {
        "type": "json_invalid",
        "loc": ["body", offset],
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": reason},
    }


BAD = [
    pytest.param(b'{"a":NaN,"s":"SECRET"}', 5, id="nan"),
    pytest.param(b'{"a":Infinity,"s":"SECRET"}', 5, id="infinity"),
    pytest.param(b'{"a":\n-Infinity,"s":"SECRET"}', 7, id="negative-infinity"),
    pytest.param(b'{"a":1e999,"s":"SECRET"}', 5, id="overflow"),
    pytest.param(b'{"a":[-1E+400],"s":"SECRET"}', 7, id="negative-overflow"),
    pytest.param(b'{"a":' + b"9" * 400 + b'.0,"s":"SECRET"}', 5, id="overflow-by-digits"),
    pytest.param(b'{"a":' + b"9" * 250 + b'e99,"s":"SECRET"}', 5, id="overflow-by-both"),
    pytest.param(b'{"a":"\\ud800","s":"SECRET"}', None, id="lone-high-surrogate"),
    pytest.param(b'{"a":"\\udc00x","s":"SECRET"}', None, id="lone-low-surrogate"),
    pytest.param(b'{"\\ud800":1,"s":"SECRET"}', None, id="surrogate-in-key"),
    pytest.param(b'{"s":"SECRET","a":' + b"1" * 4301 + b"}", None, id="digits"),
    pytest.param(b'{"s":"SECRET","a":' + b"[" * 200 + b"]" * 200 + b"}", None, id="nesting"),
    pytest.param(b'{"s":"SECRET","a":' + b"[" * 60_000, None, id="deep-nesting"),
    pytest.param(b'{"s":"SECRET","a":"\xff"}', 19, id="invalid-utf-8"),
    pytest.param(b'{"s":"SECRET","a":"\xed\xa0\x80"}', 19, id="utf-8-surrogate"),
]


@pytest.mark.parametrize(("body", "offset"), BAD)
async def test_bad_input_is_json_invalid_and_never_echoed(body, offset):
    answer = await _refused(body)
    item = answer.item
    assert (item["type"], item["msg"], item["input"]) == ("json_invalid", "JSON decode error", {})
    root, position = item["loc"]
    assert root == "body"
    assert 0 < position <= len(body)
    if offset is not None:
        assert position == offset
    assert b"SECRET" not in answer.body
    assert len(answer.body) < 250


@pytest.mark.parametrize(("body", "_offset"), BAD)
async def test_bad_input_comes_before_credentials(body, _offset):
    answer = await call(make_app(FakeService(), api_token="secret"), "POST", "/runs", body=body)
    assert answer.item["type"] == "json_invalid"


@pytest.mark.parametrize(
    "value",
    ['"\\u0000"', '"\\ud83d\\ude00"', "1" * 4300, "[" * 197 + "]" * 197, "1e308", "1" * 300, '"1e999"', "0e999"],
)
async def test_values_at_the_edge_are_accepted(value):
    service = FakeService()
    body = _with()[:-1] + b',"metadata":{"k":' + value.encode() + b"}}"
    answer = await call(make_app(service), "POST", "/runs", body=body)
    assert answer.status == 202, answer.body[:300]
    assert service.created[0].metadata["k"] == json.loads(value)


async def test_a_byte_order_mark_is_ignored():
    assert (await call(make_app(FakeService()), "POST", "/runs", body=b"\xef\xbb\xbf" + _with())).status == 202


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        "application/vnd.api+json",
        "application/x+json;v=1",
    ],
)
async def test_json_content_types(content_type):
    answer = await call(make_app(FakeService()), "POST", "/runs", body=_with(), headers={"content-type": content_type})
    assert answer.status == 202


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "", "text/json", "application/jsonp", "application/json5"],
)
async def test_another_content_type_is_no_object(content_type):
    answer = await _refused(b'{"a": 1}', headers={"content-type": content_type})
    assert answer.item == {
        "type": "model_attributes_type",
        "loc": ["body"],
        "msg": "Input should be a valid dictionary or object to extract fields from",
        "input": '{"a": 1}',
    }


def test_no_content_type_is_no_object():
    assert parse_body(b"{}", None).text == "{}"


def test_text_of_another_type_that_is_not_utf_8_is_not_echoed():
    with pytest.raises(HttpError) as info:
        parse_body(b"ab\xff", "text/plain")
    assert info.value.detail[0]["loc"] == ["body", 2]


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"true"])
async def test_json_that_is_no_object(body):
    item = (await _refused(body)).item
    assert (item["type"], item["loc"], item["input"]) == ("model_attributes_type", ["body"], json.loads(body))


async def test_unknown_members():
    answer = await _refused(_with(user_prompt="hi", on_exit={"x": 1}))
    assert [(i["type"], i["loc"], i["msg"], i["input"]) for i in answer.detail] == [
        ("extra_forbidden", ["body", "on_exit", "x"], "Extra inputs are not permitted", 1),
        ("extra_forbidden", ["body", "user_prompt"], "Extra inputs are not permitted", "hi"),
    ]


async def test_approvals_are_unknown():
    item = (await _refused(_with(deferred_tool_results={"approvals": {}}))).item
    assert (item["type"], item["loc"]) == ("extra_forbidden", ["body", "deferred_tool_results", "approvals"])


async def test_exit_intent():
    item = (await _refused(_with(on_exit={"default": "stop"}))).item
    assert item == {
        "type": "enum",
        "loc": ["body", "on_exit", "default"],
        "msg": "Input should be 'delete' or 'suspend'",
        "input": "stop",
        "ctx": {"expected": "'delete' or 'suspend'"},
    }


async def test_active_snapshot_state():
    layer = {"name": "p", "lifecycle_state": "active", "runtime_state": {}}
    item = (await _refused(_with(session_snapshot={"layers": [layer]}))).item
    assert item["type"] == "value_error"
    assert item["loc"] == ["body", "session_snapshot", "layers", 0, "lifecycle_state"]
    assert item["msg"] == (
        "Value error, LifecycleState.ACTIVE is internal-only and cannot appear in session snapshots."
    )
    assert item["ctx"] == {"error": {}}
    assert "url" not in item


async def test_wrong_type_on_cancel():
    item = (await _refused(b'{"reason":1}', target="/runs/R/cancel")).item
    assert item == {
        "type": "string_type",
        "loc": ["body", "reason"],
        "msg": "Input should be a valid string",
        "input": 1,
    }


async def test_errors_echo_characters_unescaped():
    answer = await _refused(_with(grüße="€"))
    assert "grüße".encode() in answer.body
    assert "€".encode() in answer.body


@pytest.mark.parametrize("with_length", [True, False], ids=["by-content-length", "while-reading"])
async def test_a_body_above_the_limit_is_413_and_closes(with_length):
    app = make_app(FakeService(), max_request_body_bytes=100, api_token="secret")
    body = b" " * 101 if with_length else [b" " * 60, b" " * 41]
    answer = await call(app, "POST", "/runs", body=body, headers={"Authorization": "Bearer secret"})
    assert (answer.status, answer.body) == (413, b'{"detail":"request body exceeds 100 bytes"}')
    assert answer.headers["connection"] == "close"
    assert (await call(app, "POST", "/runs", body=body)).status == 401, "a stranger hears of credentials first"


async def test_a_body_at_the_limit_is_read():
    app = make_app(FakeService(), max_request_body_bytes=100)
    assert (await call(app, "POST", "/runs", body=[b" " * 60, b" " * 40])).status == 422


async def test_a_body_that_does_not_arrive_is_408(autojump_clock):
    app = make_app(FakeService(), body_timeout_seconds=5)
    answer = await call(app, "POST", "/runs", body=[], headers={"content-length": "10"})
    assert (answer.status, answer.body) == (408, b'{"detail":"Request Timeout"}')
    assert answer.headers["connection"] == "close"
