"""The document names every route and code, and its pages need no other host (protocol 1.1, decision R18)."""

import re
from html.parser import HTMLParser

import pytest
from tests.unit.http.fakes import FakeRun, FakeService, call, make_app

from dify_agent.http.openapi import openapi_document

OPERATIONS = {
    ("post", "/runs"): "create_run_runs_post",
    ("get", "/runs/{run_id}"): "get_run_status_runs__run_id__get",
    ("post", "/runs/{run_id}/cancel"): "cancel_run_runs__run_id__cancel_post",
    ("get", "/runs/{run_id}/events"): "get_run_events_runs__run_id__events_get",
    ("get", "/runs/{run_id}/events/sse"): "stream_run_events_runs__run_id__events_sse_get",
}


def _operations():
    document = openapi_document()
    return {(method, path): op for path, methods in document["paths"].items() for method, op in methods.items()}


async def test_the_document_is_served_without_a_token():
    answer = await call(make_app(FakeService(), api_token="secret"), "GET", "/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["openapi"] == "3.1.0"
    assert answer.json["info"] == {"title": "Dify Agent Run Server", "version": "0.1.0"}


def test_operation_ids_and_tag():
    operations = _operations()
    for key, operation_id in OPERATIONS.items():
        assert operations[key]["operationId"] == operation_id
        assert operations[key]["tags"] == ["runs"]


def test_every_route_of_the_app_is_documented_and_no_other():
    pages = {"/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"}
    routes = set()
    for rule in make_app(FakeService()).url_map.iter_rules():
        path = rule.rule.replace("<", "{").replace(">", "}")
        routes.update((method.lower(), path) for method in rule.methods - {"HEAD"} if path not in pages)
    assert routes == set(_operations())


def test_references_resolve():
    document = openapi_document()
    schemas = document["components"]["schemas"]
    names = set(re.findall(r"#/components/schemas/([^'\"]+)", str(document)))
    assert names <= set(schemas)
    assert "#/$defs/" not in str(document)
    assert schemas["CreateRunRequest"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("request_line", "body", "settings", "down", "status"),
    [
        (("post", "/runs"), b"{}", {"api_token": "t"}, False, 401),
        (("post", "/runs"), b"{}", {}, False, 422),
        (("post", "/runs"), b"{}", {"max_request_body_bytes": 1}, False, 413),
        (("get", "/runs/{run_id}"), b"", {}, True, 503),
        (("get", "/runs/{run_id}"), b"", {}, False, 200),
        (("post", "/runs/{run_id}/cancel"), b"{}", {}, False, 200),
        (("get", "/runs/{run_id}/events"), b"", {}, False, 200),
        (("get", "/runs/{run_id}/events"), b"", {"api_token": "t"}, False, 401),
    ],
)
async def test_answers_are_documented(request_line, body, settings, down, status):
    method, target = request_line
    service = FakeService(R=FakeRun())
    service.down = down
    answer = await call(make_app(service, **settings), method.upper(), target.replace("{run_id}", "R"), body=body)
    assert answer.status == status
    documented = _operations()[method, target]["responses"][str(status)]
    assert answer.headers["content-type"] in documented["content"]
    for name in documented.get("headers", {}):
        assert name.lower() in answer.headers or name == "X-Events-Trimmed"


def test_refusals_of_a_create_are_documented_with_its_own_words():
    operations = _operations()
    responses = operations["post", "/runs"]["responses"]
    assert "idempotency key" in responses["409"]["description"]
    assert "active runs" in responses["429"]["description"]
    assert responses["429"]["headers"] == {"Retry-After": {"schema": {"type": "string"}}}
    cancelling = operations["post", "/runs/{run_id}/cancel"]["responses"]
    assert "already succeeded or failed" in cancelling["409"]["description"]
    assert "active runs" not in cancelling["429"]["description"]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
async def test_pages_are_self_contained(path):
    answer = await call(make_app(FakeService(), api_token="secret"), "GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    sources = []

    class Sources(HTMLParser):
        def handle_starttag(self, tag, attrs):
            sources.extend(value for name, value in attrs if name in {"src", "href"})

    Sources().feed(answer.body.decode())
    assert set(sources) <= {"openapi.json"}
    assert b"//" not in answer.body
