"""The recorder's memory is bounded, and it can be waited on."""

import functools
import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dify_agent.testing import Outcome, Recorder


def add(recorder: Recorder, body: bytes = b"{}", path: str = "/a"):
    return recorder.add("POST", path, {"x-api-key": "secret", "x-plugin-id": "p"}, body)


def test_the_oldest_go_by_number_and_by_bytes() -> None:
    recorder = Recorder(kept_requests=3, kept_bytes=100)
    for _ in range(5):
        add(recorder)
    assert [request.number for request in recorder] == [3, 4, 5]
    assert (len(recorder), recorder.total, recorder[-1].number) == (3, 5, 5)
    add(recorder, b"x" * 99)
    assert [request.number for request in recorder] == [6]
    add(recorder, b"x" * 1000)
    assert [request.number for request in recorder] == [7]
    recorder.clear()
    assert (len(recorder), add(recorder).number) == (0, 1)


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"", None),
        (b"\xff{", "\ufffd{"),
        (b"[" * 150 + b"]" * 150, functools.reduce(lambda inner, _: [inner], range(149), [])),
        (b"[" * 300 + b"]" * 300, "[" * 300 + "]" * 300),
        (b"[" * 200_000 + b"]" * 200_000, "[" * 200_000 + "]" * 200_000),
    ],
)
def test_bodies(raw: bytes, body: object) -> None:
    assert add(Recorder(), raw).body == body


def test_secrets_stay_inside_the_process() -> None:
    request = add(Recorder())
    assert request.headers["x-api-key"] == "secret"
    assert "secret" not in repr(request)
    shown = request.as_json()
    assert "secret" not in json.dumps(shown)
    assert shown["headers"]["x-plugin-id"] == "p"


def test_the_first_end_counts() -> None:
    recorder = Recorder()
    request = add(recorder)
    recorder.end(request, Outcome.LEFT)
    recorder.end(request, Outcome.STOPPED)
    assert request.left
    assert request.seconds is not None


def test_by_path() -> None:
    recorder = Recorder()
    add(recorder, b"1", "/a/b")
    add(recorder, b"2", "/c")
    assert recorder.bodies("/c") == [2]
    assert [request.path for request in recorder[:1]] == ["/a/b"]


async def test_waiting_sees_arrivals_and_ends() -> None:
    recorder = Recorder()
    found: list[str] = []

    async def wait(name: str, outcome: Outcome) -> None:
        await recorder.wait_for(lambda request: request.outcome is outcome)
        found.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "arrival", Outcome.OPEN)
        nursery.start_soon(wait, "end", Outcome.CUT)
        await wait_all_tasks_blocked()
        request = add(recorder)
        await wait_all_tasks_blocked()
        assert found == ["arrival"]
        recorder.end(request, Outcome.CUT)
    assert found == ["arrival", "end"]
