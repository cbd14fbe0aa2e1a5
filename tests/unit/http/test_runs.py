"""Create, status and cancel: answers, order of checks, credentials (protocol 1.1 to 1.5)."""

import json

import pytest
from tests.unit.http.fakes import CREATED, PROMPT, FakeRun, FakeService, call, make_app

from dify_agent.errors import (
    IdempotencyConflictError,
    RunCancellationConflictError,
    SchedulerStoppingError,
    TooManyActiveRunsError,
)

BODY = json.dumps(PROMPT).encode()
TOKEN = {"Authorization": "Bearer secret"}


async def test_create_answers_202_with_the_run_id():
    service = FakeService()
    answer = await call(make_app(service), "POST", "/runs", body=BODY)
    assert (answer.status, answer.body) == (202, b'{"run_id":"new","status":"running"}')
    assert answer.headers["content-type"] == "application/json"
    assert "connection" not in answer.headers
    assert service.created[0].composition.layers[0].name == "p"


async def test_create_over_a_limit_is_429_with_retry_after():
    service = FakeService()
    service.error = TooManyActiveRunsError()
    answer = await call(make_app(service), "POST", "/runs", body=BODY)
    assert (answer.status, answer.body) == (429, b'{"detail":"too many active runs"}')
    assert answer.headers["retry-after"] == "1"


async def test_create_with_the_key_of_another_request_is_a_conflict():
    service = FakeService()
    service.error = IdempotencyConflictError()
    answer = await call(make_app(service), "POST", "/runs", body=BODY)
    assert (answer.status, answer.body) == (409, b'{"detail":"idempotency_key was used with a different request"}')
    assert "retry-after" not in answer.headers


async def test_status_answers_the_record():
    answer = await call(make_app(FakeService(R=FakeRun())), "GET", "/runs/R")
    assert answer.status == 200
    assert answer.body == (
        b'{"run_id":"R","status":"running","created_at":"%b","updated_at":"%b","error":null,"error_type":null}'
        % (CREATED.encode(), CREATED.encode())
    )


async def test_cancel_answers_cancelled_and_hands_over_reason_and_message():
    service = FakeService(R=FakeRun())
    answer = await call(make_app(service), "POST", "/runs/R/cancel", body=b'{"reason":"r","message":"m"}')
    assert (answer.status, answer.body) == (200, b'{"run_id":"R","status":"cancelled"}')
    assert (service.cancels[0].reason, service.cancels[0].message) == ("r", "m")


async def test_cancel_needs_a_body():
    app = make_app(FakeService(R=FakeRun()))
    assert (await call(app, "POST", "/runs/R/cancel")).status == 422
    assert (await call(app, "POST", "/runs/R/cancel", body=b"{}")).status == 200


async def test_cancel_of_a_finished_run_is_a_conflict():
    service = FakeService(R=FakeRun())
    service.error = RunCancellationConflictError("R", "succeeded")
    answer = await call(make_app(service), "POST", "/runs/R/cancel", body=b"{}")
    assert (answer.status, answer.detail) == (409, "run already finished with status 'succeeded'")


@pytest.mark.parametrize("run_id", ["nope", "x" * 3000, "%7Bbraces%7D", "%E2%82%AC", "%FF", "a:b", "a%20b", ".."])
@pytest.mark.parametrize(
    ("method", "tail"), [("GET", ""), ("GET", "/events"), ("GET", "/events/sse"), ("POST", "/cancel")]
)
async def test_unknown_run_is_404(run_id, method, tail):
    answer = await call(
        make_app(FakeService()), method, f"/runs/{run_id}{tail}", body=b"{}" if method == "POST" else b""
    )
    assert (answer.status, answer.body) == (404, b'{"detail":"run not found"}')


@pytest.mark.parametrize(
    "target",
    [
        "/runs/a%2Fb",
        "/runs/R%2Fevents",
        "/runs/R%2fcancel",
        "/runs/R%00",
        "/nope",
        "/",
        "//runs",
        "/runs/..%2f",
        "/runs/R%2F",
        "/runs/R%00/",
    ],
)
async def test_what_is_no_route_is_404_before_credentials_and_never_reaches_the_store(target):
    service = FakeService(R=FakeRun())
    answer = await call(make_app(service, api_token="secret"), "GET", target)
    assert (answer.status, answer.body) == (404, b'{"detail":"Not Found"}')
    assert service.read_ids == []


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/runs", "POST"),
        ("HEAD", "/runs/R", "GET"),
        ("HEAD", "/runs/R/events", "GET"),
        ("HEAD", "/runs/R/events/sse", "GET"),
        ("OPTIONS", "/runs", "POST"),
        ("DELETE", "/runs/R", "GET"),
        ("GET", "/runs/R/cancel", "POST"),
    ],
)
async def test_wrong_method_is_405_with_allow_before_credentials(method, target, allow):
    answer = await call(make_app(FakeService(R=FakeRun()), api_token="secret"), method, target)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert answer.body == b'{"detail":"Method Not Allowed"}'


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/runs/", "http://server.test/runs"),
        ("/runs/R/?a=1", "http://server.test/runs/R?a=1"),
        ("/runs/a%20b/events/", "http://server.test/runs/a%20b/events"),
    ],
)
async def test_trailing_slash_redirects_with_307(target, location):
    answer = await call(make_app(FakeService()), "POST", target, body=BODY)
    assert (answer.status, answer.headers["location"], answer.body) == (307, location, b"")


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        (None, "missing authorization header"),
        ("", "invalid authorization scheme"),
        ("Basic c2VjcmV0", "invalid authorization scheme"),
        ("secret", "invalid authorization scheme"),
        ("Bearer", "invalid authorization scheme"),
        ("Bearer   ", "invalid authorization scheme"),
        ("Bearer other", "invalid bearer token"),
        ("Bearer secret2", "invalid bearer token"),
        ("Bearer secret secret", "invalid bearer token"),
        ("Bearer secret\xa0", "invalid bearer token"),
    ],
)
async def test_refused_credentials(header, detail):
    app = make_app(FakeService(R=FakeRun()), api_token=" secret ")
    answer = await call(app, "GET", "/runs/R", headers={} if header is None else {"Authorization": header})
    assert (answer.status, answer.detail) == (401, detail)
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "BEARER   secret  "])
async def test_accepted_credentials(header):
    app = make_app(FakeService(R=FakeRun()), api_token="secret")
    assert (await call(app, "GET", "/runs/R", headers={"Authorization": header})).status == 200


async def test_a_token_outside_ascii_is_compared_as_utf_8():
    app = make_app(FakeService(R=FakeRun()), api_token="gehe\u00efm\u20ac")
    header = "Bearer gehe\u00efm\u20ac".encode().decode("latin-1")
    assert (await call(app, "GET", "/runs/R", headers={"Authorization": header})).status == 200


@pytest.mark.parametrize("token", [None, "", "  "])
async def test_without_a_token_everything_is_let_through(token):
    app = make_app(FakeService(R=FakeRun()), api_token=token)
    assert (await call(app, "GET", "/runs/R")).status == 200


async def test_order_of_checks():
    """Each step has all later faults too, and is answered first (protocol 1.2, quirk Q6)."""
    service = FakeService()
    service.draining = True
    app = make_app(service, api_token="secret", blank=True)
    not_json, bad_schema = b"{", b'{"x":1}'
    assert (await call(app, "POST", "/runs", body=not_json)).item["type"] == "json_invalid"
    assert (await call(app, "POST", "/runs", body=bad_schema)).status == 401
    assert (await call(app, "POST", "/runs", body=not_json, headers={"content-type": "text/plain"})).status == 401
    assert (await call(app, "POST", "/runs")).status == 401
    assert (await call(app, "POST", "/runs", body=bad_schema, headers=TOKEN)).status == 422
    answer = await call(app, "POST", "/runs", body=BODY, headers=TOKEN)
    assert (answer.status, answer.detail) == (503, "run scheduler is shutting down")
    service.draining = False
    answer = await call(app, "POST", "/runs", body=BODY, headers=TOKEN)
    assert (answer.status, answer.body) == (422, b'{"detail":"run.user_prompts must not be empty"}')
    assert service.created == []


async def test_order_of_checks_on_reads():
    app = make_app(FakeService(), api_token="secret")
    assert (await call(app, "GET", "/runs/nope/events?limit=0")).status == 401
    assert (await call(app, "GET", "/runs/nope/events?limit=0", headers=TOKEN)).status == 422
    assert (await call(app, "GET", "/runs/nope/events", headers=TOKEN)).status == 404
    assert (await call(app, "GET", "/runs/nope/events/sse?after=zzz", headers=TOKEN)).status == 422
    assert (await call(app, "POST", "/runs/nope/cancel", body=b'{"x":1}', headers=TOKEN)).status == 422


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/runs"),
        ("GET", "/runs/R"),
        ("POST", "/runs/R/cancel"),
        ("GET", "/runs/R/events"),
        ("GET", "/runs/R/events/sse"),
    ],
)
async def test_store_down_is_503_with_retry_after_on_every_route(method, target):
    service = FakeService(R=FakeRun())
    service.down = True
    body = b"" if method == "GET" else (BODY if target == "/runs" else b"{}")
    answer = await call(make_app(service), method, target, body=body)
    assert (answer.status, answer.body) == (503, b'{"detail":"run store is unavailable"}')
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["content-type"] == "application/json"


async def test_shutdown_that_begins_while_creating_is_503_with_retry_after():
    service = FakeService()
    service.error = SchedulerStoppingError()
    answer = await call(make_app(service), "POST", "/runs", body=BODY)
    assert (answer.status, answer.detail) == (503, "run scheduler is shutting down")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/runs/R"), ("GET", "/nope"), ("GET", "/runs"), ("GET", "/healthz")]
)
async def test_while_draining_every_response_closes_its_connection(method, target):
    service = FakeService(R=FakeRun())
    service.draining = True
    assert (await call(make_app(service), method, target)).headers["connection"] == "close"


async def test_cancel_works_while_draining():
    service = FakeService(R=FakeRun())
    service.draining = True
    assert (await call(make_app(service), "POST", "/runs/R/cancel", body=b"{}")).status == 200


async def test_an_unexpected_error_is_plain_text_and_logged_without_the_path(caplog):
    service = FakeService(R=FakeRun())
    service.error = RuntimeError("boom")
    answer = await call(make_app(service), "GET", "/runs/R?secret=1")
    assert (answer.status, answer.body) == (500, b"Internal Server Error")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "boom" in caplog.text
    assert "secret=1" not in caplog.text


@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("draining", 503), ("store_unavailable", 503)])
async def test_readiness_needs_no_token(state, status):
    service = FakeService()
    service.ready = state
    answer = await call(make_app(service, api_token="secret"), "GET", "/readyz")
    assert (answer.status, answer.json) == (status, {"status": state})


async def test_liveness_needs_no_token():
    assert (await call(make_app(FakeService(), api_token="secret"), "GET", "/healthz")).status == 200
    assert (await call(make_app(FakeService(), api_token="secret"), "HEAD", "/healthz")).status == 200
