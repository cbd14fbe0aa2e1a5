"""Bodies of strangers: how little of them is read, and what they hear (protocol, 'Order of checks')."""

import json

import pytest
import trio
from tests.unit.http.fakes import PROMPT, FakeService, call, make_app
from tests.unit.http.test_server import read_all, serving

from dify_agent.http import reading
from dify_agent.http.reading import PREAUTH_BODY_BYTES

MISSING = b'{"detail":"missing authorization header"}'
TOKEN = {"Authorization": "Bearer secret"}


def app():
    return make_app(FakeService(), api_token="secret", body_timeout_seconds=5)


@pytest.mark.parametrize("with_length", [True, False], ids=["by-content-length", "while-reading"])
async def test_a_long_body_without_credentials_is_refused_unread(monkeypatch, with_length):
    def judged(*_args):
        raise AssertionError("the body was judged")

    monkeypatch.setattr(reading, "parse_body", judged)
    body = b" " * (PREAUTH_BODY_BYTES + 1)
    answer = await call(app(), "POST", "/runs", body=body if with_length else [body[:9], body[9:], b"never read"])
    assert (answer.status, answer.body) == (401, MISSING)
    assert answer.headers["connection"] == "close"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_up_to_the_bound_a_body_that_is_not_json_is_said_first(in_pieces):
    body = b" " * (PREAUTH_BODY_BYTES - 1) + b"{"
    answer = await call(app(), "POST", "/runs", body=[body[:30_000], body[30_000:]] if in_pieces else body)
    assert answer.item["type"] == "json_invalid"
    answer = await call(app(), "POST", "/runs", body=b" " * (PREAUTH_BODY_BYTES - 2) + b"{}")
    assert (answer.status, answer.body) == (401, MISSING)
    assert "connection" not in answer.headers


async def test_a_body_without_credentials_that_does_not_arrive_is_408(autojump_clock):
    answer = await call(app(), "POST", "/runs", body=[], headers={"content-length": "10"})
    assert (answer.status, answer.headers["connection"]) == (408, "close")


async def test_with_credentials_and_without_a_token_the_bound_does_not_hold():
    body = json.dumps(PROMPT).encode() + b" " * PREAUTH_BODY_BYTES
    assert (await call(app(), "POST", "/runs", body=body, headers=TOKEN)).status == 202
    assert (await call(make_app(FakeService()), "POST", "/runs", body=body)).status == 202


@pytest.mark.parametrize("head", [b"Content-Length: 67108864", b"Transfer-Encoding: chunked"])
async def test_the_refusal_does_not_wait_for_the_rest_of_the_upload(head):
    """The client hears it while it is still sending, and can read it to the end."""
    async with serving(FakeService(), api_token="secret") as server, await server.connect() as stream:
        chunk = b"a" * (2 * PREAUTH_BODY_BYTES)
        if b"chunked" in head:
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        await stream.send_all(b"POST /runs HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + chunk)
        with trio.fail_after(1):
            answer = await read_all(stream)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(MISSING)
    assert b"\r\nconnection: close\r\n" in answer.lower()
