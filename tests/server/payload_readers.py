"""A run's log over poll, event stream and WebSocket, read by strict parsers, which must give the same events."""

import json
import re
from typing import Any

import pydantic_core
import trio
import trio_websocket
from tests.server.clients import TERMINALS, Api, stream_of
from tests.server.harness import BOUND_SECONDS, Server

LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def strict(text: str) -> Any:
    """The value of a JSON text, which must be one for parsers of every kind.

    No NaN, no repeated key, no lone surrogate, not even an escaped one, no number beyond a double or 4,300 digits, no
    nesting that the stricter of two independent parsers refuses; and both read the same.
    """
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique)
    json.dumps(value, ensure_ascii=False).encode()
    other = pydantic_core.from_json(text, allow_inf_nan=False)
    assert exactly(value) == exactly(other)
    return value


def exactly(value: Any) -> str:
    """A text that differs for values that ``==`` takes for equal: 1 and 1.0 and true, 0.0 and -0.0."""
    return repr(value)


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    assert abs(number) != float("inf"), text
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs), f"a key is there twice: {[key for key, _ in pairs]}"
    return members


async def same_on_all(server: Server, api: Api, run_id: str) -> list[dict[str, Any]]:
    """The log of a run up to its terminal event, after comparing three live readers byte for byte."""
    logs: dict[str, list[str]] = {}

    async def collect(name: str, read: Any, *args: Any) -> None:
        logs[name] = await read(*args)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, "poll", poll_texts, api, run_id)
        nursery.start_soon(collect, "sse", _sse, server, run_id)
        nursery.start_soon(collect, "websocket", _websocket, server, run_id)
    assert logs["poll"] == logs["websocket"]
    assert logs["sse"] == [_escaped(text) for text in logs["websocket"]]
    assert all(strict(sse) == strict(text) for sse, text in zip(logs["sse"], logs["poll"], strict=True) if sse != text)
    events = [strict(text) for text in logs["websocket"]]
    assert [event["type"] in TERMINALS for event in events] == [False] * (len(events) - 1) + [True]
    return events


def _escaped(text: str) -> str:
    return LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


async def poll_texts(api: Api, run_id: str) -> list[str]:
    """The log up to its terminal event, each event as its own text."""
    texts: list[str] = []
    cursor, ended = "0-0", False
    with trio.fail_after(BOUND_SECONDS):
        while not ended:
            query = {"after": cursor, "wait": "5", "limit": "500"}
            response = await api.client.get(f"/runs/{run_id}/events", params=query)
            assert response.status_code == 200, response.text
            page = response.content.decode()
            found, cursor, ended = _parts_of(page)
            texts += found
    return texts


def _parts_of(page: str) -> tuple[list[str], str, bool]:
    """The events of a page, each as its own text, then the cursor, and whether the run has ended."""
    decoder = json.JSONDecoder()
    texts, ended = [], False
    head, opening = page[: page.index("[")], page.index("[") + 1
    position = opening
    while page[position] != "]":
        event, end = decoder.raw_decode(page, position)
        texts.append(page[position:end])
        ended = event["type"] in TERMINALS
        position = end + (page[end] == ",")
    members = json.loads(head + "[" + page[position:])
    assert members["events"] == []
    return texts, members["next_cursor"], ended


async def _sse(server: Server, run_id: str) -> list[str]:
    frames = await stream_of(server, run_id)
    for frame in frames:
        assert not LINE_ENDS.search(frame.data)
        assert (frame.id, frame.event) == (frame.json["id"], frame.json["type"])
    return [frame.data for frame in frames]


async def _websocket(server: Server, run_id: str) -> list[str]:
    texts: list[str] = []
    host = f"127.0.0.1:{server.port}"
    with trio.fail_after(BOUND_SECONDS):
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with stream, trio.open_nursery() as nursery:
            websocket = await trio_websocket.wrap_client_stream(
                nursery, stream, host, f"/runs/{run_id}/events/ws", max_message_size=1 << 28
            )
            try:
                while True:
                    texts.append(str(await websocket.get_message()))
            except trio_websocket.ConnectionClosed as closed:
                reason: Any = closed.reason
                assert (reason.code, reason.reason or "") == (1000, "")
            nursery.cancel_scope.cancel()
    return texts
